//! The two ends of a transfer as people name them: URLs, files, pipes and local disks.

use super::sink::{FileSink, NamespaceSink, Sink};
use super::source::Source;
use crate::args::DigestArgs;
use crate::args::Global;
use crate::error::{Failure, Result, os};
use crate::remote;
use farblock_backends::Spec;
use farblock_backends::size::Size;
use farblock_block::Namespace;
use farblock_host::url::{SCHEME, Url, UrlError};
use farblock_host::{Options, RemoteNamespace};
use farblock_reactor::EngineKind;
use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Component, Path, PathBuf, Prefix};
use std::sync::Arc;

/// Bytes in a block of local disks that are not plain files.
const LOCAL_BLOCK_BYTES: u32 = 512;

/// An end by its name.
pub(super) enum Place {
    Remote(Box<Url>),
    /// `mem:`, `null:`, `stripe:` and so on.
    Local(Spec),
    File(PathBuf),
    /// `-`: the standard input or output.
    Pipe,
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Place> {
        if text.starts_with(SCHEME) {
            let url: Url = text.parse().map_err(|error: UrlError| Failure::usage(error))?;
            return Ok(Place::Remote(Box::new(url)));
        }
        if text == "-" {
            return Ok(Place::Pipe);
        }
        match Spec::parse(text) {
            // Raw disks take whole sectors only, which is what a namespace of theirs does.
            Ok(Spec::File(path)) if !is_raw_disk(&path) => Ok(Place::File(path)),
            Ok(other) => Ok(Place::Local(other)),
            Err(error) => Err(Failure::usage(error)),
        }
    }

    /// A file by its path, `-` being a pipe.
    pub(super) fn of_path(path: &Path) -> Place {
        if path == Path::new("-") {
            Place::Pipe
        } else if is_raw_disk(path) {
            Place::Local(Spec::File(path.to_owned()))
        } else {
            Place::File(path.to_owned())
        }
    }
}

/// How ends are opened.
pub(super) struct Opener<'a> {
    pub(super) global: &'a Global,
    pub(super) digests: DigestArgs,
}

/// What tells two ends apart.
#[derive(PartialEq, Eq)]
pub(super) enum Identity {
    /// Device and inode number, or what Windows calls volume and file index.
    File(u64, u64),
    /// Where it is and what it is called.
    Remote(String),
    Unknown,
}

/// What a transfer reads.
pub(super) struct Input {
    pub(super) name: String,
    /// If it is known.
    pub(super) bytes: Option<u64>,
    pub(super) identity: Identity,
    kind: InputKind,
}

enum InputKind {
    Namespace(Arc<dyn Namespace>),
    File(File),
    Pipe,
}

/// What a transfer writes.
pub(super) struct Output {
    pub(super) name: String,
    /// How much fits, if there is a limit.
    pub(super) capacity: Option<u64>,
    pub(super) identity: Identity,
    kind: OutputKind,
}

enum OutputKind {
    Namespace(Arc<dyn Namespace>),
    /// A regular file, to be emptied when it starts.
    Regular(File),
    Device(File),
    Stream(File),
    Pipe,
}

impl Opener<'_> {
    fn engine(&self) -> EngineKind {
        self.global.engine
    }

    fn options(&self) -> Options {
        remote::options(self.global, self.digests)
    }

    pub(super) fn input(&self, place: &Place) -> Result<Input> {
        match place {
            Place::Remote(url) => {
                let namespace = remote::open(url, &self.options())?;
                let identity = remote_identity(url, &namespace);
                Ok(namespace_input(format!("{url}"), Arc::new(namespace), identity))
            }
            Place::Local(spec) => {
                let namespace = spec.open(LOCAL_BLOCK_BYTES, true)?;
                Ok(namespace_input(spec.to_string(), namespace, Identity::Unknown))
            }
            Place::File(path) => file_input(path),
            Place::Pipe => Ok(Input {
                name: "the standard input".to_owned(),
                bytes: None,
                identity: Identity::Unknown,
                kind: InputKind::Pipe,
            }),
        }
    }

    pub(super) fn output(&self, place: &Place) -> Result<Output> {
        match place {
            Place::Remote(url) => {
                let namespace = remote::open(url, &self.options())?;
                let identity = remote_identity(url, &namespace);
                namespace_output(format!("{url}"), Arc::new(namespace), identity)
            }
            Place::Local(spec) => {
                let namespace = spec.open(LOCAL_BLOCK_BYTES, false)?;
                namespace_output(spec.to_string(), namespace, Identity::Unknown)
            }
            Place::File(path) => file_output(path),
            Place::Pipe => Ok(Output {
                name: "the standard output".to_owned(),
                capacity: None,
                identity: Identity::Unknown,
                kind: OutputKind::Pipe,
            }),
        }
    }

    /// Starts reading `range`; a pipe is read from where it is.
    pub(super) fn start_input(&self, input: Input, range: Range<u64>) -> Result<Source> {
        let limit = Some(range.end - range.start);
        match input.kind {
            InputKind::Namespace(namespace) => {
                Source::namespace(&namespace, input.name, self.engine(), range)
            }
            InputKind::File(file) => {
                lock(&file, &input.name, false)?;
                Source::stream(file, input.name, limit)
            }
            InputKind::Pipe => Source::stream(io::stdin(), input.name, limit),
        }
    }

    /// Starts writing at `offset`, which only namespaces have.
    pub(super) fn start_output(&self, output: Output, offset: u64) -> Result<Sink> {
        let name = output.name;
        match output.kind {
            OutputKind::Namespace(namespace) => {
                let sink = NamespaceSink::open(&*namespace, self.engine(), name, offset)?;
                Ok(Sink::Namespace(Box::new(sink)))
            }
            OutputKind::Regular(file) => {
                lock(&file, &name, true)?;
                file.set_len(0).map_err(|error| cannot("empty", &name, &error))?;
                Ok(Sink::File(FileSink::new(file, name, true)))
            }
            OutputKind::Device(file) => {
                lock(&file, &name, true)?;
                Ok(Sink::File(FileSink::new(file, name, false)))
            }
            OutputKind::Stream(file) => {
                Ok(Sink::Stream { output: Box::new(file), name, written: 0 })
            }
            OutputKind::Pipe => {
                Ok(Sink::Stream { output: Box::new(standard_output()?), name, written: 0 })
            }
        }
    }
}

/// Whether a path names a device of Windows (`\\.\PhysicalDrive1`, `\\.\D:`).
fn is_raw_disk(path: &Path) -> bool {
    matches!(
        path.components().next(),
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::DeviceNS(_))
    )
}

/// The standard output without the buffer that looks for lines in what passes through.
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

fn cannot(what: &str, name: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": change its permissions, or run as another user",
        io::ErrorKind::NotFound if what == "create" => ": make its directory first",
        _ => "",
    };
    Failure::run(format_args!("cannot {what} {name}: {}{hint}", os(error)))
}

fn remote_identity(url: &Url, namespace: &RemoteNamespace) -> Identity {
    let info = namespace.info();
    // A namespace's own identifiers tell the same one at two addresses.
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
    // Before opening, which Windows refuses.
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
    Ok(Input { name, bytes, identity, kind: InputKind::File(file) })
}

fn file_output(path: &Path) -> Result<Output> {
    let name = path.display().to_string();
    if path.is_dir() {
        return Err(Failure::run(format_args!("{name} is a directory: name a file in it")));
    }
    let what = if path.exists() { "write to" } else { "create" };
    // Not emptied yet: the other end may still turn out to be unusable.
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let mut file = opened.map_err(|error| cannot(what, &name, &error))?;
    let metadata = file.metadata().map_err(|error| cannot("write to", &name, &error))?;
    let identity = file_identity(&file);
    let (capacity, kind) = if metadata.is_file() {
        (None, OutputKind::Regular(file))
    } else if is_block_device(metadata.file_type()) {
        (Some(device_bytes(&mut file, &name)?), OutputKind::Device(file))
    } else {
        (None, OutputKind::Stream(file))
    };
    Ok(Output { name, capacity, identity, kind })
}

/// Makes sure that no target shares the file meanwhile: they hold such a lock too.
fn lock(file: &File, name: &str, write: bool) -> Result<()> {
    let locked = if write { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Err(TryLockError::WouldBlock) => Err(Failure::run(format_args!(
            "{name} is in use by another program, perhaps a target that shares it: stop that \
             first, or reach the disk through its URL"
        ))),
        // A file system without locks has no targets with locks either.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
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

#[cfg(windows)]
fn file_identity(file: &File) -> Identity {
    match winapi_util::file::information(file) {
        Ok(found) => Identity::File(found.volume_serial_number(), found.file_index()),
        Err(_) => Identity::Unknown,
    }
}

/// Refuses two ends that are the same: a copy would read what it has just written.
pub(super) fn check_different(input: &Input, output: &Output) -> Result<()> {
    if input.identity != Identity::Unknown && input.identity == output.identity {
        return Err(Failure::usage(format_args!(
            "{} and {} are the same: nothing to copy",
            input.name, output.name
        )));
    }
    Ok(())
}

/// A number of bytes, exactly and for people.
pub(super) fn exact(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    format!("{bytes} bytes ({})", Size(bytes))
}
