//! Offers a disk as a Windows disk through WinSpd's driver. When the server exits, Windows removes
//! the disk, and the next server creates a new one.

use super::super::status::{Use, UseKind};
use super::{Attached, Start, StopError, sentence};
use farblock_winspd::{Device, NOTICE, Options, Server};
use serde_json::Value;

struct WinSpd {
    server: Option<Server>,
}

/// Checks that WinSpd is installed. The error states the reason.
pub(super) fn available() -> Result<(), String> {
    Server::available().map_err(sentence)
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let mut options = Options::new(Device::Driver, &start.name);
    (options.engine, options.polling) = (settings.engine(), settings.spin());
    options.read_only = settings.read_only;
    let server = Server::start(&options, start.namespace()?).map_err(sentence)?;
    Ok(Box::new(WinSpd { server: Some(server) }))
}

impl Attached for WinSpd {
    fn used(&self) -> Use {
        let path = self.server.as_ref().map(Server::location).unwrap_or_default();
        // WinSpd's licence requires that users see this notice.
        Use { kind: UseKind::Device, path, behind: Some(NOTICE.to_owned()) }
    }

    fn state(&self) -> Value {
        Value::Null
    }

    /// Returns an empty list: Windows does not list a disk's users.
    fn users(&self) -> Vec<String> {
        Vec::new()
    }

    fn resized(&mut self, _: u64) -> Result<(), String> {
        Err("Windows reads a new size only when the disk is attached again".to_owned())
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        if let Some(server) = self.server.take()
            && let Err(error) = server.stop(force)
        {
            tracing::error!("an event loop of this disk, or its last flush, failed: {error}");
        }
        Ok(())
    }
}
