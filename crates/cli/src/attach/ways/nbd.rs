//! An NBD server, and for root a block device of the kernel's own NBD client, where that is.
//!
//! The device outlives the server: what it is asked for waits until a successor gives it new
//! connections. The socket does not: programs that are connected see it close.

use super::super::status::{Kind, Use};
use super::{Attached, Start, StopError, is_root, sentence, system, users_of};
use farblock_attach::nbd::kernel::{self, Device, Options};
use farblock_attach::nbd::{Address, Config, Server};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// How long I/O waits for a successor of a dead server.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// Connections of a device that is not told how many.
const MAX_DEFAULT_CONNECTIONS: usize = 4;
const IDENTIFIER: &str = "farblock-";

struct Nbd {
    server: Option<Server>,
    device: Option<Device>,
    export: String,
}

/// Whether the kernel makes devices for us, or why not.
pub(super) fn device_available() -> Result<(), String> {
    if !is_root() {
        return Err("only root makes NBD devices".to_owned());
    }
    if !Path::new("/sys/module/nbd").exists() && !Path::new("/sys/block/nbd0").exists() {
        return Err("the kernel has no NBD client now: 'modprobe nbd' loads it".to_owned());
    }
    Ok(())
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let wants_device =
        !settings.no_device && settings.socket.is_none() && settings.listen.is_none();
    let before = start.predecessor.as_ref().and_then(|predecessor| device_in(&predecessor.state));
    let with_device = before.is_some() || wants_device && device_available().is_ok();
    let listen = match (settings.listen, &settings.socket) {
        _ if with_device => None,
        (Some(address), _) => Some(Address::Tcp(address)),
        (None, Some(path)) => Some(Address::Unix(path.clone())),
        (None, None) => Some(Address::Unix(start.folder.path("nbd.sock"))),
    };
    let mut config = Config::new(listen);
    config.engine = settings.engine();
    config.threads = settings.threads();
    config.read_only = settings.read_only;
    let server = Server::start(&config, start.namespace()?).map_err(sentence)?;
    let mut nbd = Nbd { server: Some(server), device: None, export: config.export };
    if with_device {
        nbd.device = Some(nbd.connect(start, before)?);
    }
    Ok(Box::new(nbd))
}

impl Nbd {
    /// Makes a device, or gives the one that there is new connections.
    fn connect(&self, start: &Start<'_>, before: Option<Device>) -> Result<Device, String> {
        let server = self.server.as_ref().expect("it runs");
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
            Some(device) => kernel::reconnect(server, device, &options).map(|()| device),
            None => kernel::connect(server, &options),
        };
        device.map_err(sentence)
    }
}

/// The device that a state is about, if it is still there and no other's.
fn device_in(state: &Value) -> Option<Device> {
    let device = Device { index: u32::try_from(state["index"].as_u64()?).ok()? };
    let backend = state["backend"].as_str()?;
    let is_ours = system(&device.path(), "backend").as_deref() == Some(backend);
    (is_ours && system(&device.path(), "pid").is_some()).then_some(device)
}

impl Attached for Nbd {
    fn used(&self) -> Use {
        if let Some(device) = self.device {
            let path = device.path().display().to_string();
            return Use {
                kind: Kind::Device,
                path,
                behind: Some("the kernel's client".to_owned()),
            };
        }
        let address = self.server.as_ref().and_then(Server::address);
        let path = address.map(|address| address.uri(&self.export)).unwrap_or_default();
        Use { kind: Kind::Url, path, behind: None }
    }

    fn state(&self) -> Value {
        let backend = self.device.and_then(|device| system(&device.path(), "backend"));
        json!({ "index": self.device.map(|device| device.index), "backend": backend })
    }

    fn users(&self) -> Vec<String> {
        if let Some(device) = self.device {
            return users_of(&device.path());
        }
        let clients = self.server.as_ref().map(Server::clients).unwrap_or_default();
        clients.into_iter().map(|client| format!("an NBD client is connected ({client})")).collect()
    }

    fn resized(&mut self, bytes: u64) -> Result<(), String> {
        self.server.iter().for_each(Server::resized);
        let told = self.device.map_or(Ok(()), |device| kernel::resize(device, bytes));
        told.map_err(sentence)
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        StopError::if_used(self.users(), force)?;
        if let Some(device) = self.device {
            let ended = kernel::disconnect(device);
            ended.map_err(|error| StopError::Failed(sentence(error)))?;
            self.device = None;
        }
        if let Some(server) = self.server.take()
            && let Err(error) = server.stop()
        {
            tracing::error!("an event loop had failed: {error}");
        }
        Ok(())
    }
}

/// Ends a device that nobody serves any more.
pub(super) fn clean_up(state: &Value, force: bool) -> Result<(), StopError> {
    let Some(device) = device_in(state) else { return Ok(()) };
    StopError::if_used(users_of(&device.path()), force)?;
    kernel::disconnect(device).map_err(|error| StopError::Failed(sentence(error)))
}
