//! Offers a disk as a block device of the kernel's ublk driver.
//!
//! The device outlives the server: new I/O, and I/O that the dead server did not answer, waits for
//! the next server.

use super::super::status::{Use, UseKind};
use super::{Attached, Start, StopError, sentence, users_of};
use farblock_attach::ublk::{self, Config, Server};
use serde_json::{Value, json};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

const CONTROL: &str = "/dev/ublk-control";

struct Ublk {
    server: Server,
}

/// Checks that this process can use the kernel's driver. The error states the reason.
pub(super) fn available() -> Result<(), String> {
    match File::options().read(true).write(true).open(CONTROL) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("the kernel has no ublk driver".to_owned())
        }
        Err(error) => Err(format!("no access to the ublk driver: {}", sentence(error))),
    }
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let config = Config {
        queues: u16::try_from(settings.threads()).unwrap_or(u16::MAX),
        engine: settings.engine(),
        polling: settings.spin(),
        read_only: settings.read_only,
        identifier: start.name.clone(),
        // Do not wait: connecting the disk has already waited until the dead server's commands have
        // ended.
        settle: Duration::ZERO,
        ..Config::default()
    };
    let before = start.predecessor.as_ref().and_then(|predecessor| device_in(&predecessor.state));
    let server = match before {
        Some(id) => Server::recover(id, &config, start.namespace()?),
        None => Server::start(&config, start.namespace()?),
    };
    Ok(Box::new(Ublk { server: server.map_err(sentence)? }))
}

/// The device in a saved state, if it still exists. [`Server::recover`] checks that it belongs to
/// this disk.
fn device_in(state: &Value) -> Option<u32> {
    let id = u32::try_from(state["id"].as_u64()?).ok()?;
    Path::new(&format!("/sys/block/ublkb{id}")).exists().then_some(id)
}

impl From<ublk::StopError> for StopError {
    fn from(error: ublk::StopError) -> StopError {
        match error {
            ublk::StopError::InUse(_, users) if !users.is_empty() => {
                StopError::InUse(users.iter().map(ToString::to_string).collect())
            }
            other => StopError::Failed(sentence(other)),
        }
    }
}

impl Attached for Ublk {
    fn used(&self) -> Use {
        Use { kind: UseKind::Device, path: self.server.path().display().to_string(), behind: None }
    }

    fn state(&self) -> Value {
        json!({ "id": self.server.id() })
    }

    fn users(&self) -> Vec<String> {
        users_of(self.server.path())
    }

    fn resized(&mut self, _: u64) -> Result<(), String> {
        // Only this call makes the kernel notify users of the new size.
        self.server.resized().map_err(sentence)
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        match self.server.stop(force) {
            Err(ublk::StopError::Failed(error)) => {
                tracing::error!("an event loop of the server failed: {error}");
                Ok(())
            }
            stopped => Ok(stopped?),
        }
    }
}

/// Removes a device whose server is dead.
pub(super) fn clean_up(state: &Value, force: bool) -> Result<(), StopError> {
    device_in(state).map_or(Ok(()), |id| Ok(ublk::detach(id, force)?))
}
