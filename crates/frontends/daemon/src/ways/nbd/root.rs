//! Operations on a device of the kernel's NBD client that need root's rights.

use super::super::super::folder::Folder;
use super::super::super::rights::Privileged;
use super::super::{sentence, system, users_of};
use farblock_attach::nbd::kernel::{self, Connections, Device, Options};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The time for which I/O waits for the next server after a server died.
const WAIT: Duration = Duration::from_secs(24 * 3600);
const IDENTIFIER: &str = "farblock-";

/// Requests for operations on a device. The sockets for the kernel may be attached to a request. No
/// request has an effect on another attachment's device.
#[derive(Serialize, Deserialize)]
pub(in super::super) enum DeviceRequest {
    Connect { bytes: u64, block_size: u32, flags: u16 },
    Reconnect { index: u32 },
    Resize { index: u32, bytes: u64 },
    Disconnect { index: u32 },
    Users { index: u32 },
}

#[derive(Serialize, Deserialize)]
pub(in super::super) enum Answer {
    /// The device's index.
    Connected(u32),
    Users(Vec<String>),
    Done,
    Refused(String),
}

/// Performs the operations with root's rights.
pub(in super::super) struct Root {
    identifier: String,
    /// The index of this disk's device, and whether the kernel shows the device's owner in sysfs
    /// (since Linux 5.14).
    ours: Option<(u32, bool)>,
}

impl Root {
    pub(super) fn new(folder: &Folder) -> Root {
        Root { identifier: format!("{IDENTIFIER}{}", folder.name()), ours: None }
    }

    fn options(&self) -> Options {
        Options {
            dead_connection_timeout: WAIT,
            identifier: Some(self.identifier.clone()),
            ..Options::default()
        }
    }

    /// Returns the device, if it belongs to this disk.
    fn own(&mut self, index: u32) -> Result<Device, String> {
        let device = Device { index };
        let is_ours = match self.ours {
            Some((ours, false)) => ours == index,
            // Check at each request: the device with this index may belong to another disk by now.
            _ => system(&device.path(), "backend").as_ref() == Some(&self.identifier),
        };
        if !is_ours {
            return Err(format!("{} is not this disk's device", device.path().display()));
        }
        self.ours.get_or_insert((index, true));
        Ok(device)
    }

    fn change(&mut self, request: DeviceRequest, sockets: Vec<OwnedFd>) -> Result<Answer, String> {
        let options = self.options();
        let done = match request {
            DeviceRequest::Connect { .. } if self.ours.is_some() => {
                return Err("this disk already has a device".to_owned());
            }
            DeviceRequest::Connect { bytes, block_size, flags } => {
                let connections = Connections { sockets, bytes, block_size, flags };
                let device = kernel::connect_to(&connections, &options).map_err(sentence)?;
                let is_shown = system(&device.path(), "backend").is_some();
                self.ours = Some((device.index, is_shown));
                return Ok(Answer::Connected(device.index));
            }
            DeviceRequest::Users { index } => {
                return Ok(Answer::Users(users_of(&self.own(index)?.path())));
            }
            DeviceRequest::Reconnect { index } => {
                kernel::reconnect_to(&sockets, self.own(index)?, &options)
            }
            DeviceRequest::Resize { index, bytes } => {
                kernel::resize(self.own(index)?, bytes, Some(&self.identifier))
            }
            DeviceRequest::Disconnect { index } => {
                let device = self.own(index)?;
                self.ours = None;
                kernel::disconnect(device)
            }
        };
        done.map(|()| Answer::Done).map_err(sentence)
    }
}

impl Privileged for Root {
    type Request = DeviceRequest;
    type Answer = Answer;

    fn carry_out(
        &mut self,
        request: DeviceRequest,
        sockets: Vec<OwnedFd>,
    ) -> (Answer, Option<OwnedFd>) {
        (self.change(request, sockets).unwrap_or_else(Answer::Refused), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_other_disks_are_not_touched() {
        let folder = Folder(std::path::PathBuf::from("/run/farblock/none-that-is-there"));
        let mut root = Root::new(&folder);
        for request in [
            DeviceRequest::Reconnect { index: 9999 },
            DeviceRequest::Resize { index: 9999, bytes: 1 },
            DeviceRequest::Disconnect { index: 9999 },
            DeviceRequest::Users { index: 9999 },
        ] {
            let (Answer::Refused(sentence), None) = root.carry_out(request, Vec::new()) else {
                panic!("a request for a device that is not this disk's was carried out")
            };
            assert!(sentence.contains("is not this disk's device"), "{sentence}");
        }
    }
}
