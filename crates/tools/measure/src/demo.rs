//! `farblock bench` without named disks, called the demonstration: creates a disk file, and a
//! target in this process that exports the file over loopback.

use super::args::BenchArgs;
use super::sides::{Sides, Temporary, remote_options};
use farblock_backends::file::{FileDisk, FileOptions};
use farblock_bench::{Meters, Plan, Side};
use farblock_block::Namespace;
use farblock_block::size::Size;
use farblock_host::Controller;
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result, os};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The size of the disk file in bytes, if there is enough room.
const SIZE_BYTES: u64 = 1 << 30;
/// The smallest useful size, in bytes.
const LEAST_BYTES: u64 = 64 << 20;
/// The name of the subsystem, and the ID of its namespace.
const NQN: &str = "nqn.2026-11.org.farblock:bench";
const NSID: u32 = 1;

pub(super) fn sides(args: &BenchArgs, global: &Global, plan: &Plan) -> Result<Sides> {
    let mut notes = Vec::new();
    let (disk, file) = disk(args, &mut notes)?;
    if !disk.is_direct() {
        notes.push(
            "note: the disk file uses the page cache, so the results describe memory more than a \
             disk; choose another place with --directory"
                .to_owned(),
        );
    }
    let namespace: Arc<dyn Namespace> = Arc::new(disk);
    let target = start(Arc::clone(&namespace), global)?;
    let address = target.addresses()[0].to_string();
    let options = remote_options(args, global, plan);
    let remote = Controller::connect(&address, NQN, &options)?.namespace(NSID)?;
    Ok(Sides {
        local: Some(Side::new(namespace).scratch().fill()),
        remote: Some(Side::new(Arc::new(remote)).scratch().meters(meters()?)),
        target: Some(target),
        file,
        notes,
        remarks: Vec::new(),
    })
}

fn start(namespace: Arc<dyn Namespace>, global: &Global) -> Result<Target> {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let identity = format!("bench {}", std::process::id());
    subsystem.exports.insert(NamespaceId(NSID), Export { namespace, identity });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        engine: global.engine,
        polling: global.polling(),
        ..TargetConfig::default()
    };
    Target::start(&config).map_err(Failure::run)
}

#[cfg(any(target_os = "linux", windows))]
fn meters() -> Result<Meters> {
    // Count the file threads of the portable engine for the target: the host uses only sockets, and
    // needs no file threads.
    embedded(&[farblock_target::THREAD_NAME_PREFIX, "farblock-file"])
}

/// Meters of processor time. Threads of this process with these name prefixes count for the target,
/// all others for the host.
#[cfg(any(target_os = "linux", windows))]
pub(super) fn embedded(names: &[&str]) -> Result<Meters> {
    let threads = farblock_bench::cpu::ThreadGroup::named(names).map_err(|error| {
        Failure::run(format_args!("cannot read this process's threads: {}", os(&error)))
    })?;
    Ok(Meters::embedded(Arc::new(threads)))
}

#[cfg(not(any(target_os = "linux", windows)))]
fn meters() -> Result<Meters> {
    Ok(Meters::default())
}

/// Creates the disk file in the first suitable directory.
fn disk(args: &BenchArgs, notes: &mut Vec<String>) -> Result<Made> {
    let places = match &args.directory {
        Some(directory) => vec![directory.clone()],
        None => places(),
    };
    let (real, memory): (Vec<_>, Vec<_>) = places.into_iter().partition(|place| !is_memory(place));
    let mut reasons = Vec::new();
    for place in real.iter().chain(&memory) {
        match disk_in(place, args) {
            Ok((disk, file)) => {
                let bytes = disk.geometry().capacity_bytes();
                let place = std::fs::canonicalize(place).unwrap_or_else(|_| place.clone());
                notes.push(format!(
                    "the disk is a file of {} in {}, removed at the end",
                    Size(bytes),
                    place.display()
                ));
                if bytes < SIZE_BYTES && args.size.is_none() {
                    notes.push(format!(
                        "note: scaled down from {}, because free space is scarce there",
                        Size(SIZE_BYTES)
                    ));
                }
                if is_memory(&place) {
                    notes.push(
                        "note: this place is in memory, not on a disk; choose another place with \
                         --directory"
                            .to_owned(),
                    );
                }
                return Ok((disk, file));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    let reason = reasons.into_iter().next().unwrap_or_else(|| "no directory exists".to_owned());
    Err(Failure::run(format_args!(
        "cannot create a disk file: {reason}; choose its place with --directory, and its size with \
         --size"
    )))
}

/// The directories to try, the most suitable first.
fn places() -> Vec<PathBuf> {
    let chosen = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places: Vec<PathBuf> = chosen.into_iter().collect();
    places.push(PathBuf::from("."));
    if cfg!(unix) {
        places.push(PathBuf::from("/var/tmp"));
    }
    places.push(std::env::temp_dir());
    places
}

type Made = (FileDisk, Option<Temporary>);

fn disk_in(directory: &Path, args: &BenchArgs) -> Result<Made, String> {
    let place = directory.display();
    let bytes = size(directory, args)?;
    let path = directory.join(format!("farblock-bench-{}.img", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path);
    let made = file.map_err(|error| format!("{place}: {}", os(&error)))?;
    let file = Temporary(path.clone());
    let opened = made.set_len(bytes).map_err(|error| format!("{place}: {}", os(&error)));
    drop(made);
    let options = FileOptions::new(args.block_size).temporary();
    let opened =
        opened.and_then(|()| FileDisk::open(&path, &options).map_err(|error| error.to_string()));
    let disk = opened?;
    // On Unix, dropping `file` unlinks the open file, so it also disappears if this process is
    // killed.
    let kept = if cfg!(unix) { None } else { Some(file) };
    Ok((disk, kept))
}

/// The requested size. Without a request: 1 GiB, or half of the free space if this is less.
fn size(directory: &Path, args: &BenchArgs) -> Result<u64, String> {
    let free = farblock_bench::available_bytes(directory)
        .map_err(|error| format!("{}: {}", directory.display(), os(&error)))?;
    let wanted = args.size.unwrap_or(SIZE_BYTES);
    if args.size.is_some() {
        let block = u64::from(args.block_size);
        if !wanted.is_multiple_of(block) {
            return Err(format!("{wanted} bytes are not a whole number of {block}-byte blocks"));
        }
        if wanted > free {
            return Err(format!("{} has only {} free", directory.display(), Size(free)));
        }
        return Ok(wanted);
    }
    let bytes = wanted.min(free / 2) / LEAST_BYTES * LEAST_BYTES;
    if bytes == 0 {
        return Err(format!("{} has only {} free", directory.display(), Size(free)));
    }
    Ok(bytes)
}

/// Whether the files of a directory are only in memory. Such file systems may claim to support
/// direct I/O.
#[cfg(target_os = "linux")]
fn is_memory(directory: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // The type of `f_type` has 32 or 64 bits, depending on the architecture.
    rustix::fs::statfs(directory)
        .is_ok_and(|stat| [TMPFS, RAMFS].contains(&(stat.f_type as u64 & u64::from(u32::MAX))))
}

#[cfg(not(target_os = "linux"))]
fn is_memory(_: &Path) -> bool {
    false
}
