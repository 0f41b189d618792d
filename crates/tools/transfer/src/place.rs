//! The source and the destination on a command line: URLs, files, pipes and local disks.

use super::file_sink::{FileSink, Stored};
use super::namespace_sink::NamespaceSink;
use super::resume::End;
use super::sink::Sink;
use super::source::Source;
use crate::args::{Global, TransferArgs};
use crate::error::{Failure, Result};
use crate::remote;
use crate::replace::{Replacement, cannot, lock, refused};
use crate::signals::Stop;
use farblock_backends::{FileProblem, Spec};
use farblock_block::Namespace;
use farblock_host::Options;
use farblock_host::disk::DiskOptions;
use farblock_host::url::{Url, UrlError, is_url};
use farblock_proto::host::NamespaceInfo;
use farblock_reactor::EngineKind;
use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Component, Path, PathBuf, Prefix};
use std::sync::Arc;
use std::time::Duration;

/// The timeout of one I/O command of a transfer.
const PIECE_TIME: Duration = Duration::from_secs(120);
/// The host gives up a target after this many identical protocol violations in a row.
const BREACHES_MAX: u32 = 6;
/// The time limit for a target that answers each attempt with a path error, or denies access by its
/// ANA state.
const DENIED_TIMEOUT: Duration = Duration::from_secs(60);
/// The block size in bytes of local disks that are not plain files.
const LOCAL_BLOCK_BYTES: u32 = 512;

/// A parsed source or destination.
pub(super) enum TransferPlace {
    Remote(Box<Url>),
    /// A local disk, such as `mem:`, `null:` or `stripe:`.
    Local(Spec),
    File(PathBuf),
    /// `-`: the standard input or output.
    Pipe,
}

impl TransferPlace {
    pub(super) fn parse(text: &OsStr) -> Result<TransferPlace> {
        // Only a file can have a name that is not UTF-8.
        let Some(text) = text.to_str() else { return Ok(TransferPlace::of_path(Path::new(text))) };
        if is_url(text) {
            let url: Url = text.parse().map_err(|error: UrlError| Failure::usage(error))?;
            return Ok(TransferPlace::Remote(Box::new(url)));
        }
        if text == "-" {
            return Ok(TransferPlace::Pipe);
        }
        match Spec::parse(text) {
            // A raw disk accepts only whole sectors, so open it as a block device, not as a file.
            Ok(Spec::File(path)) if !is_raw_disk(&path) => Ok(TransferPlace::File(path)),
            Ok(other) => Ok(TransferPlace::Local(other)),
            Err(error) => Err(Failure::usage(error)),
        }
    }

    /// Parses the path of a file; `-` means a pipe.
    pub(super) fn of_path(path: &Path) -> TransferPlace {
        if path == Path::new("-") {
            TransferPlace::Pipe
        } else if is_raw_disk(path) {
            TransferPlace::Local(Spec::File(path.to_owned()))
        } else {
            TransferPlace::File(path.to_owned())
        }
    }
}

/// Opens sources and destinations, with the options of the command.
pub(super) struct Opener<'a> {
    pub(super) global: &'a Global,
    pub(super) options: &'a TransferArgs,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// Device and inode number; on Windows, volume serial number and file index.
    File(u64, u64),
    /// The namespace's identifier, or its address and name if it has none.
    Remote(String),
    Unknown,
}

pub(super) struct Input {
    pub(super) name: String,
    /// The size in bytes, if known.
    pub(super) bytes: Option<u64>,
    identity: Identity,
    kind: InputKind,
}

enum InputKind {
    Namespace(Arc<dyn Namespace>),
    File(File),
    /// A pipe; `None` after a [`Source`] has taken it.
    Stream(Option<Box<dyn Read + Send>>),
}

impl Input {
    pub(super) fn is_repeatable(&self) -> bool {
        !matches!(self.kind, InputKind::Stream(_))
    }

    /// Starts reading `range`. From a pipe, reads the next bytes, as many as the range has.
    pub(super) fn start(&mut self, engine: EngineKind, range: Range<u64>) -> Result<Source> {
        let name = self.name.clone();
        match &mut self.kind {
            InputKind::Namespace(namespace) => Source::namespace(namespace, name, engine, range),
            InputKind::File(file) => {
                lock(file, Path::new(&name), false)?;
                Source::file(file, name, range)
            }
            InputKind::Stream(stream) => {
                let stream = stream.take().expect("a pipe is read once");
                Source::stream(stream, name, Some(range.end - range.start))
            }
        }
    }

    /// The identity and size that must be unchanged to resume a transfer; `None` if unknown.
    pub(super) fn end(&self) -> Option<End> {
        let identity = match (&self.identity, &self.kind) {
            (Identity::File(..), InputKind::File(file)) => file_state(file)?,
            (Identity::Remote(id), _) => id.clone(),
            _ => return None,
        };
        Some(End { name: self.name.clone(), identity, bytes: self.bytes? })
    }
}

pub(super) struct Output {
    pub(super) name: String,
    /// The space in bytes, if limited.
    pub(super) capacity: Option<u64>,
    identity: Identity,
    kind: OutputKind,
}

enum OutputKind {
    Namespace(Arc<dyn Namespace>),
    /// A new regular file next to the old one; `None` after writing has started.
    Regular(Option<Replacement>),
    Device(File),
    Stream(Option<File>),
}

impl Output {
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.kind, OutputKind::Stream(_))
    }

    /// The identity and size that must be unchanged to resume a transfer; `None` if unknown.
    pub(super) fn end(&self) -> Option<End> {
        let identity = match (&self.identity, &self.kind) {
            (_, OutputKind::Regular(Some(new))) => file_number(new.file())?,
            (Identity::File(..), OutputKind::Device(file)) => file_state(file)?,
            (Identity::Remote(id), _) => id.clone(),
            _ => return None,
        };
        Some(End { name: self.name.clone(), identity, bytes: self.capacity.unwrap_or(0) })
    }

    /// Whether an earlier process has already renamed the recorded new file into place.
    pub(super) fn has_become(&self, end: &End) -> bool {
        let OutputKind::Regular(Some(new)) = &self.kind else { return false };
        new.old().and_then(file_number).is_some_and(|number| number == end.identity)
    }

    /// The current length of the new file in bytes.
    pub(super) fn kept_bytes(&self) -> Option<u64> {
        match &self.kind {
            OutputKind::Regular(Some(new)) => new.file().metadata().ok().map(|found| found.len()),
            _ => None,
        }
    }

    /// The path of a helper file next to a regular destination, whose name ends with `kind`.
    pub(super) fn beside(&self, kind: &str) -> Option<PathBuf> {
        match &self.kind {
            OutputKind::Regular(Some(new)) => Some(new.beside(kind)),
            _ => None,
        }
    }

    /// Opens the sink of a transfer that begins at offset `start`. An earlier attempt has written
    /// the first `done` bytes. Only namespaces have a `start` other than 0.
    pub(super) fn start(
        &mut self,
        opener: &Opener<'_>,
        (start, done): (u64, u64),
        stop: &Stop,
    ) -> Result<Sink> {
        let name = self.name.clone();
        Ok(match &mut self.kind {
            OutputKind::Namespace(namespace) => {
                let (engine, stop) = (opener.global.engine, stop.clone());
                let sink = NamespaceSink::open(namespace, engine, name, (start, done), stop)?;
                Sink::Namespace(Box::new(sink))
            }
            OutputKind::Regular(new) => {
                let new = new.take().expect("an output is written once");
                Sink::File(FileSink::new(Stored::Beside(new), name, done)?)
            }
            OutputKind::Device(file) => {
                lock(file, Path::new(&name), true)?;
                opener.note(&format!("{name} is a device: farblock writes to it in place"));
                let file = file.try_clone().map_err(|error| cannot("write to", &name, &error))?;
                Sink::File(FileSink::new(Stored::InPlace(file), name, done)?)
            }
            OutputKind::Stream(Some(file)) => {
                opener
                    .note(&format!("{name} is not a regular file: farblock writes to it in place"));
                let file = file.try_clone().map_err(|error| cannot("write to", &name, &error))?;
                Sink::Stream { output: Box::new(file), name, written: 0 }
            }
            OutputKind::Stream(None) if io::stdout().is_terminal() => {
                return Err(Failure::usage(
                    "the data would go to the terminal: name a file, or pipe it on \
                     (| xxd | head, for example)",
                ));
            }
            OutputKind::Stream(None) => {
                Sink::Stream { output: Box::new(standard_output()?), name, written: 0 }
            }
        })
    }

    /// Starts reading the written data back.
    pub(super) fn start_reading(
        &self,
        engine: EngineKind,
        sink: &Sink,
        range: Range<u64>,
    ) -> Result<Source> {
        let name = self.name.clone();
        match (&self.kind, sink) {
            (OutputKind::Namespace(namespace), _) => {
                Source::namespace(namespace, name, engine, range)
            }
            (_, Sink::File(sink)) => {
                forget_cached(sink.stored.file());
                Source::file(sink.stored.file(), name, range)
            }
            _ => unreachable!("a stream is not verified"),
        }
    }
}

/// Drops the file's pages from the page cache, so that reads come from the disk.
fn forget_cached(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

impl Opener<'_> {
    fn note(&self, text: &str) {
        if !self.global.quiet {
            crate::output::note(text);
        }
    }

    /// Connects to a namespace by its URL. The connection recovers from network failures.
    fn remote(&self, url: &Url) -> Result<(Arc<dyn Namespace>, Identity)> {
        let connection = remote::options(self.global, &self.options.digests);
        let usual = DiskOptions::default();
        let timeout = self.options.ctrl_loss_timeout;
        let options = DiskOptions {
            // Many large operations in flight may take long on a slow network. A long timeout is
            // safe, because keep-alive detects a dead target earlier.
            connection: Options { io_timeout: PIECE_TIME, ..connection },
            ctrl_loss_timeout: timeout.map_or(usual.ctrl_loss_timeout, |timeout| timeout.0),
            denied_timeout: timeout.map_or(Some(DENIED_TIMEOUT), |timeout| timeout.0),
            breaches_max: Some(BREACHES_MAX),
            ..usual
        };
        let (disk, info) = remote::open_disk(url, &options)?;
        Ok((Arc::new(disk), remote_identity(url, &info)))
    }

    pub(super) fn input(&self, place: &TransferPlace) -> Result<Input> {
        match place {
            TransferPlace::Remote(url) => {
                let (namespace, identity) = self.remote(url)?;
                Ok(namespace_input(format!("{url}"), namespace, identity))
            }
            TransferPlace::Local(spec) => {
                let namespace = crate::elsewhere::open(spec, LOCAL_BLOCK_BYTES, true)?;
                Ok(namespace_input(spec.to_string(), namespace, Identity::Unknown))
            }
            TransferPlace::File(path) => file_input(path),
            TransferPlace::Pipe => Ok(Input {
                name: "the standard input".to_owned(),
                bytes: None,
                identity: Identity::Unknown,
                kind: InputKind::Stream(Some(Box::new(io::stdin()))),
            }),
        }
    }

    pub(super) fn output(&self, place: &TransferPlace) -> Result<Output> {
        match place {
            TransferPlace::Remote(url) => {
                let (namespace, identity) = self.remote(url)?;
                namespace_output(format!("{url}"), namespace, identity)
            }
            TransferPlace::Local(spec) => {
                let namespace = crate::elsewhere::open(spec, LOCAL_BLOCK_BYTES, false)?;
                namespace_output(spec.to_string(), namespace, Identity::Unknown)
            }
            TransferPlace::File(path) => file_output(path, self.options),
            TransferPlace::Pipe => Ok(Output {
                name: "the standard output".to_owned(),
                capacity: None,
                identity: Identity::Unknown,
                kind: OutputKind::Stream(None),
            }),
        }
    }
}

/// Whether a path names a Windows device (`\\.\PhysicalDrive1`, `\\.\D:`).
fn is_raw_disk(path: &Path) -> bool {
    matches!(
        path.components().next(),
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::DeviceNS(_))
    )
}

/// Returns the standard output without Rust's line buffer.
#[cfg(unix)]
fn standard_output() -> Result<File> {
    use std::os::fd::AsFd;
    let owned = io::stdout().as_fd().try_clone_to_owned();
    owned.map(File::from).map_err(|error| Failure::output(&error))
}

#[cfg(windows)]
fn standard_output() -> Result<File> {
    use std::os::windows::io::AsHandle;
    let owned = io::stdout().as_handle().try_clone_to_owned();
    owned.map(File::from).map_err(|error| Failure::output(&error))
}

fn remote_identity(url: &Url, info: &NamespaceInfo) -> Identity {
    // The identifiers of a namespace are the same at all of its addresses.
    let own = info.uuid.map(|id| id.to_vec()).or(info.nguid.map(|id| id.to_vec()));
    match own.or(info.eui64.map(|id| id.to_vec())) {
        Some(id) => Identity::Remote(format!("{id:?}")),
        None => {
            let nqn = url.subsystem.as_deref().unwrap_or_default();
            Identity::Remote(format!("{} {nqn} {}", url.address(), info.nsid))
        }
    }
}

fn namespace_input(name: String, namespace: Arc<dyn Namespace>, identity: Identity) -> Input {
    let bytes = Some(namespace.geometry().capacity_bytes());
    Input { name, bytes, identity, kind: InputKind::Namespace(namespace) }
}

fn namespace_output(
    name: String,
    namespace: Arc<dyn Namespace>,
    identity: Identity,
) -> Result<Output> {
    let geometry = namespace.geometry();
    if geometry.read_only {
        return Err(Failure::run(format_args!("{name} is read-only: the target refuses writes")));
    }
    let capacity = Some(geometry.capacity_bytes());
    Ok(Output { name, capacity, identity, kind: OutputKind::Namespace(namespace) })
}

fn file_input(path: &Path) -> Result<Input> {
    let name = path.display().to_string();
    // Check this before opening: Windows cannot open a directory.
    if path.is_dir() {
        return Err(Failure::run(format_args!("{name} is a directory: name a file in it")));
    }
    let mut file = File::open(path).map_err(|error| cannot("read", &name, &error))?;
    let metadata = file.metadata().map_err(|error| cannot("read", &name, &error))?;
    let bytes = if metadata.is_file() {
        Some(metadata.len())
    } else if is_block_device(metadata.file_type()) {
        Some(device_bytes(&mut file, &name)?)
    } else {
        None
    };
    let identity = file_identity(&file);
    let kind = match bytes {
        Some(_) => InputKind::File(file),
        None => InputKind::Stream(Some(Box::new(file))),
    };
    Ok(Input { name, bytes, identity, kind })
}

/// Opens a destination. A regular file is written next to the old file, then renamed. Other files
/// are written in place.
fn file_output(path: &Path, options: &TransferArgs) -> Result<Output> {
    let name = path.display().to_string();
    if path.is_dir() {
        return Err(Failure::run(format_args!("{name} is a directory: name a file in it")));
    }
    let special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    // Do not replace names in /dev and /proc: they may stand for files that are already open.
    if !special && !path.starts_with("/dev") && !path.starts_with("/proc") {
        let new = Replacement::begin(path, options.resume)?;
        let identity = new.old().map_or(Identity::Unknown, file_identity);
        return Ok(Output { name, capacity: None, identity, kind: OutputKind::Regular(Some(new)) });
    }
    let mut file = open_in_place(path, options.verify).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => refused(path, FileProblem::Busy),
        _ => cannot("write to", &name, &error),
    })?;
    let metadata = file.metadata().map_err(|error| cannot("write to", &name, &error))?;
    let identity = file_identity(&file);
    let (capacity, kind) = if is_block_device(metadata.file_type()) {
        (Some(device_bytes(&mut file, &name)?), OutputKind::Device(file))
    } else {
        (None, OutputKind::Stream(Some(file)))
    };
    Ok(Output { name, capacity, identity, kind })
}

/// Opens a device or pipe. Fails if the device is mounted, or in exclusive use by the kernel.
fn open_in_place(path: &Path, verify: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(verify).write(true);
    #[cfg(target_os = "linux")]
    if std::fs::metadata(path).is_ok_and(|found| is_block_device(found.file_type())) {
        use std::os::unix::fs::OpenOptionsExt;
        // Also open it for reading, which the locks against QEMU need.
        options.read(true).custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
    }
    options.open(path)
}

fn device_bytes(file: &mut File, name: &str) -> Result<u64> {
    let size = file.seek(SeekFrom::End(0)).and_then(|size| file.rewind().map(|()| size));
    size.map_err(|error| cannot("find the size of", name, &error))
}

#[cfg(unix)]
fn is_block_device(file_type: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&file_type)
}

#[cfg(not(unix))]
fn is_block_device(_: FileType) -> bool {
    false
}

#[cfg(unix)]
fn file_identity(file: &File) -> Identity {
    use std::os::unix::fs::MetadataExt;
    file.metadata()
        .map_or(Identity::Unknown, |metadata| Identity::File(metadata.dev(), metadata.ino()))
}

fn file_number(file: &File) -> Option<String> {
    match file_identity(file) {
        Identity::File(device, number) => Some(format!("file {device}:{number}")),
        _ => None,
    }
}

/// Returns the identity and version of a file; for a device, only the identity.
fn file_state(file: &File) -> Option<String> {
    let metadata = file.metadata().ok()?;
    #[cfg(unix)]
    if is_block_device(metadata.file_type()) {
        let number = std::os::unix::fs::MetadataExt::rdev(&metadata);
        return Some(format!("device {number}"));
    }
    Some(format!("{} of {}", file_number(file)?, changed(&metadata)?))
}

/// Returns the time of the inode's last change (ctime). Unlike the modification time, no program
/// can set it back.
#[cfg(unix)]
fn changed(metadata: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    Some(format!("{}.{:09}", metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(not(unix))]
fn changed(metadata: &Metadata) -> Option<String> {
    let since = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH);
    Some(since.unwrap_or_default().as_nanos().to_string())
}

#[cfg(windows)]
fn file_identity(file: &File) -> Identity {
    match winapi_util::file::information(file) {
        Ok(found) => Identity::File(found.volume_serial_number(), found.file_index()),
        Err(_) => Identity::Unknown,
    }
}

/// Refuses a source and a destination that are the same disk or file: the copy would read data that
/// it has just written.
pub(super) fn check_different(input: &Input, output: &Output) -> Result<()> {
    if input.identity != Identity::Unknown && input.identity == output.identity {
        return Err(Failure::usage(format_args!(
            "{} and {} are the same disk or file: nothing to copy",
            input.name, output.name
        )));
    }
    Ok(())
}
