//! A block device of the kernel's NBD client.

use super::super::super::folder::Folder;
use super::super::super::rights::Rights;
use super::super::super::settings::Settings;
use super::super::{Start, StopError, is_root, sentence, system};
use super::root::{Answer, DeviceRequest, Root};
use farblock_attach::nbd::kernel::{self, Connections};
use farblock_attach::nbd::{Address, Server};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::path::Path;

/// The default maximum number of connections for a device.
const MAX_DEFAULT_CONNECTIONS: usize = 4;
/// The maximum number of connections for a device: a message to the privileged process carries at
/// most this many descriptors.
const MAX_CONNECTIONS: usize = 64;

/// Checks that this process can create NBD devices. The error states the reason.
pub(in super::super) fn available() -> Result<(), String> {
    if !is_root() {
        return Err("only root can create NBD devices".to_owned());
    }
    if !Path::new("/sys/module/nbd").exists() && !Path::new("/sys/block/nbd0").exists() {
        return Err("the kernel has not loaded its NBD client: run 'modprobe nbd'".to_owned());
    }
    Ok(())
}

/// The address of a server without a device, if the user names none.
pub(super) fn usual_address(folder: &Folder) -> Address {
    Address::Unix(folder.path("nbd.sock"))
}

/// Returns the device of a saved state, if it still exists and belongs to this attachment.
pub(super) fn found(state: &Value) -> Option<kernel::Device> {
    let device = kernel::Device { index: u32::try_from(state["index"].as_u64()?).ok()? };
    let backend = state["backend"].as_str()?;
    let is_ours = system(&device.path(), "backend").as_deref() == Some(backend);
    (is_ours && system(&device.path(), "pid").is_some()).then_some(device)
}

pub(super) struct Device {
    device: kernel::Device,
    rights: Rights<Root>,
}

impl Device {
    /// Creates a device, or gives new connections to an existing one.
    pub(super) fn connect(
        server: &Server,
        start: &Start<'_>,
        before: Option<kernel::Device>,
    ) -> Result<Device, String> {
        let count = match start.settings.threads() {
            0 => farblock_reactor::allowance::loops().min(MAX_DEFAULT_CONNECTIONS),
            threads => threads.min(MAX_CONNECTIONS),
        };
        let made = Connections::new(server, count).map_err(sentence)?;
        let rights = Rights::new(start.broker.as_ref(), Root::new(start.folder));
        let Connections { sockets, bytes, block_size, flags } = made;
        let request = match before {
            Some(device) => DeviceRequest::Reconnect { index: device.index },
            None => DeviceRequest::Connect { bytes, block_size, flags },
        };
        let device = match (ask(&rights, request, sockets)?, before) {
            (Answer::Connected(index), _) => kernel::Device { index },
            (_, Some(device)) => device,
            _ => return Err("the kernel created no device".to_owned()),
        };
        Ok(Device { device, rights })
    }

    pub(super) fn path(&self) -> String {
        self.device.path().display().to_string()
    }

    pub(super) fn state(&self) -> Value {
        json!({ "index": self.device.index, "backend": system(&self.device.path(), "backend") })
    }

    pub(super) fn users(&self) -> Vec<String> {
        match self.ask(DeviceRequest::Users { index: self.device.index }) {
            Ok(Answer::Users(users)) => users,
            Ok(_) => Vec::new(),
            // Without an answer, assume that the device is in use.
            Err(sentence) => vec![sentence],
        }
    }

    pub(super) fn resize(&self, bytes: u64) -> Result<(), String> {
        self.ask(DeviceRequest::Resize { index: self.device.index, bytes }).map(drop)
    }

    pub(super) fn disconnect(&self) -> Result<(), StopError> {
        let ended = self.ask(DeviceRequest::Disconnect { index: self.device.index });
        ended.map(drop).map_err(StopError::Failed)
    }

    fn ask(&self, request: DeviceRequest) -> Result<Answer, String> {
        ask(&self.rights, request, Vec::new())
    }
}

fn ask(
    rights: &Rights<Root>,
    request: DeviceRequest,
    sockets: Vec<OwnedFd>,
) -> Result<Answer, String> {
    match rights.ask(request, sockets)?.0 {
        Answer::Refused(sentence) => Err(sentence),
        answer => Ok(answer),
    }
}

/// The privileged operations that the broker performs for a server with a device.
pub(in super::super) fn root(folder: &Folder) -> Root {
    Root::new(folder)
}

/// Whether to create a device, which needs privileges.
pub(in super::super) fn takes_rights(settings: &Settings) -> bool {
    super::wants_device(settings) && available().is_ok()
}

/// Disconnects a device whose server is dead.
pub(in super::super) fn clean_up(state: &Value, force: bool) -> Result<(), StopError> {
    let Some(device) = found(state) else { return Ok(()) };
    StopError::if_used(super::super::users_of(&device.path()), force)?;
    kernel::disconnect(device).map_err(|error| StopError::Failed(sentence(error)))
}
