//! External programs that the controller starts. The kernel kills them when the controller exits.

use farblock_bench::cpu::CpuSource;
use std::process::Command;

/// Wraps a command, so that the kernel kills the program when this process exits. A Ctrl-C reaches
/// only this process, which then stops the program itself.
pub(crate) fn bound(program: &Command) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program.get_program());
    command.args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command
}

/// Measures the processor time of a process; `None` if the system does not support that.
#[cfg(any(target_os = "linux", windows))]
pub(crate) fn meter(process: u32) -> Option<Box<dyn CpuSource>> {
    let meter = farblock_bench::cpu::OtherProcess::new(process).ok()?;
    Some(Box::new(meter))
}

#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn meter(_: u32) -> Option<Box<dyn CpuSource>> {
    None
}
