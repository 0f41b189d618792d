//! Opens the disks that the command line names, including Ceph images and remote disks inside other
//! disks.

pub mod ceph;
pub mod journal;
mod layout;
mod memory;

pub use memory::memory_doubt;

use error::Failure;
use farblock_backends::{OpenError, Spec};
use farblock_block::Namespace;
use farblock_block::size::Size;
use farblock_host::disk::{Disk, DiskOptions};
use farblock_host::url::Url;
use farblock_program::{error, lives, remote};
use farblock_proto::host::NamespaceInfo;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The longest delay between two attempts to reconnect to a remote disk.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// The I/O timeout of a remote disk inside another disk. When a command times out, the target
/// returns a path error: a host with another path uses that path, and other hosts retry. The
/// timeout is shorter than the command timeouts of hosts.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// A remote disk that is part of another disk.
pub struct Leg {
    /// The disk's URL, without keys.
    pub name: String,
    /// The disk, while the other disk is open.
    pub namespace: Weak<dyn Namespace>,
    /// The disk's size in bytes when it became part of the other disk.
    capacity_bytes: u64,
}

impl Leg {
    /// Returns an error message if the disk has shrunk since it became part of the other disk.
    pub fn missing(&self, namespace: &dyn Namespace) -> Option<String> {
        let now = namespace.geometry().capacity_bytes();
        (now < self.capacity_bytes).then(|| {
            let before = Size(self.capacity_bytes);
            format!(
                "the disk has shrunk from {before} to {}: I/O on the missing part fails",
                Size(now)
            )
        })
    }
}

/// Returns the options for a remote disk to which the host reconnects forever.
pub fn leg_options() -> DiskOptions {
    DiskOptions {
        ctrl_loss_timeout: None,
        reconnect_delay: RECONNECT_DELAY,
        ..DiskOptions::default()
    }
}

/// Parses the URL of a remote disk inside another disk.
///
/// # Errors
/// The text is no URL.
pub fn leg_url(text: &str) -> Result<Url, String> {
    text.parse().map_err(|error| format!("leg {text}: {error}"))
}

/// Returns the message of a failure to connect.
pub fn said(failure: Failure) -> String {
    match failure {
        Failure::Usage(text)
        | Failure::Run(text)
        | Failure::StartAgain(text)
        | Failure::Interrupted(text) => text,
        _ => "the connection failed".to_owned(),
    }
}

/// Opens a disk.
///
/// # Errors
/// The disk cannot be opened, or the same remote disk is open already.
pub fn open(
    spec: &Spec,
    block_size: u32,
    read_only: bool,
) -> Result<Arc<dyn Namespace>, OpenError> {
    open_with_legs(spec, block_size, read_only).map(|(namespace, _)| namespace)
}

/// Opens a disk for a benchmark, without storing the layout in extended attributes of its files.
///
/// # Errors
/// Fails like [`open`].
pub fn open_to_measure(
    spec: &Spec,
    block_size: u32,
    read_only: bool,
) -> Result<Arc<dyn Namespace>, OpenError> {
    let settled = layout::settle(spec, block_size)?;
    open_settled(&settled.spec, block_size, read_only).map(|(namespace, _)| namespace)
}

/// Opens a disk, and returns the remote disks inside it.
///
/// # Errors
/// Fails like [`open`].
pub fn open_with_legs(
    spec: &Spec,
    block_size: u32,
    read_only: bool,
) -> Result<(Arc<dyn Namespace>, Vec<Leg>), OpenError> {
    let settled = layout::settle(spec, block_size)?;
    let opened = open_settled(&settled.spec, block_size, read_only)?;
    settled.keep()?;
    Ok(opened)
}

fn open_settled(
    spec: &Spec,
    block_size: u32,
    read_only: bool,
) -> Result<(Arc<dyn Namespace>, Vec<Leg>), OpenError> {
    let legs = RefCell::new(Legs::default());
    let namespace = spec.open_with(block_size, read_only, &|spec| match spec {
        Spec::Rbd(name) => ceph::open(name, block_size, read_only),
        Spec::Remote(url) => legs.borrow_mut().open(url).map_err(OpenError::Remote),
        other => unreachable!("{other} is neither"),
    })?;
    Ok((namespace, legs.into_inner().legs))
}

#[derive(Default)]
struct Legs {
    legs: Vec<Leg>,
}

/// A remote disk that is open in this process, and its identity.
struct Open {
    name: String,
    subsystem: Option<String>,
    info: NamespaceInfo,
    disk: Weak<dyn Namespace>,
}

/// The remote disks that are open in this process. Two disks on the same remote disk would
/// overwrite each other's data.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

impl Legs {
    fn open(&mut self, url: &str) -> Result<Arc<dyn Namespace>, String> {
        let url = leg_url(url)?;
        let name = url.without_keys().to_string();
        let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.disk.strong_count() > 0);
        // Check before opening the disk: `Disk::succeed` would close the controllers of a disk that
        // is open already.
        refuse_again(&name, all.iter().find(|one| one.name == name))?;
        let options = DiskOptions { fast_io_fail_timeout: Some(WAIT_LIMIT), ..leg_options() };
        let opened = match journal::of(&url)? {
            None => remote::open_disk(&url, &options),
            Some((predecessor, journal)) => {
                remote::open_disk_by(&url, &options, |urls, options| {
                    Disk::succeed(urls, options, predecessor, journal)
                })
            }
        };
        let (disk, info) = opened.map_err(said)?;
        let is_it = |one: &&Open| {
            one.subsystem == url.subsystem && one.info.nsid == info.nsid
                || same_disk(&one.info, &info)
        };
        refuse_again(&name, all.iter().find(is_it))?;
        let disk: Arc<dyn Namespace> = Arc::new(disk);
        let weak = Arc::downgrade(&disk);
        let subsystem = url.subsystem.clone();
        all.push(Open { name: name.clone(), subsystem, info, disk: weak.clone() });
        let capacity_bytes = disk.geometry().capacity_bytes();
        self.legs.push(Leg { name, namespace: weak, capacity_bytes });
        Ok(disk)
    }
}

fn refuse_again(name: &str, open: Option<&Open>) -> Result<(), String> {
    let Some(Open { name: other, .. }) = open else { return Ok(()) };
    Err(format!(
        "{name} is the same disk as {other}, which this process uses already: name each disk once"
    ))
}

fn same_disk(one: &NamespaceInfo, other: &NamespaceInfo) -> bool {
    one.uuid.is_some() && one.uuid == other.uuid
        || one.nguid.is_some() && one.nguid == other.nguid
        || one.eui64.is_some() && one.eui64 == other.eui64
}
