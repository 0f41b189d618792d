//! `farblock`: share disks over NVMe/TCP and use them from anywhere, entirely in user space.
//!
//! The binary is thin: it reads the command line ([`args`]), calls the library crates, and prints
//! tables or JSON. It keeps these promises to users and scripts:
//! - Results go to the standard output. Progress, notes, logs and errors go to the standard error.
//! - An error is one sentence that says what is wrong and what to do. The exit code is 2 if the
//!   command line or a configuration is invalid, 1 if an operation failed, and 130 after a signal.
//! - A closed pipe ends a command without an error. No peer, file or option causes a panic.

mod args;
mod bench;
mod command_line;
mod completions;
mod discover;
mod identify;
mod keys;
mod logging;
mod whoami;

use args::{Cli, Command, Global};
use error::{Failure, Result};
use farblock_daemon as attach;
use farblock_disks as elsewhere;
use farblock_doctor as doctor;
#[cfg(target_os = "linux")]
use farblock_program::sandbox;
use farblock_program::{descriptors, error, output, remote, signals, table, values};
use farblock_serve as serve;
#[cfg(unix)]
use farblock_steer as steer;
use farblock_transfer as transfer;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match command_line::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    #[cfg(target_os = "linux")]
    if matches!(cli.command, Command::Watchdog) {
        return serve::group::run_watchdog();
    }
    let runs_for_long = match &cli.command {
        Command::Serve(_) | Command::Attachment(_) => true,
        // With `steer`, the user interface logs every change.
        #[cfg(unix)]
        Command::Ui(args) => args.steer,
        Command::Attach(args) => args.foreground,
        _ => false,
    };
    let file = match &cli.command {
        Command::Service(args) => attach::service::log(args),
        _ => None,
    };
    let global = Global { quiet: is_quiet(&cli), ..cli.global.clone() };
    let is_read = logging::start(&global, runs_for_long, file);
    descriptors::raise();
    signals::survive_file_size_limit();
    #[cfg(target_os = "linux")]
    farblock_host::key_file::guard_by(sandbox::holds_keys);
    #[cfg(target_os = "linux")]
    farblock_frontend::users::loops::ask_apart(attach::ABOUT_LOOP_DEVICES);
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if is_read => failure.report_in_log(),
        Err(failure) => failure.report(),
    }
}

/// Reduces logging for `farblock demo`, so that it does not log the faults that it injects.
fn is_quiet(cli: &Cli) -> bool {
    #[cfg(unix)]
    let breaks_its_own = matches!(cli.command, Command::Demo(_));
    #[cfg(not(unix))]
    let breaks_its_own = false;
    cli.global.quiet || (breaks_its_own && cli.global.verbose == 0)
}

/// Refuses `--json` for commands without JSON output.
fn has_json(cli: &Cli) -> Result<()> {
    use Command::{Authenticate, Completions, Detach, Keys, Service};
    #[cfg(unix)]
    let is_shown = matches!(cli.command, Command::Demo(_));
    #[cfg(not(unix))]
    let is_shown = false;
    let only_does =
        matches!(cli.command, Authenticate(_) | Detach(_) | Completions(_) | Keys(_) | Service(_));
    match cli.json && (only_does || is_shown) {
        true => Err(Failure::usage("this command has no --json: its exit code is its result")),
        false => Ok(()),
    }
}

/// Checks and applies the options of event loops.
fn use_loops(global: &Global) -> Result<()> {
    // Check here: the parser misses conflicts between options before and after the command's name.
    if global.poll && global.spin.is_some() {
        return Err(Failure::usage("--poll means --spin always: leave one of the two out"));
    }
    let congestion = global.congestion.clone();
    congestion.map_or(Ok(()), |congestion| congestion.choose().map_err(Failure::usage))
}

fn run(cli: Cli) -> Result<()> {
    let global = &cli.global;
    use_loops(global)?;
    has_json(&cli)?;
    match cli.command {
        Command::Serve(mut args) => {
            args.json |= cli.json;
            serve::run(*args, global)
        }
        #[cfg(unix)]
        Command::Status(mut args) => {
            args.json |= cli.json;
            steer::status(&args, global.verbose > 0)
        }
        #[cfg(unix)]
        Command::Top(args) => steer::top::run(&args),
        #[cfg(unix)]
        Command::Reload(args) => steer::reload(&args),
        #[cfg(unix)]
        Command::Config(args) => steer::config(&args),
        #[cfg(unix)]
        Command::Ctl(args) => steer::ctl(&args),
        #[cfg(unix)]
        Command::Demo(args) => farblock_demo::run(&args, global),
        #[cfg(unix)]
        Command::Ui(args) => farblock_ui::run(&args, cli.json),
        #[cfg(unix)]
        Command::Fleet(args) => farblock_fleet_command::run(&args, cli.json, global),
        Command::Discover(mut args) => {
            args.json |= cli.json;
            discover::run(&args, global)
        }
        Command::Doctor(args) => doctor::run(&args, cli.json, global),
        Command::Id(mut args) => {
            args.json |= cli.json;
            identify::run(&args, global)
        }
        Command::Read(mut args) => {
            args.json |= cli.json;
            transfer::read(&args, global)
        }
        Command::Write(mut args) => {
            args.json |= cli.json;
            transfer::write(&args, global)
        }
        Command::Copy(mut args) => {
            args.json |= cli.json;
            transfer::copy(&args, global)
        }
        Command::Attach(mut args) => {
            args.json |= cli.json;
            attach::attach(&args, global)
        }
        Command::List(mut args) => {
            args.json |= cli.json;
            attach::list(&args)
        }
        Command::Authenticate(args) => attach::authenticate(&args),
        Command::Detach(args) => attach::detach(&args),
        Command::Attachment(args) => attach::part(args, global),
        #[cfg(target_os = "linux")]
        Command::Watchdog => unreachable!("started above"),
        Command::Service(args) => attach::service::run(&args, global),
        Command::Keys(args) => keys::run(&args),
        Command::Whoami(args) => whoami::run(args.json || cli.json),
        Command::Completions(args) => completions::run(&args),
        Command::Bench(args) => bench::run(*args, cli.json, global),
    }
}
