//! Queues with submit and poll, for programs that keep many operations in flight.

use crate::disk::{FB_DURABLE, FB_KEEP_ALLOCATED, check_flags, fb_disk, range};
use crate::fork::Process;
use crate::limits;
use crate::memory::{Loans, Memory, give, handle};
use crate::status::{Failure, Outcome, block_status, fb_status, guard, guarded};
use farblock_block::{Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_host::Disk;
use farblock_reactor::{Reactor, TaskId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// The maximum number of operations of a queue, including completed ones that `fb_poll` has not yet
/// returned.
pub const FB_QUEUE_OPERATIONS: u32 = 65536;
/// The maximum number of disks of a queue.
pub const FB_QUEUE_DISKS: u32 = 1024;

/// The command of an operation: a value of `fb_op.kind`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_kind {
    /// Reads into `data`.
    Read = 1,
    /// Writes from `data`. The flag FB_DURABLE is possible.
    Write = 2,
    /// Makes all earlier completed writes durable. The operation has no range.
    Flush = 3,
    /// Makes the range read as zeroes. The flags FB_DURABLE and FB_KEEP_ALLOCATED are possible.
    WriteZeroes = 4,
    /// Tells the disk that the caller no longer needs the range.
    Deallocate = 5,
}

/// An operation to submit. Set unused fields to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_op {
    /// A value of the caller, which the completion returns.
    pub user: *mut c_void,
    /// For reads and writes: memory of `length` bytes at any address. The operation owns this
    /// memory until it completes. Until then, do not change, free or read it (the caller may read
    /// the data of a write).
    pub data: *mut c_void,
    /// The start of the range, in bytes: a multiple of the block size.
    pub offset: u64,
    /// The length of the range, in bytes: a multiple of the block size, of less than 2^32 blocks.
    pub length: u64,
    /// The command: an `fb_kind`.
    pub kind: u32,
    /// The flags FB_DURABLE and FB_KEEP_ALLOCATED.
    pub flags: u32,
    /// The number of one of the queue's disks; 0 for the disk with which the queue was opened.
    pub disk: u32,
    /// Must be zero.
    pub reserved: u32,
}

/// A completed operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_completion {
    /// `fb_op.user` of the operation.
    pub user: *mut c_void,
    /// The result of the operation.
    pub status: fb_status,
    /// `fb_op.disk` of the operation.
    pub disk: u32,
}

/// Keeps many operations in flight, on one disk or several disks, without threads or copies. Only
/// the thread that opened a queue may use it.
pub struct fb_queue {
    thread: ThreadId,
    process: Process,
    /// Borrowed during a call, so that no call can run within another call.
    inner: RefCell<Inner>,
}

/// Fields in drop order. The event loop is dropped last, and its drop waits until the system no
/// longer uses the caller's memory.
struct Inner {
    disks: Vec<Lane>,
    done: Vec<Completion>,
    reactor: Reactor,
    task: TaskId,
    loans: Loans,
    finished: VecDeque<fb_completion>,
    in_flight: usize,
    ready: Vec<TaskId>,
    /// True after a panic. The state of the queue is then not reliable.
    broken: bool,
}

/// One disk of an `fb_queue`, with the internal queue to this disk.
struct Lane {
    queue: Box<dyn Queue>,
    /// The disk of `queue`.
    disk: Disk,
    /// True if the caller has submitted operations since `queue` was last polled.
    submitted: bool,
}

/// Opens a queue to a disk, with the queue's own connection over each path. This call does not wait
/// for the connections. Operations wait for them, and fail with FB_STATUS_RESOURCES if all queues
/// of the disk are in use. The queue keeps working after the disk is released.
///
/// # Safety
/// Each pointer must be null or valid: `disk` for a disk, `queue` for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_open(
    disk: *const fb_disk,
    queue: *mut *mut fb_queue,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises valid pointers.
        let disk = unsafe {
            give(queue, std::ptr::null_mut(), "queue")?;
            handle(disk, "disk")?
        };
        let opened = Box::new(fb_queue::open(disk)?);
        // SAFETY: the caller promises a valid pointer.
        unsafe { give(queue, Box::into_raw(opened), "queue") }
    })
}

/// Adds a disk to a queue, so that one `fb_poll` waits for several disks. `index` receives the
/// disk's number for `fb_op.disk`: 1 for the second disk, and so on.
///
/// # Safety
/// Each pointer must be null or valid: `queue` for a queue, `disk` for a disk, `index` for the
/// result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_add(
    queue: *mut fb_queue,
    disk: *const fb_disk,
    index: *mut u32,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises valid pointers.
        let (queue, disk) = unsafe {
            give(index, 0, "number of the disk")?;
            (handle(queue, "queue")?, handle(disk, "disk")?)
        };
        let number = queue.with(|inner| inner.add(disk))?;
        // SAFETY: the caller promises a valid pointer.
        unsafe { give(index, number, "number of the disk") }
    })
}

/// Closes a queue. Does nothing if `queue` is null, or in a forked process. Only the thread that
/// opened the queue may close it.
///
/// The call drops operations that have not started, and waits for the started ones. So no write of
/// the queue executes after the call and undoes a later write. The call does not report the results
/// of these operations.
///
/// If the started operations do not end within 30 seconds, because the target is unreachable, the
/// call returns FB_STATUS_LOST. A write may then still be executed, once. The queue is closed in
/// any case, and the memory of its operations belongs to the caller again. If the kernel does not
/// release that memory, the library aborts the process (SIGABRT).
///
/// # Safety
/// `queue` must be null, or a queue that no call uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_close(queue: *mut fb_queue) -> fb_status {
    guard(|| {
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: the caller promises a valid queue.
        let reference = unsafe { handle(queue, "queue") }?;
        if !reference.process.is_current() {
            return Ok(());
        }
        reference.check_thread()?;
        // SAFETY: `fb_queue_open` made the queue from a box, and the caller promises that it is not
        // freed yet.
        let queue = unsafe { Box::from_raw(queue) };
        // After an earlier panic, `with` returns at once, because the state is not reliable.
        queue.with(Inner::finish)
    })
}

/// Submits an operation. The operation starts at the next `fb_poll` at the latest, so that the
/// library can send several operations together. If this call fails, it has submitted nothing.
///
/// # Safety
/// Each pointer must be null or valid: `queue` for a queue, `op` for an operation. The operation's
/// `data` must have `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_submit(queue: *mut fb_queue, op: *const fb_op) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises a valid pointer.
        let queue = unsafe { handle(queue, "queue") }?;
        if op.is_null() {
            return Err(Failure::argument("the operation is null"));
        }
        // SAFETY: the caller promises a valid pointer.
        let op = unsafe { op.read_unaligned() };
        queue.with(|inner| inner.submit(&op))
    })
}

/// Starts the submitted operations, and waits until at least `min` operations have completed or
/// `timeout_us` microseconds have passed (negative: no limit). Writes up to `max` completions.
/// Returns their number, or a negative `fb_status`. If `min` is 0, the call does not wait. If fewer
/// than `min` operations are in flight, it waits only for these.
///
/// # Safety
/// `queue` must be null or valid. `completions` must have room for `max` completions; it may be
/// null if `max` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_poll(
    queue: *mut fb_queue,
    completions: *mut fb_completion,
    min: u32,
    max: u32,
    timeout_us: i64,
) -> i32 {
    let polled = guarded(|| {
        // SAFETY: the caller promises a valid pointer.
        let queue = unsafe { handle(queue, "queue") }?;
        if completions.is_null() && max > 0 {
            return Err(Failure::argument("the pointer for completions is null"));
        }
        if min > max {
            let text = format!("the minimum of {min} completions exceeds the maximum of {max}");
            return Err(Failure::argument(text));
        }
        queue.with(|inner| {
            inner.poll(min as usize, timeout_us)?;
            let count = inner.finished.len().min(max as usize);
            for (at, completion) in inner.finished.drain(..count).enumerate() {
                // SAFETY: the caller promises room for `max` completions.
                unsafe { completions.add(at).write_unaligned(completion) };
            }
            Ok(count as i32)
        })
    });
    polled.unwrap_or_else(|failure| failure.leave() as i32)
}

impl fb_queue {
    fn open(disk: &fb_disk) -> Result<fb_queue, Failure> {
        disk.check_process()?;
        let system = |error| Failure::from(farblock_host::Error::System(Arc::new(error)));
        let reactor = Reactor::new(&disk.reactor).map_err(system)?;
        let task = reactor.add_task();
        let mut inner = Inner {
            disks: Vec::new(),
            reactor,
            task,
            loans: Loans::default(),
            finished: VecDeque::new(),
            in_flight: 0,
            ready: Vec::new(),
            done: Vec::new(),
            broken: false,
        };
        inner.add(disk)?;
        let thread = std::thread::current().id();
        Ok(fb_queue { thread, process: Process::current(), inner: RefCell::new(inner) })
    }

    fn check_thread(&self) -> Outcome {
        let text = if !self.process.is_current() {
            "the queue was opened before the process was forked: connect again"
        } else if self.thread != std::thread::current().id() {
            "the queue belongs to the thread that opened it"
        } else {
            return Ok(());
        };
        Err(Failure::new(fb_status::Thread, text))
    }

    fn with<T>(&self, call: impl FnOnce(&mut Inner) -> Result<T, Failure>) -> Result<T, Failure> {
        self.check_thread()?;
        let mut inner = self.inner.borrow_mut();
        if inner.broken {
            return Err(Failure::bug());
        }
        // The flag stays set only if the call panics.
        inner.broken = true;
        let result = call(&mut inner);
        inner.broken = false;
        result
    }
}

impl Inner {
    fn add(&mut self, disk: &fb_disk) -> Result<u32, Failure> {
        disk.check_process()?;
        if self.disks.len() >= FB_QUEUE_DISKS as usize {
            let text = format!("a queue serves at most {FB_QUEUE_DISKS} disks");
            return Err(Failure::new(fb_status::Resources, text));
        }
        let disk = disk.disk.clone();
        let queue = disk.open(&self.reactor, self.task)?;
        self.disks.push(Lane { queue, disk, submitted: false });
        Ok(self.disks.len() as u32 - 1)
    }

    fn submit(&mut self, op: &fb_op) -> Outcome {
        if self.in_flight + self.finished.len() >= FB_QUEUE_OPERATIONS as usize {
            let text = format!("{FB_QUEUE_OPERATIONS} operations are in flight: poll first");
            return Err(Failure::new(fb_status::Busy, text));
        }
        let disks = self.disks.len();
        let Some(lane) = self.disks.get_mut(op.disk as usize) else {
            let text = format!(
                "the operation is for disk {}, but the queue has {disks} disks, counted from 0",
                op.disk
            );
            return Err(Failure::argument(text));
        };
        let op = prepare(op, &lane.disk.geometry(), &self.loans)?;
        lane.queue.submit(op);
        lane.submitted = true;
        self.in_flight += 1;
        Ok(())
    }

    /// Starts the submitted operations, and waits until `min` operations have completed.
    fn poll(&mut self, min: usize, timeout_us: i64) -> Outcome {
        let timeout = u64::try_from(timeout_us).ok().map(Duration::from_micros);
        // A time beyond the end of the clock's range means no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.collect(false);
        loop {
            let enough = self.has(min);
            let wait = match deadline {
                _ if enough => Some(Duration::ZERO),
                None => None,
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            };
            let polled = self.reactor.poll(wait, &mut self.ready);
            polled.map_err(|error| {
                Failure::new(fb_status::Bug, format!("the event loop failed: {error}"))
            })?;
            self.collect(!self.ready.is_empty());
            if enough || wait.is_some_and(|wait| wait.is_zero()) || self.has(min) {
                return Ok(());
            }
        }
    }

    /// Drops the operations that have not started, and waits for the others.
    fn finish(&mut self) -> Outcome {
        for lane in &mut self.disks {
            lane.queue.abandon(&mut |_| true);
            lane.submitted = true;
        }
        self.poll(usize::MAX, limits::CLOSE_TIME.as_micros() as i64)?;
        match self.in_flight {
            0 => Ok(()),
            left => {
                let text = format!(
                    "the queue is closed, but {left} of its operations did not complete: the \
                     target is unreachable, and may still execute them"
                );
                Err(Failure::new(fb_status::Lost, text))
            }
        }
    }

    /// True if at least this many operations have completed, or none is in flight.
    fn has(&self, min: usize) -> bool {
        self.finished.len() >= min || self.in_flight == 0
    }

    /// Polls the queues of the disks: all of them after events (`news`), otherwise only those with
    /// new operations.
    fn collect(&mut self, news: bool) {
        for (index, lane) in self.disks.iter_mut().enumerate() {
            if !std::mem::take(&mut lane.submitted) && !news {
                continue;
            }
            lane.queue.poll(&mut self.done);
            for Completion { token, result, buffer } in self.done.drain(..) {
                drop(buffer);
                self.in_flight -= 1;
                let user = std::ptr::with_exposed_provenance_mut(token as usize);
                let status = result.map_or_else(block_status, |()| fb_status::Ok);
                self.finished.push_back(fb_completion { user, status, disk: index as u32 });
            }
        }
    }
}

/// Checks the caller's operation, and converts it to a block operation.
fn prepare(op: &fb_op, geometry: &Geometry, loans: &Loans) -> Result<Op, Failure> {
    let deallocate = op.flags & FB_KEEP_ALLOCATED == 0;
    let (command, flags) = match op.kind {
        kind if kind == fb_kind::Read as u32 => (Command::Read, 0),
        kind if kind == fb_kind::Write as u32 => (Command::Write, FB_DURABLE),
        kind if kind == fb_kind::Flush as u32 => (Command::Flush, 0),
        kind if kind == fb_kind::WriteZeroes as u32 => {
            (Command::WriteZeroes { deallocate }, FB_DURABLE | FB_KEEP_ALLOCATED)
        }
        kind if kind == fb_kind::Deallocate as u32 => (Command::Deallocate, 0),
        kind => {
            return Err(Failure::argument(format!("the operation's kind {kind} does not exist")));
        }
    };
    check_flags(op.flags, flags)?;
    if op.reserved != 0 {
        return Err(Failure::argument("the reserved field of the operation is not 0: set it to 0"));
    }
    let (lba, blocks) = match command {
        Command::Flush => (0, 0),
        _ => range(geometry, command, op.offset, op.length)?,
    };
    let Ok(blocks) = u32::try_from(blocks) else {
        let text = format!("{blocks} blocks are too many for one operation: use several");
        return Err(Failure::new(fb_status::TooLarge, text));
    };
    let buffer = match command.moves_data() {
        // SAFETY: the caller of `fb_submit` promises this memory.
        true => Some(unsafe { Memory::new(op.data.cast(), op.length) }?.lend(loans)),
        false => None,
    };
    let user = op.user.expose_provenance() as u64;
    let fua = op.flags & FB_DURABLE != 0;
    Ok(Op { fua, ..Op::with(command, lba, blocks, buffer, user) })
}
