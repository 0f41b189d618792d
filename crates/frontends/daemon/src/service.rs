//! `farblock service`: a Windows service that attaches disks at boot.

#[cfg(windows)]
mod registration;
#[cfg(windows)]
mod restorer;
#[cfg(windows)]
mod run;

use super::args::{ServiceArgs, ServiceCommand};
use farblock_program::args::Global;
#[cfg(not(windows))]
use farblock_program::error::Failure;
use farblock_program::error::Result;

/// The service's name, with which users start and stop it.
#[cfg(windows)]
const NAME: &str = "farblock";

/// Runs `farblock service`.
#[cfg(windows)]
pub fn run(args: &ServiceArgs, global: &Global) -> Result<()> {
    match args.command {
        ServiceCommand::Install => registration::install(),
        ServiceCommand::Remove => registration::remove(),
        ServiceCommand::Run => run::run(global),
    }
}

/// Opens the log file of the service, because a service has no standard error.
#[cfg(windows)]
pub fn log(args: &ServiceArgs) -> Option<std::fs::File> {
    match args.command {
        ServiceCommand::Run => run::log(),
        ServiceCommand::Install | ServiceCommand::Remove => None,
    }
}

/// Returns an error: services exist only on Windows.
#[cfg(not(windows))]
pub fn run(args: &ServiceArgs, _: &Global) -> Result<()> {
    let (ServiceCommand::Install | ServiceCommand::Remove | ServiceCommand::Run) = args.command;
    Err(Failure::usage(
        "services are only for Windows: with systemd, `systemctl enable --now \
         farblock-attach@NAME` attaches the disk of /etc/farblock/attach.d/NAME.toml at boot, once \
         contrib/systemd/farblock-attach@.service is in /etc/systemd/system",
    ))
}

/// Returns `None`: this system has no service log.
#[cfg(not(windows))]
pub fn log(_: &ServiceArgs) -> Option<std::fs::File> {
    None
}
