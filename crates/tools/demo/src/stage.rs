//! The parts of a demonstration: the targets, the paths, and the disk over both paths.

use super::cable::Cable;
use super::parts::{Folder, Target};
use crate::error::{Failure, Result, os};
use farblock_admin_api::Status;
use farblock_admin_client::Client;
use farblock_host::disk::{DiskOptions, PathState, Policy};
use farblock_host::{Disk, HostId, Options, Url};
use farblock_program::args::Global;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const LEGS: [&str; 2] = ["left", "right"];
pub(super) const NQN: &str = "nqn.2026-11.org.farblock:demo";
/// The size of a leg in bytes. The mirror reserves one MiB of a leg.
const LEG_BYTES: u64 = 65 << 20;
const CONTROL: &str = "mirror.sock";
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The time after which the host gives up its disk. The demonstration never cuts both paths at
/// once, so this happens only if the mirror's target fails.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// The parts of a running demonstration. The order of the fields is the required drop order.
pub(super) struct Stage {
    pub(super) disk: Disk,
    pub(super) cables: Vec<Cable>,
    pub(super) dashboard: String,
    mirror: Target,
    legs: [Leg; 2],
    folder: Folder,
}

struct Leg {
    target: Option<Target>,
    image: PathBuf,
    address: SocketAddr,
    url: String,
}

impl Stage {
    pub(super) fn set(global: &Global) -> Result<Stage> {
        let folder = Folder::new()?;
        let legs = [Leg::new(&folder.path, LEGS[0])?, Leg::new(&folder.path, LEGS[1])?];
        let mirror = mirror(&folder.path, &legs)?;
        let cables = mirror.said.listening.iter().map(|listener| Cable::new(*listener));
        let cables = cables.collect::<Result<Vec<_>, _>>().map_err(|error| {
            Failure::run(format_args!("cannot open a port for a path: {}", os(&error)))
        })?;
        let disk = connect(&cables, global)?;
        let dashboard = mirror.said.dashboard.clone().unwrap_or_default();
        Ok(Stage { disk, cables, dashboard, mirror, legs, folder })
    }

    pub(super) fn kill(&mut self, leg: usize) {
        if let Some(mut target) = self.legs[leg].target.take() {
            target.kill();
        }
    }

    pub(super) fn start(&mut self, leg: usize) -> Result<()> {
        let Leg { image, address, .. } = &self.legs[leg];
        let target = leg_target(&self.folder.path, LEGS[leg], image, *address)?;
        self.legs[leg].target = Some(target);
        Ok(())
    }

    /// Whether a path is connected.
    pub(super) fn is_live(&self, path: usize) -> bool {
        self.disk.paths().get(path).is_some_and(|path| path.state == PathState::Live)
    }

    /// Whether the mirror runs without this leg.
    pub(super) fn is_out(&self, leg: usize) -> bool {
        let url = &self.legs[leg].url;
        self.standings().iter().any(|(name, state)| name == url && state == "out")
    }

    pub(super) fn is_in_sync(&self) -> bool {
        let legs = self.standings();
        legs.len() == LEGS.len() && legs.iter().all(|(_, state)| state == "in_sync")
    }

    /// Returns the name and the state of each leg in the mirror. The list is empty if the mirror's
    /// target does not answer.
    fn standings(&self) -> Vec<(String, String)> {
        let client = Client::new(self.folder.path.join(CONTROL));
        let answer = client.ask("GET", "/v1/status", None, None).ok();
        let status = answer.and_then(|answer| serde_json::from_str::<Status>(&answer.body).ok());
        let namespaces =
            status.into_iter().flat_map(|it| it.subsystems).flat_map(|it| it.namespaces);
        namespaces.flat_map(|it| it.legs).map(|leg| (leg.name, leg.state)).collect()
    }

    /// Fails if a target has stopped, although the demonstration did not kill it.
    pub(super) fn check(&mut self) -> Result<()> {
        let legs = LEGS.iter().zip(&mut self.legs);
        let legs = legs.filter_map(|(name, leg)| leg.target.as_mut().map(|it| (*name, it)));
        for (name, target) in legs.chain([("mirror", &mut self.mirror)]) {
            if let Some(last) = target.ended() {
                return Err(Failure::run(format_args!(
                    "the target {name} stopped unexpectedly: {last}"
                )));
            }
        }
        Ok(())
    }
}

impl Leg {
    fn new(folder: &Path, name: &str) -> Result<Leg> {
        let image = folder.join(format!("{name}.img"));
        File::create(&image).and_then(|file| file.set_len(LEG_BYTES)).map_err(|error| {
            Failure::run(format_args!(
                "cannot make {}: {}; set TMPDIR to another folder",
                image.display(),
                os(&error)
            ))
        })?;
        let target = leg_target(folder, name, &image, ([127, 0, 0, 1], 0).into())?;
        let address = target.said.listening[0];
        let url = format!("nvme+tcp://{address}/{NQN}-{name}?ns=1");
        Ok(Leg { target: Some(target), image, address, url })
    }
}

fn leg_target(folder: &Path, name: &str, image: &Path, address: SocketAddr) -> Result<Target> {
    let image = format!("file:{}", image.display());
    let words = ["--no-control", "--listen", &address.to_string(), "--nqn"].map(str::to_owned);
    let args = [&words[..], &[format!("{NQN}-{name}"), image]].concat();
    Target::start(folder, name, &args)
}

/// Starts the target with the mirror, two listeners and the dashboard.
fn mirror(folder: &Path, legs: &[Leg; 2]) -> Result<Target> {
    let mut args: Vec<String> = Vec::new();
    for word in ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--ui", "127.0.0.1:0"] {
        args.push(word.to_owned());
    }
    args.extend(["--nqn".to_owned(), NQN.to_owned(), "--control".to_owned()]);
    args.push(folder.join(CONTROL).display().to_string());
    args.push(format!("mirror:{},{}?create", legs[0].url, legs[1].url));
    Target::start(folder, "mirror", &args)
}

fn connect(cables: &[Cable], global: &Global) -> Result<Disk> {
    let urls =
        cables.iter().map(|cable| format!("nvme+tcp://{}/{NQN}?ns=1", cable.address).parse());
    let urls: Vec<Url> = urls.collect::<Result<_, _>>().map_err(Failure::run)?;
    attached(&urls, global, GIVEN_UP)
}

/// Connects the host's disk over all paths.
pub(super) fn attached(urls: &[Url], global: &Global, given_up: Duration) -> Result<Disk> {
    // A random host identifier suffices, because this host uses no reservations.
    let hostid = HostId::random().map_err(|error| {
        Failure::run(format_args!("cannot get random numbers from the system: {}", os(&error)))
    })?;
    let connection = Options {
        hostid: Some(hostid),
        hostnqn: Some(format!("{NQN}-host")),
        engine: global.engine,
        ..Options::default()
    };
    let options = DiskOptions {
        connection,
        policy: Policy::RoundRobin,
        reconnect_delay: RECONNECT_DELAY,
        ctrl_loss_timeout: Some(given_up),
        ..DiskOptions::default()
    };
    Ok(Disk::connect(urls, &options)?)
}
