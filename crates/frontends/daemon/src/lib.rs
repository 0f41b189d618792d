//! `farblock attach`, `list`, `authenticate` and `detach`: serve remote disks as disks of this
//! machine.
//!
//! An attachment has up to three processes. The command writes the settings, starts the supervisor,
//! and waits until the disk is usable. The [`supervisor`] starts the server, and restarts it if it
//! dies. The [`server`] connects to the disk and offers it to programs: through ublk, NBD, FUSE or
//! another of the [`ways`]. The processes share state through the attachment's [`folder`].
//!
//! Attachments work on Linux and Windows. On other systems the commands return an error. [`system`]
//! hides the differences between Linux and Windows.

pub mod args;

#[cfg(target_os = "linux")]
mod adopt;
#[cfg(any(target_os = "linux", windows))]
mod all;
#[cfg(any(target_os = "linux", windows))]
mod authenticate;
#[cfg(any(target_os = "linux", windows))]
mod claim;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(any(target_os = "linux", windows))]
mod connect;
#[cfg(any(target_os = "linux", windows))]
mod control;
#[cfg(any(target_os = "linux", windows))]
mod detach;
#[cfg(any(target_os = "linux", windows))]
mod examined;
#[cfg(any(target_os = "linux", windows))]
mod folder;
#[cfg(any(target_os = "linux", windows))]
mod identify;
#[cfg(any(target_os = "linux", windows))]
mod leftover;
#[cfg(any(target_os = "linux", windows))]
mod list;
#[cfg(any(target_os = "linux", windows))]
mod messages;
#[cfg(any(target_os = "linux", windows))]
mod metrics;
#[cfg(any(target_os = "linux", windows))]
mod more_paths;
#[cfg(target_os = "linux")]
pub mod nvme_fabrics;
#[cfg(any(target_os = "linux", windows))]
mod record;
#[cfg(target_os = "linux")]
mod release;
#[cfg(target_os = "linux")]
mod rights;
#[cfg(any(target_os = "linux", windows))]
mod server;
pub mod service;
#[cfg(any(target_os = "linux", windows))]
mod settings;
#[cfg(target_os = "linux")]
mod shutdown;
#[cfg(any(target_os = "linux", windows))]
mod start;
#[cfg(any(target_os = "linux", windows))]
mod status;
#[cfg(any(target_os = "linux", windows))]
mod supervisor;
#[cfg(target_os = "linux")]
mod swap;
#[cfg(any(target_os = "linux", windows))]
mod system;
#[cfg(any(target_os = "linux", windows))]
mod ways;

#[cfg(any(target_os = "linux", windows))]
pub use {
    authenticate::run as authenticate,
    detach::run as detach,
    examined::{Examined, Way, examined, no_room},
    list::names,
    list::run as list,
    start::part,
    start::run as attach,
};

#[cfg(target_os = "linux")]
pub use examined::{Brief, brief, watch};

/// The functions that query the loop driver for the backing files of loop devices.
#[cfg(target_os = "linux")]
pub const ABOUT_LOOP_DEVICES: farblock_frontend::users::loops::Ask = ways::ASK_ABOUT_LOOPS;

#[cfg(any(target_os = "linux", windows))]
use connect::connect;

/// The way to attach that `--as auto` chooses on this machine, and the reason.
#[cfg(target_os = "linux")]
pub fn choice() -> String {
    let candidates = ways::candidates(&settings::Settings::default());
    let why = candidates.first().map(|it| it.why.trim_start_matches("chose")).unwrap_or_default();
    format!("attach would choose{why}")
}

#[cfg(not(any(target_os = "linux", windows)))]
pub use elsewhere::{attach, authenticate, detach, list, names, part};

/// Returns an error: this system does not support attachments.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn watch(
    _: Option<&std::path::Path>,
) -> farblock_program::error::Result<farblock_admin_api::ReadAttached> {
    Err(farblock_program::error::Failure::usage(
        "attachments work only on Linux and Windows: leave out --attached",
    ))
}

#[cfg(not(any(target_os = "linux", windows)))]
mod elsewhere {
    use super::args::{AttachArgs, AuthenticateArgs, DetachArgs, ListArgs, PartArgs};
    use farblock_program::args::Global;
    use farblock_program::error::{Failure, Result};

    fn not_here() -> Result<()> {
        Err(Failure::usage(
            "attachments work only on Linux and Windows: use `farblock read`, `write` and `copy` \
             here",
        ))
    }

    pub fn attach(_: &AttachArgs, _: &Global) -> Result<()> {
        not_here()
    }

    pub fn list(_: &ListArgs) -> Result<()> {
        not_here()
    }

    pub fn names(_: Option<&std::path::Path>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    pub fn authenticate(_: &AuthenticateArgs) -> Result<()> {
        not_here()
    }

    pub fn detach(_: &DetachArgs) -> Result<()> {
        not_here()
    }

    pub fn part(_: PartArgs, _: &Global) -> Result<()> {
        not_here()
    }
}
