//! Offers a disk through an NBD server and, for root on Linux, as a block device of the kernel's
//! NBD client.
//!
//! The device outlives the server: its I/O waits until the next server gives it new connections.
//! The listening socket does not: clients are disconnected, and find the next server at the same
//! address.

#[cfg(target_os = "linux")]
mod device;
#[cfg(not(target_os = "linux"))]
#[path = "nbd/no_device.rs"]
mod device;
#[cfg(target_os = "linux")]
mod root;

use super::super::settings::Settings;
use super::super::status::{Use, UseKind};
use super::{Attached, Start, StopError, until_free};
use device::Device;
#[cfg(target_os = "linux")]
pub(super) use device::{
    available as device_available, clean_up, root, takes_rights as takes_device_rights,
};
use farblock_attach::nbd::{Address, Config, ListenError, Server, StartError};
use serde_json::{Value, json};
use std::sync::Arc;

/// The well-known NBD port.
const PORT: u16 = 10809;

struct Nbd {
    server: Option<Server>,
    device: Option<Device>,
    export: String,
    /// The reason why a wanted block device is missing.
    instead: Option<String>,
}

/// Whether to create a block device, if the kernel can.
pub(super) fn wants_device(settings: &Settings) -> bool {
    !settings.no_device && settings.socket.is_none() && settings.listen.is_none()
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let wants_device = wants_device(settings);
    let before =
        start.predecessor.as_ref().and_then(|predecessor| device::found(&predecessor.state));
    // If the first server had no device, do not create one now, even if the kernel has loaded the
    // NBD module since.
    let had_none = start.predecessor.as_ref().is_some_and(|it| it.state["index"].is_null());
    let available = device::available();
    let with_device = before.is_some() || wants_device && !had_none && available.is_ok();
    let instead = match available {
        Err(why) if wants_device && cfg!(target_os = "linux") => {
            Some(format!("no block device: {why}"))
        }
        _ => None,
    };
    let listen = match (settings.listen, &settings.socket) {
        _ if with_device => None,
        (Some(listen), _) => Some(Address::Tcp(start.address(listen.with_port(PORT)))),
        (None, Some(path)) => Some(Address::Unix(path.clone())),
        (None, None) => Some(device::usual_address(start.folder)),
    };
    let mut config = Config::new(listen);
    (config.engine, config.polling) = (settings.engine(), settings.spin());
    config.threads = settings.threads();
    config.read_only = settings.read_only;
    let namespace = start.namespace()?;
    let is_busy = |error: &StartError| matches!(error, StartError::Listen(ListenError::InUse(_)));
    let server = until_free(|| Server::start(&config, Arc::clone(&namespace)), is_busy)?;
    let device = with_device.then(|| Device::connect(&server, start, before)).transpose()?;
    Ok(Box::new(Nbd { server: Some(server), device, export: config.export, instead }))
}

impl Attached for Nbd {
    fn used(&self) -> Use {
        if let Some(device) = &self.device {
            let behind = Some("the kernel's client".to_owned());
            return Use { kind: UseKind::Device, path: device.path(), behind };
        }
        let address = self.server.as_ref().and_then(Server::address);
        let path = address.map(|address| address.uri(&self.export)).unwrap_or_default();
        Use { kind: UseKind::Url, path, behind: self.instead.clone() }
    }

    fn state(&self) -> Value {
        if let Some(device) = &self.device {
            return device.state();
        }
        match self.server.as_ref().and_then(Server::address) {
            Some(Address::Tcp(address)) => json!({ "address": address }),
            _ => Value::Null,
        }
    }

    fn users(&self) -> Vec<String> {
        if let Some(device) = &self.device {
            return device.users();
        }
        let clients = self.server.as_ref().map(Server::clients).unwrap_or_default();
        clients.into_iter().map(|client| format!("an NBD client is connected ({client})")).collect()
    }

    fn resized(&mut self, bytes: u64) -> Result<(), String> {
        // Resize the server before the device: a program that sees the new end may read there at
        // once.
        self.server.iter().for_each(Server::resized);
        self.device.as_ref().map_or(Ok(()), |device| device.resize(bytes))
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        StopError::if_used(self.users(), force)?;
        if let Some(device) = &self.device {
            device.disconnect()?;
            self.device = None;
        }
        if let Some(server) = self.server.take()
            && let Err(error) = server.stop()
        {
            tracing::error!("an event loop of the server failed: {error}");
        }
        Ok(())
    }
}
