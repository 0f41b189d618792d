//! Connected disks, and blocking calls on them.

use crate::fork::Process;
use crate::limits;
use crate::memory::{Memory, give, handle, text, write_sized};
use crate::options::{self, Given, fb_options};
use crate::paths::{Grants, fb_disk_state, fb_path_info};
use crate::status::{Failure, Outcome, fb_status, guard};
use crate::waiting::Waiting;
use crate::worker::{QueueRequest, Worker};
use farblock_block::{Command, Geometry, Namespace};
use farblock_host::disk::{DiskOptions, PathState, PathStatus};
use farblock_host::{Controller, Disk, Options, Url};
use farblock_reactor::Config;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A property of a disk: the disk refuses writes and other changes.
pub const FB_READ_ONLY: u32 = 1;
/// A property of a disk: a crash may lose written data that no flush followed.
pub const FB_VOLATILE_CACHE: u32 = 2;
/// A property of a disk: deallocating frees space.
pub const FB_DEALLOCATE: u32 = 4;

/// A flag for writes and zeroing: the data is durable when the operation completes.
pub const FB_DURABLE: u32 = 1;
/// A flag for zeroing: the space stays allocated.
pub const FB_KEEP_ALLOCATED: u32 = 2;

/// The maximum number of bytes in one piece of a blocking call with data.
const PIECE_BYTES: u64 = 1 << 30;
/// The maximum number of bytes in one piece of a blocking call without data.
const DATALESS_PIECE_BYTES: u64 = 1 << 40;

/// A connected namespace, over one path or several paths. Several threads may use a disk at the
/// same time. The disk outlives its connections: the library reconnects lost connections, and
/// operations wait meanwhile.
pub struct fb_disk {
    /// The thread of the blocking calls. The first blocking call starts it, because programs with
    /// their own queues do not need it. Drop the thread before the disk; the drop waits for the
    /// thread.
    worker: Mutex<Option<Arc<Worker>>>,
    pub(crate) disk: Disk,
    description: CString,
    urls: Vec<CString>,
    namespace_id: u32,
    pub(crate) grants: Grants,
    pub(crate) reactor: Config,
    process: Process,
    waiting: Waiting,
}

/// The properties of a disk. Set `size` to `sizeof(fb_info)` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_info {
    /// Set this to `sizeof(fb_info)`. The library then knows your version of the structure.
    pub size: usize,
    /// The capacity in bytes.
    pub capacity_bytes: u64,
    /// The capacity in blocks.
    pub blocks: u64,
    /// Operations that do not cross a multiple of this many bytes are fastest. 0: no preference.
    pub optimal_bytes: u64,
    /// Writes in aligned multiples of this many bytes are fastest. 0: no preference.
    pub preferred_write_bytes: u64,
    /// A description for users, in one line. Valid until fb_disconnect.
    pub description: *const c_char,
    /// The block size in bytes.
    pub block_size: u32,
    /// Any of FB_READ_ONLY, FB_VOLATILE_CACHE, FB_DEALLOCATE.
    pub flags: u32,
    /// The namespace's identifier.
    pub namespace_id: u32,
    /// The maximum number of open queues, without the queue of the blocking calls.
    pub queues: u16,
    /// The maximum number of commands in flight per queue. Further commands wait.
    pub queue_depth: u16,
    /// The number of changes to any of these fields, or to the state of a path, so far.
    pub changes: u64,
    /// The state of the disk: an `fb_disk_state`.
    pub state: u32,
    /// The number of paths; `fb_describe_path` describes each of them.
    pub paths: u16,
    /// The number of connected paths.
    pub live_paths: u16,
}

/// Connects to the disk at a URL: `nvme+tcp://host:4420/nqn...?ns=1`. Several URLs, separated by
/// blanks, are several paths to one namespace. A URL may omit the namespace if the subsystem has
/// only one. `options` may be null.
///
/// Waits until one path is connected, for as long as the options allow. From then on, the library
/// reconnects lost connections, and operations use another path or wait. Operations fail with
/// FB_STATUS_LOST when the option `ctrl_loss_timeout_ms` or `fast_io_fail_timeout_ms` has passed.
/// Reconnecting never loses an operation, never executes it twice, and never executes a write late.
///
/// # Safety
/// Each pointer must be null or valid: `url` for a text, `options` for options, `disk` for the
/// result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_connect(
    url: *const c_char,
    options: *const fb_options,
    disk: *mut *mut fb_disk,
) -> fb_status {
    guard(|| {
        Process::current();
        // SAFETY: the caller promises valid pointers.
        let (url, given) = unsafe {
            give(disk, std::ptr::null_mut(), "disk")?;
            (text(url, "the URL")?, options::read(options)?)
        };
        let url = url.to_owned();
        let connected = given.waiting.run(move || fb_disk::connect(&url, given))?;
        let connected = Box::new(connected);
        // SAFETY: the caller promises a valid pointer.
        unsafe { give(disk, Box::into_raw(connected), "disk") }
    })
}

/// Releases a disk. Does nothing if `disk` is null. The disk's queues keep working until the caller
/// closes them. No other call may be using the disk. In a forked process this call does nothing.
///
/// # Safety
/// `disk` must be null, or a disk that no call uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_disconnect(disk: *mut fb_disk) {
    guard(|| {
        // SAFETY: the caller promises a valid disk.
        let forked = !disk.is_null() && !unsafe { handle(disk, "disk")? }.process.is_current();
        // A forked process does not have the threads that the drop would wait for.
        if !disk.is_null() && !forked {
            // SAFETY: `fb_connect` made the disk from a box, and the caller promises that it is not
            // freed yet.
            drop(unsafe { Box::from_raw(disk) });
        }
        Ok(())
    });
}

/// Describes the current state of a disk. The size of a disk may change while it is connected.
///
/// # Safety
/// Each pointer must be null or valid: `disk` for a disk, `info` for at least `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_describe(disk: *const fb_disk, info: *mut fb_info) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises valid pointers.
        let disk = unsafe { handle(disk, "disk") }?;
        disk.check_process()?;
        // SAFETY: the caller promises a valid pointer.
        unsafe { write_sized(info, &disk.info(), "fb_info") }
    })
}

/// Describes one path of a disk. `index` counts the URLs from 0, and must be less than
/// `fb_info.paths`.
///
/// # Safety
/// Each pointer must be null or valid: `disk` for a disk, `info` for at least `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_describe_path(
    disk: *const fb_disk,
    index: u32,
    info: *mut fb_path_info,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises a valid pointer.
        let disk = unsafe { handle(disk, "disk") }?;
        disk.check_process()?;
        let paths = disk.disk.paths();
        let at = index as usize;
        let (Some(status), Some(url)) = (paths.get(at), disk.urls.get(at)) else {
            let text = format!("the disk has no path {index}: it has {}", paths.len());
            return Err(Failure::argument(text));
        };
        // SAFETY: the caller promises a valid pointer.
        unsafe { write_sized(info, &fb_path_info::new(status, url.as_ptr()), "fb_path_info") }
    })
}

/// Reads `length` bytes at `offset` into `data`. The range may have any number of whole blocks.
/// Returns when the data has arrived. The library splits a large transfer into parts; if one part
/// fails, the later parts do not start.
///
/// # Safety
/// `disk` must be null or valid. `data` must have `length` bytes that no other thread uses during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_read(
    disk: *const fb_disk,
    data: *mut c_void,
    offset: u64,
    length: u64,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises valid pointers.
        let (disk, data) = unsafe { (handle(disk, "disk")?, Memory::new(data.cast(), length)?) };
        disk.transfer(Command::Read, Some(data), offset, length, 0)
    })
}

/// Writes `length` bytes of `data` at `offset`. `flags` is 0 or FB_DURABLE. Otherwise works like
/// `fb_read`.
///
/// # Safety
/// `disk` must be null or valid. `data` must have `length` bytes that no thread changes during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_write(
    disk: *const fb_disk,
    data: *const c_void,
    offset: u64,
    length: u64,
    flags: u32,
) -> fb_status {
    guard(|| {
        check_flags(flags, FB_DURABLE)?;
        let data = data.cast_mut().cast();
        // SAFETY: the caller promises valid pointers. The library only reads the data of a write.
        let (disk, data) = unsafe { (handle(disk, "disk")?, Memory::new(data, length)?) };
        disk.transfer(Command::Write, Some(data), offset, length, flags)
    })
}

/// Makes all earlier completed writes durable.
///
/// # Safety
/// `disk` must be null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_flush(disk: *const fb_disk) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises a valid pointer.
        let disk = unsafe { handle(disk, "disk") }?;
        disk.call(QueueRequest {
            command: Command::Flush,
            lba: 0,
            blocks: 0,
            fua: false,
            data: None,
        })
    })
}

/// Makes a range of whole blocks read as zeroes, without transferring data. `flags` may have
/// FB_DURABLE and FB_KEEP_ALLOCATED.
///
/// # Safety
/// `disk` must be null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_write_zeroes(
    disk: *const fb_disk,
    offset: u64,
    length: u64,
    flags: u32,
) -> fb_status {
    guard(|| {
        check_flags(flags, FB_DURABLE | FB_KEEP_ALLOCATED)?;
        let command = Command::WriteZeroes { deallocate: flags & FB_KEEP_ALLOCATED == 0 };
        // SAFETY: the caller promises a valid pointer.
        unsafe { handle(disk, "disk") }?.transfer(command, None, offset, length, flags)
    })
}

/// Tells the disk that the caller no longer needs a range of whole blocks. The range then reads as
/// zeroes or as before. This is a hint, which the disk may ignore.
///
/// # Safety
/// `disk` must be null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_deallocate(
    disk: *const fb_disk,
    offset: u64,
    length: u64,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises a valid pointer.
        unsafe { handle(disk, "disk") }?.transfer(Command::Deallocate, None, offset, length, 0)
    })
}

impl fb_disk {
    fn connect(text: &str, given: Given) -> Result<fb_disk, Failure> {
        let Given { disk: options, waiting, reactor } = given;
        let urls = addresses(text)?;
        let urls = with_namespace(urls, &options)?;
        let disk = Disk::connect(&urls, &options)?;
        let description = CString::new(disk.describe()).unwrap_or_default();
        let text = |url: &Url| CString::new(url.to_string()).unwrap_or_default();
        Ok(fb_disk {
            worker: Mutex::default(),
            description,
            urls: urls.iter().map(text).collect(),
            namespace_id: urls[0].namespace.unwrap_or(1),
            grants: Grants::default(),
            reactor,
            process: Process::current(),
            waiting,
            disk,
        })
    }

    /// Fails in a process that was forked after the disk was connected. Call this function before
    /// any other access to the disk, because a thread of the parent may have held its locks.
    pub(crate) fn check_process(&self) -> Outcome {
        match self.process.is_current() {
            true => Ok(()),
            false => Err(Failure::new(
                fb_status::Thread,
                "the disk was connected before the process was forked: connect again",
            )),
        }
    }

    fn info(&self) -> fb_info {
        let geometry = self.disk.geometry();
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(geometry.block_size);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        // Read the counter first. A change during the other reads then counts as a change that the
        // caller has not seen.
        let changes = self.disk.changes().generation();
        let paths = self.disk.paths();
        let (queues, queue_depth) = self.grants.of(&paths);
        fb_info {
            size: size_of::<fb_info>(),
            capacity_bytes: geometry.capacity_bytes(),
            blocks: geometry.blocks,
            optimal_bytes: bytes(geometry.optimal_blocks),
            preferred_write_bytes: bytes(geometry.preferred_blocks),
            description: self.description.as_ptr(),
            block_size: geometry.block_size,
            flags: flag(geometry.read_only, FB_READ_ONLY)
                | flag(geometry.volatile_cache, FB_VOLATILE_CACHE)
                | flag(geometry.deallocate, FB_DEALLOCATE),
            namespace_id: self.namespace_id,
            queues: queues.saturating_sub(1),
            queue_depth,
            changes,
            state: fb_disk_state::from(self.disk.state()) as u32,
            paths: paths.len() as u16,
            live_paths: paths.iter().filter(|path| path.state == PathState::Live).count() as u16,
        }
    }

    /// Executes an operation on a range, in pieces if the range is large.
    fn transfer(
        &self,
        command: Command,
        mut data: Option<Memory>,
        offset: u64,
        length: u64,
        flags: u32,
    ) -> Outcome {
        self.check_process()?;
        let geometry = self.disk.geometry();
        // Check the whole range first, so that no part of an invalid range starts.
        let (lba, blocks) = range(&geometry, command, offset, length)?;
        let most = if data.is_some() { PIECE_BYTES } else { DATALESS_PIECE_BYTES };
        let most = most / u64::from(geometry.block_size);
        let mut done = 0;
        // An empty range takes one pass of the loop.
        while done < blocks || (blocks == 0 && done == 0) {
            let blocks_now = most.min(blocks - done) as u32;
            let data = data.as_mut().map(|data| data.cut(geometry.bytes(blocks_now)));
            let fua = flags & FB_DURABLE != 0;
            self.call(QueueRequest { command, lba: lba + done, blocks: blocks_now, fua, data })?;
            done += u64::from(blocks_now.max(1));
        }
        Ok(())
    }

    fn call(&self, request: QueueRequest) -> Outcome {
        self.check_process()?;
        self.worker()?.call(request, self.waiting).map_err(|failure| self.explain(failure))
    }

    fn worker(&self) -> Result<Arc<Worker>, Failure> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = &*worker {
            return Ok(Arc::clone(worker));
        }
        let started = Arc::new(Worker::start(&self.disk, &self.reactor)?);
        Ok(Arc::clone(worker.insert(started)))
    }

    /// Adds the errors of the paths to a failure that a lost connection caused.
    fn explain(&self, failure: Failure) -> Failure {
        if failure.status != fb_status::Lost {
            return failure;
        }
        let story = |path: PathStatus| path.error.map(|error| format!("; {}: {error}", path.url));
        let stories: String = self.disk.paths().into_iter().filter_map(story).collect();
        let text = format!("the connection to the disk is lost, and reconnecting failed{stories}");
        Failure::new(fb_status::Lost, text)
    }
}

/// Parses the URLs in a text.
fn addresses(text: &str) -> Result<Vec<Url>, Failure> {
    let words = text.split_whitespace();
    let urls: Vec<Url> =
        words.map(str::parse).collect::<Result<_, _>>().map_err(Failure::argument)?;
    if urls.is_empty() {
        return Err(Failure::argument("the text contains no URL: write nvme+tcp://HOST/NQN"));
    }
    match urls.iter().find(|url| url.subsystem.is_none()) {
        Some(url) => Err(Failure::argument(format!("{url} names no subsystem: write {url}/NQN"))),
        None => Ok(urls),
    }
}

/// Adds a namespace to all URLs: the namespace that any of them names, or the subsystem's only
/// namespace.
fn with_namespace(mut urls: Vec<Url>, options: &DiskOptions) -> Result<Vec<Url>, Failure> {
    let begin = Instant::now();
    let nsid = loop {
        if let Some(nsid) = urls.iter().find_map(|url| url.namespace) {
            break nsid;
        }
        match only_namespace(&urls, &options.connection) {
            Err(failure) if may_pass(&failure) && begin.elapsed() < options.connect_wait => {
                std::thread::sleep(limits::CONNECT_PAUSE);
            }
            result => break result?,
        }
    };
    urls.iter_mut().for_each(|url| url.namespace = url.namespace.or(Some(nsid)));
    Ok(urls)
}

/// True if the failure may be temporary: the target may still be starting, or not be configured
/// yet.
fn may_pass(failure: &Failure) -> bool {
    use fb_status::{Connect, Denied, Lost, Missing};
    matches!(failure.status, Connect | Denied | Lost | Missing)
}

fn only_namespace(urls: &[Url], options: &Options) -> Result<u32, Failure> {
    let mut error = None;
    for url in urls {
        let controller = match Controller::connect_url(url, options) {
            Ok(controller) => controller,
            Err(reason) => {
                error.get_or_insert(reason);
                continue;
            }
        };
        return match controller.namespace_ids()?.as_slice() {
            [only] => Ok(*only),
            [] => Err(Failure::new(fb_status::Missing, format!("{url} has no namespaces"))),
            several => {
                let ids: Vec<String> = several.iter().map(u32::to_string).collect();
                let (first, ids) = (several[0], ids.join(", "));
                Err(Failure::argument(format!(
                    "{url} has several namespaces ({ids}): choose one, as in {url}?ns={first}"
                )))
            }
        };
    }
    Err(error.expect("every URL failed").into())
}

/// Converts a range in bytes to a first block and a number of blocks.
pub(crate) fn range(
    geometry: &Geometry,
    command: Command,
    offset: u64,
    length: u64,
) -> Result<(u64, u64), Failure> {
    let size = u64::from(geometry.block_size);
    for (what, value) in [("offset", offset), ("length", length)] {
        if !value.is_multiple_of(size) {
            let text = format!("the {what} {value} is not a multiple of the block size, {size}");
            return Err(Failure::new(fb_status::Alignment, text));
        }
    }
    let (lba, blocks) = (offset / size, length / size);
    geometry.check(command, lba, blocks).map_err(|error| {
        let capacity = geometry.capacity_bytes();
        let text =
            format!("{error}: {length} bytes at offset {offset} of a disk of {capacity} bytes");
        Failure::new(crate::status::block_status(error), text)
    })?;
    Ok((lba, blocks))
}

pub(crate) fn check_flags(flags: u32, allowed: u32) -> Outcome {
    match flags & !allowed {
        0 => Ok(()),
        unknown => {
            Err(Failure::argument(format!("this call does not support the flags {unknown:#x}")))
        }
    }
}
