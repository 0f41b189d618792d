//! Offers a disk through a socket for a virtual machine monitor, such as QEMU. The monitor keeps
//! the memory in which the server records the requests in flight. If the server dies, the monitor
//! reconnects, and the next server executes these requests.

use super::super::status::{Use, UseKind};
use super::{Attached, Start, StopError, sentence};
use farblock_attach::vhost_user::{Config, Server};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Maximum length of a serial number, in bytes.
const SERIAL_BYTES: usize = 20;

struct VhostUser {
    server: Option<Server>,
    socket: PathBuf,
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let socket = settings.socket.clone().unwrap_or_else(|| start.folder.path("vhost-user.sock"));
    let mut config = Config::new(socket.clone());
    (config.engine, config.polling) = (settings.engine(), settings.spin());
    config.queues = settings.threads();
    config.read_only = settings.read_only;
    config.serial = settings.serial.clone().unwrap_or_else(|| {
        let bytes = start.name.len().min(SERIAL_BYTES);
        start.name[..bytes].to_owned()
    });
    let server = Server::start(&config, start.namespace()?).map_err(sentence)?;
    if start.resume {
        // The guest may still use another size, which the previous server reported.
        server.resized();
    }
    Ok(Box::new(VhostUser { server: Some(server), socket }))
}

impl Attached for VhostUser {
    fn used(&self) -> Use {
        Use { kind: UseKind::Socket, path: self.socket.display().to_string(), behind: None }
    }

    fn state(&self) -> Value {
        json!({})
    }

    fn users(&self) -> Vec<String> {
        let monitor = self.server.as_ref().and_then(Server::monitor);
        let words = |monitor| format!("a virtual machine's monitor is connected ({monitor})");
        monitor.map(words).into_iter().collect()
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        StopError::if_used(self.users(), force)?;
        if let Some(server) = self.server.take()
            && let Err(error) = server.stop()
        {
            tracing::error!("an event loop of the server failed: {error}");
        }
        Ok(())
    }
}
