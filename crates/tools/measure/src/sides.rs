//! Opens the named disks, and the meters of their processor time.

use super::OpenLocal;
use super::args::BenchArgs;
use farblock_backends::Spec;
use farblock_bench::{BenchError, Meters, Plan, Side};
#[cfg(unix)]
use farblock_block::size::Size;
use farblock_host::Options;
use farblock_host::url::{Url, UrlError, is_url};
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result};
use farblock_program::remote;
use farblock_target::Target;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

/// The disks to measure, called sides: one local, one remote.
pub(super) struct Sides {
    // Fields drop in this order: the sides, then the target that serves one of them, then its file.
    pub(super) local: Option<Side>,
    pub(super) remote: Option<Side>,
    /// The target that [`demo`](super::demo) started, if the user named no disk.
    pub(super) target: Option<Target>,
    /// The disk file that [`demo`](super::demo) created, if the system cannot unlink an open file.
    pub(super) file: Option<Temporary>,
    /// Notes to print before the measurement.
    pub(super) notes: Vec<String>,
    /// Sentences that explain the figures in the report.
    pub(super) remarks: Vec<String>,
}

impl Sides {
    /// Closes the sides, then the target, which first finishes its commands.
    pub(super) fn close(self) -> Result<()> {
        let Sides { local, remote, target, file, notes: _, remarks: _ } = self;
        drop((local, remote));
        let stopped = target.map_or(Ok(()), Target::stop);
        drop(file);
        stopped.map_err(|error| {
            Failure::run(format_args!(
                "an event loop failed: {}",
                farblock_program::error::os(&error)
            ))
        })
    }
}

/// A file that is removed when this is dropped.
pub(super) struct Temporary(pub(super) PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A disk that the user named on the command line.
enum Disk {
    Local(Spec),
    Remote(Box<Url>),
}

/// Opens one disk or two. Of two disks, the first counts as the local disk.
pub(super) fn open(
    disks: &[OsString],
    args: &BenchArgs,
    global: &Global,
    plan: &Plan,
    open_local: OpenLocal,
) -> Result<Sides> {
    let parsed = disks.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    for disk in &parsed {
        check_writes(disk, plan)?;
    }
    let opener = Opener { args, global, plan, open_local };
    let (local, remote) = match parsed.as_slice() {
        [one @ Disk::Remote(_)] => (None, Some(opener.side(one)?)),
        [one] => (Some(opener.side(one)?), None),
        [first, second] => (Some(opener.side(first)?), Some(opener.side(second)?)),
        _ => return Err(Failure::usage("a bench compares at most two disks")),
    };
    let remarks: Vec<String> = parsed.iter().filter_map(holes).collect();
    let notes = remarks.iter().map(|remark| format!("note: {remark}")).collect();
    Ok(Sides { local, remote, target: None, file: None, notes, remarks })
}

/// Warns about holes in a file. Reads of unwritten blocks do not use the disk.
#[cfg(unix)]
fn holes(disk: &Disk) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    /// The unit of `st_blocks`, in bytes.
    const UNIT_BYTES: u64 = 512;
    fn of_spec(spec: &Spec) -> Option<String> {
        let Spec::File(path) = spec else { return spec.parts().iter().find_map(of_spec) };
        let found = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let (bytes, stored) = (found.len(), found.blocks() * UNIT_BYTES);
        // Tolerate 1 %: a file system may store a few blocks without counting them here.
        (stored < bytes / 100 * 99).then(|| {
            format!(
                "{0} has holes: only {1} of its {2} were ever written, and reads of the rest do \
                 not use the disk, so the results of reads are too good; write the whole file \
                 first, for example with `head -c {bytes} /dev/urandom >{0}`, which overwrites the \
                 file",
                path.display(),
                Size(stored),
                Size(bytes)
            )
        })
    }
    match disk {
        Disk::Local(spec) => of_spec(spec),
        Disk::Remote(_) => None,
    }
}

/// Returns no warning: on Windows this check would need an open file.
#[cfg(not(unix))]
fn holes(_: &Disk) -> Option<String> {
    None
}

fn parse(text: &OsStr) -> Result<Disk> {
    let Some(text) = text.to_str() else { return Ok(Disk::Local(Spec::File(text.into()))) };
    if is_url(text) {
        let url = text.parse().map_err(|error: UrlError| Failure::usage(error))?;
        return Ok(Disk::Remote(Box::new(url)));
    }
    Spec::parse(text).map(Disk::Local).map_err(Failure::usage)
}

/// Fails if the plan would overwrite the disk without `--allow-writes`. Must run before the disk is
/// opened for writing.
fn check_writes(disk: &Disk, plan: &Plan) -> Result<()> {
    let namespace = match disk {
        Disk::Local(spec) if is_made_here(spec) => return Ok(()),
        Disk::Local(spec) => spec.to_string(),
        Disk::Remote(url) => url.to_string(),
    };
    match plan.patterns.iter().find(|pattern| pattern.rw.writes()) {
        Some(pattern) if !plan.allow_writes => {
            let what = format!("the pattern {}", pattern.name);
            Err(super::explain(&BenchError::WritesRefused { what, namespace }))
        }
        _ => Ok(()),
    }
}

/// Whether farblock creates the disk in memory, so that it contains no data to lose.
fn is_made_here(spec: &Spec) -> bool {
    match spec {
        Spec::Mem { .. } | Spec::Null { .. } => true,
        Spec::File(_) | Spec::Mirror { .. } | Spec::Remote(_) | Spec::Rbd(_) => false,
        spec => spec.parts().iter().all(is_made_here),
    }
}

/// Whether unwritten blocks of this disk are faster to read than written ones, so that the
/// benchmark must fill the disk first.
fn wants_data(spec: &Spec) -> bool {
    match spec {
        Spec::Mem { .. } => true,
        Spec::Null { .. } | Spec::File(_) | Spec::Fault { .. } => false,
        Spec::Mirror { .. } => false,
        spec => spec.parts().iter().any(wants_data),
    }
}

struct Opener<'a> {
    args: &'a BenchArgs,
    global: &'a Global,
    plan: &'a Plan,
    open_local: OpenLocal,
}

impl Opener<'_> {
    fn side(&self, disk: &Disk) -> Result<Side> {
        match disk {
            Disk::Local(spec) => {
                let made_here = is_made_here(spec);
                let read_only = !made_here && !self.plan.allow_writes;
                let block_size = self.args.block_size;
                let disk = (self.open_local)(spec, block_size, read_only)?;
                let side = Side::new(disk);
                let side = if made_here { side.scratch() } else { side };
                Ok(if made_here && wants_data(spec) { side.fill() } else { side })
            }
            Disk::Remote(url) => {
                let options = remote_options(self.args, self.global, self.plan);
                let namespace = remote::open(url, &options)?;
                Ok(Side::new(Arc::new(namespace)).meters(self.meters()?))
            }
        }
    }

    fn meters(&self) -> Result<Meters> {
        match self.args.target_pid {
            None => Ok(Meters::default()),
            Some(process) => separate(process),
        }
    }
}

/// The connection options, with the queue depth and the number of queues that the plan needs.
pub(super) fn remote_options(args: &BenchArgs, global: &Global, plan: &Plan) -> Options {
    let patterns = plan.scaled_patterns();
    let most = |of: &dyn Fn(&farblock_bench::Pattern) -> u32, least: u16| {
        let most = patterns.iter().map(of).max().unwrap_or(1);
        u16::try_from(most).unwrap_or(u16::MAX).max(least)
    };
    let options = remote::options(global, &args.digests);
    Options {
        queue_depth: most(&|pattern| pattern.iodepth, options.queue_depth),
        queues: most(&|pattern| pattern.numjobs.saturating_mul(plan.connections), options.queues),
        ..options
    }
}

#[cfg(any(target_os = "linux", windows))]
fn separate(process: u32) -> Result<Meters> {
    Meters::separate(process).map_err(|error| {
        let error = farblock_program::error::os(&error);
        Failure::usage(format_args!(
            "--target-pid {process}: {error}; name a process of this machine"
        ))
    })
}

#[cfg(not(any(target_os = "linux", windows)))]
fn separate(_: u32) -> Result<Meters> {
    Err(Failure::usage("--target-pid works on Linux and Windows only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_sparse_file_causes_a_warning_and_a_written_file_none() {
        let path = std::env::temp_dir().join(format!("farblock-holes-{}", std::process::id()));
        let _removed = Temporary(path.clone());
        let of =
            |text: String| holes(&Disk::Local(Spec::parse(&text).expect("the disk name is valid")));
        std::fs::write(&path, vec![0x5a; 1 << 20]).expect("the file is written");
        assert_eq!(of(path.display().to_string()), None);
        std::fs::File::create(&path)
            .and_then(|it| it.set_len(1 << 20))
            .expect("the file is created");
        for text in [path.display().to_string(), format!("delay:1us,{}", path.display())] {
            assert!(of(text).is_some_and(|said| said.contains("has holes: only ")));
        }
    }

    #[test]
    fn only_memory_disks_may_be_written_without_allow_writes() {
        let made = |text: &str| is_made_here(&Spec::parse(text).unwrap());
        assert!(made("mem:1MiB") && made("delay:1ms,stripe:64KiB,mem:1MiB,null:1MiB"));
        assert!(!made("a.img") && !made("stripe:64KiB,mem:1MiB,a.img") && !made("/dev/sda"));
    }
}
