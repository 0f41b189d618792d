//! `farblock attach`, `list` and `detach`: remote disks as disks of this machine.
//!
//! Three processes have a part in an attachment. The command itself says what is wanted, starts the
//! second one, and waits until the disk can be used. The [`supervisor`] has a server run, and the
//! next one if that dies. The [`server`] connects and offers the disk one of the [`ways`]. What
//! they know of each other is in a [`folder`] of the attachment's own.
//!
//! It takes Linux. Elsewhere the commands say so.

pub(crate) mod args;

#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod detach;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod list;
#[cfg(target_os = "linux")]
mod messages;
#[cfg(target_os = "linux")]
mod notify;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod settings;
#[cfg(target_os = "linux")]
mod start;
#[cfg(target_os = "linux")]
mod status;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(target_os = "linux")]
mod ways;

#[cfg(target_os = "linux")]
pub(crate) use {detach::run as detach, list::run as list, start::part, start::run as attach};

#[cfg(target_os = "linux")]
use connect::connect;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{attach, detach, list, part};

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::args::{AttachArgs, DetachArgs, ListArgs, PartArgs};
    use crate::args::Global;
    use crate::error::{Failure, Result};

    fn not_here() -> Result<()> {
        Err(Failure::usage(
            "disks are attached on Linux only: `farblock read`, `write` and `copy` work here",
        ))
    }

    pub(crate) fn attach(_: &AttachArgs, _: &Global) -> Result<()> {
        not_here()
    }

    pub(crate) fn list(_: &ListArgs) -> Result<()> {
        not_here()
    }

    pub(crate) fn detach(_: &DetachArgs) -> Result<()> {
        not_here()
    }

    pub(crate) fn part(_: PartArgs, _: &Global) -> Result<()> {
        not_here()
    }
}
