//! Attaches a disk through the kernel's own NVMe host (`/dev/nvme-fabrics`). This process only
//! reports the state of the kernel's connections.

use super::super::nvme_fabrics::{self, Connection, Options, Secret};
use super::super::record::Recorder;
use super::super::status::{AttachmentState, Use, UseKind};
use super::{Attached, Condition, Start, StopError, sentence, system, users_of};
use farblock_block::Geometry;
use farblock_host::disk::{KnownNamespace, Policy, Record};
use farblock_host::key_file;
use farblock_host::url::Url;
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";
/// The kernel's unit for sizes, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The kernel's connections, one for each URL.
struct Nvme {
    connections: Vec<Connection>,
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let before = start.predecessor.as_ref().map(|predecessor| connections_in(&predecessor.state));
    if let Some(connections) = before.filter(|connections| !connections.is_empty()) {
        return Ok(Box::new(Nvme { connections }));
    }
    let mut nvme = Nvme { connections: Vec::new() };
    match nvme.connect(start) {
        Ok(()) => Ok(Box::new(nvme)),
        Err(sentence) => {
            for connection in &nvme.connections {
                if let Err(error) = connection.disconnect(false) {
                    tracing::warn!("{error}");
                }
            }
            Err(sentence)
        }
    }
}

impl Nvme {
    fn connect(&mut self, start: &Start<'_>) -> Result<(), String> {
        for url in &start.settings.urls {
            let options = options(start, url)?;
            self.connections.push(nvme_fabrics::connect(&options).map_err(sentence)?);
            if let Some(policy) = start.settings.iopolicy {
                set_policy(&options.nqn, policy)?;
            }
        }
        let device = self.device();
        if let Some(uuid) = start.settings.uuid {
            let found = system(&device, "uuid").and_then(|text| text.parse().ok());
            if found != Some(uuid) {
                let device = device.display();
                return Err(format!("{device} does not have the UUID {uuid}"));
            }
        }
        record(start, &device)?;
        match self.connections.iter().find(|connection| connection.device != device) {
            Some(other) => Err(format!(
                "the kernel shows {} and {} instead of one disk with two paths (it has \
                 nvme_core.multipath=N, or these are two disks): give one URL",
                device.display(),
                other.device.display()
            )),
            None => Ok(()),
        }
    }

    fn device(&self) -> PathBuf {
        self.connections[0].device.clone()
    }

    fn geometry(&self) -> Geometry {
        let device = self.device();
        let number = |attribute| system(&device, attribute).and_then(|text| text.parse().ok());
        let block_size = number("queue/logical_block_size").unwrap_or(SECTOR_BYTES);
        let bytes = number("size").unwrap_or(0) * SECTOR_BYTES;
        let block_size = u32::try_from(block_size).unwrap_or(512).max(1);
        let mut geometry = Geometry::new(block_size, bytes / u64::from(block_size));
        geometry.read_only = number("ro") == Some(1);
        geometry
    }
}

/// Records the namespace's identity. Fails if another attachment on this machine writes to it.
fn record(start: &Start<'_>, device: &Path) -> Result<(), String> {
    let id = |attribute| system(device, attribute)?.parse::<Uuid>().ok().map(Uuid::into_bytes);
    let known = KnownNamespace { uuid: id("uuid"), nguid: id("nguid"), ..Default::default() };
    match known.is_named() {
        true => Recorder::new(start.folder, start.settings, false).namespace(&known),
        false => Ok(()),
    }
}

/// Converts a URL and the settings to the kernel's options, with times in whole seconds.
fn options(start: &Start<'_>, url: &Url) -> Result<Options, String> {
    let settings = start.settings;
    let nqn = url.subsystem.as_deref().ok_or_else(|| format!("{url} names no subsystem"))?;
    let nsid = url.namespace.unwrap_or(1);
    let connection = settings.disk_options().connection.with_url(url);
    let identity = connection.identity();
    let limit = |time: Option<Duration>| time.map_or(-1, |time| whole(time).cast_signed());
    Ok(Options {
        hostnqn: Some(identity.nqn),
        hostid: Some(identity.id.to_string()),
        keep_alive_tmo: settings.keep_alive.map(whole),
        reconnect_delay: settings.reconnect_delay.map(whole),
        ctrl_loss_tmo: settings.ctrl_loss_timeout.map(|timeout| limit(timeout.0)),
        fast_io_fail_tmo: settings.fast_io_fail_timeout.map(|timeout| limit(timeout.0)),
        nr_io_queues: settings.threads.map(u32::from),
        hdr_digest: connection.tcp.header_digest,
        data_digest: connection.tcp.data_digest,
        dhchap_secret: secret(connection.dhchap_secret.as_deref())?,
        dhchap_ctrl_secret: secret(connection.dhchap_ctrl_secret.as_deref())?,
        ..Options::new(resolve(url)?, url.port_or_default(), nqn, nsid)
    })
}

/// Reads the secret from its file. The kernel stores the secret and does not read the file again.
fn secret(path: Option<&Path>) -> Result<Option<Secret>, String> {
    let Some(path) = path else { return Ok(None) };
    Ok(Some(Secret::new(key_file::read(path)?.swap_remove(0).text())))
}

fn whole(time: Duration) -> u32 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned())
}

fn resolve(url: &Url) -> Result<IpAddr, String> {
    let found = (url.host.as_str(), url.port_or_default()).to_socket_addrs();
    let address = found.map_err(|error| format!("{}: {}", url.host, sentence(error)))?.next();
    address.map(|address| address.ip()).ok_or_else(|| format!("{} has no address", url.host))
}

/// Sets the kernel's path selection policy for a subsystem.
fn set_policy(nqn: &str, policy: Policy) -> Result<(), String> {
    for entry in fs::read_dir(SUBSYSTEMS).into_iter().flatten().flatten() {
        let folder = entry.path();
        let shown = fs::read_to_string(folder.join("subsysnqn")).unwrap_or_default();
        if shown.trim_end() == nqn {
            let file = folder.join("iopolicy");
            return fs::write(&file, policy.to_string()).map_err(|error| {
                format!("this kernel has no I/O policy {policy}: {}", sentence(error))
            });
        }
    }
    Err(format!("the kernel does not list {nqn} in {SUBSYSTEMS}"))
}

/// Converts a connection to its saved form, which [`connections_in`] reads.
fn saved(connection: &Connection) -> Value {
    json!({
        "instance": connection.instance,
        "nqn": connection.nqn,
        "nsid": connection.nsid,
        "device": connection.device,
    })
}

/// The connections in a saved state that still exist.
fn connections_in(state: &Value) -> Vec<Connection> {
    let one = |entry: &Value| {
        let instance = u32::try_from(entry["instance"].as_u64()?).ok()?;
        let nsid = u32::try_from(entry["nsid"].as_u64()?).ok()?;
        let device = Path::new(entry["device"].as_str()?);
        Connection::find(instance, entry["nqn"].as_str()?, nsid, device).ok()
    };
    state.as_array().into_iter().flatten().filter_map(one).collect()
}

impl From<nvme_fabrics::Error> for StopError {
    fn from(error: nvme_fabrics::Error) -> StopError {
        match error {
            nvme_fabrics::Error::InUse(_, users) if !users.is_empty() => {
                StopError::InUse(users.iter().map(ToString::to_string).collect())
            }
            other => StopError::Failed(sentence(other)),
        }
    }
}

impl Attached for Nvme {
    fn used(&self) -> Use {
        let path = self.device().display().to_string();
        Use { kind: UseKind::Device, path, behind: Some("the kernel's host".to_owned()) }
    }

    fn condition(&self) -> Option<Condition> {
        let states: Vec<_> = self.connections.iter().map(Connection::state).collect();
        let is_live = |state: &&Option<String>| state.as_deref() == Some("live");
        let live = states.iter().filter(is_live).count();
        let gone = states.iter().all(Option::is_none);
        let state = match live {
            _ if live == states.len() => AttachmentState::Live,
            0 if gone => AttachmentState::Failed,
            0 => AttachmentState::Reconnecting,
            _ => AttachmentState::Degraded,
        };
        let trouble = self.connections.iter().zip(&states).find(|(_, state)| !is_live(state));
        let trouble = trouble.map(|(connection, state)| {
            let state = state.as_deref().unwrap_or("removed");
            format!("the kernel's nvme{} is {state}", connection.instance)
        });
        Some(Condition { state, trouble, geometry: self.geometry() })
    }

    fn state(&self) -> Value {
        self.connections.iter().map(saved).collect()
    }

    fn users(&self) -> Vec<String> {
        users_of(&self.device())
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        disconnect(&self.connections, force)
    }
}

/// Disconnects all connections that still exist.
fn disconnect(connections: &[Connection], force: bool) -> Result<(), StopError> {
    for connection in connections {
        match connection.disconnect(force) {
            Ok(()) | Err(nvme_fabrics::Error::NoConnection(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Disconnects the connections of a dead server.
pub(super) fn clean_up(state: &Value, force: bool) -> Result<(), StopError> {
    disconnect(&connections_in(state), force)
}
