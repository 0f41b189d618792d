//! A block device of the kernel's NBD client.

use super::super::super::folder::Folder;
use super::super::{Start, StopError, is_root, sentence, system, users_of};
use farblock_attach::nbd::kernel::{self, Options};
use farblock_attach::nbd::{Address, Server};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// How long I/O waits for a successor of a dead server.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// Connections of a device that is not told how many.
const MAX_DEFAULT_CONNECTIONS: usize = 4;
const IDENTIFIER: &str = "farblock-";

/// Whether the kernel makes devices for us, or why not.
pub(in super::super) fn available() -> Result<(), String> {
    if !is_root() {
        return Err("only root makes NBD devices".to_owned());
    }
    if !Path::new("/sys/module/nbd").exists() && !Path::new("/sys/block/nbd0").exists() {
        return Err("the kernel has no NBD client now: 'modprobe nbd' loads it".to_owned());
    }
    Ok(())
}

/// Where a server without a device listens when nobody says so.
pub(super) fn usual_address(folder: &Folder) -> Address {
    Address::Unix(folder.path("nbd.sock"))
}

pub(super) struct Device(kernel::Device);

impl Device {
    /// The device that a state is about, if it is still there and no other's.
    pub(super) fn found(state: &Value) -> Option<Device> {
        let device = kernel::Device { index: u32::try_from(state["index"].as_u64()?).ok()? };
        let backend = state["backend"].as_str()?;
        let is_ours = system(&device.path(), "backend").as_deref() == Some(backend);
        (is_ours && system(&device.path(), "pid").is_some()).then_some(Device(device))
    }

    /// Makes a device, or gives the one that there is new connections.
    pub(super) fn connect(
        server: &Server,
        start: &Start<'_>,
        before: Option<Device>,
    ) -> Result<Device, String> {
        let connections = match start.settings.threads() {
            0 => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MAX_DEFAULT_CONNECTIONS),
            threads => threads,
        };
        let options = Options {
            connections,
            dead_connection_timeout: WAIT,
            identifier: Some(format!("{IDENTIFIER}{}", start.name)),
            ..Options::default()
        };
        let device = match before {
            Some(Device(device)) => kernel::reconnect(server, device, &options).map(|()| device),
            None => kernel::connect(server, &options),
        };
        device.map(Device).map_err(sentence)
    }

    pub(super) fn path(&self) -> String {
        self.0.path().display().to_string()
    }

    pub(super) fn state(&self) -> Value {
        json!({ "index": self.0.index, "backend": system(&self.0.path(), "backend") })
    }

    pub(super) fn users(&self) -> Vec<String> {
        users_of(&self.0.path())
    }

    pub(super) fn resize(&self, bytes: u64) -> Result<(), String> {
        kernel::resize(self.0, bytes).map_err(sentence)
    }

    pub(super) fn disconnect(&self) -> Result<(), StopError> {
        kernel::disconnect(self.0).map_err(|error| StopError::Failed(sentence(error)))
    }
}

/// Ends a device that nobody serves any more.
pub(in super::super) fn clean_up(state: &Value, force: bool) -> Result<(), StopError> {
    let Some(device) = Device::found(state) else { return Ok(()) };
    StopError::if_used(device.users(), force)?;
    device.disconnect()
}
