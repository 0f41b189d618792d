//! Submit and poll: queues for programs that keep many operations in flight.

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

/// The most operations that a queue holds, those waiting for `fb_poll` included.
pub const FB_QUEUE_OPERATIONS: u32 = 65536;
/// The most disks that a queue serves.
pub const FB_QUEUE_DISKS: u32 = 1024;

/// What an operation does: a value of `fb_op.kind`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_kind {
    /// Reads into `data`.
    Read = 1,
    /// Writes from `data`. FB_DURABLE is possible.
    Write = 2,
    /// Makes durable what was complete before. No range.
    Flush = 3,
    /// Makes the range read as zeroes. FB_DURABLE, FB_KEEP_ALLOCATED are possible.
    WriteZeroes = 4,
    /// Says that the range is not needed any more.
    Deallocate = 5,
}

/// An operation to submit. Set what you do not use to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_op {
    /// Comes back with the completion.
    pub user: *mut c_void,
    /// For reads and writes: memory of `length` bytes at any address, which is the operation's
    /// until it is complete (until then nobody may change it or free it, nor look at what is read).
    pub data: *mut c_void,
    /// Where the range begins, in bytes: a multiple of the block size.
    pub offset: u64,
    /// How long it is, in bytes: a multiple of the block size, of less than 2^32 blocks.
    pub length: u64,
    /// An `fb_kind`.
    pub kind: u32,
    /// FB_DURABLE, FB_KEEP_ALLOCATED.
    pub flags: u32,
    /// Which of the queue's disks: 0 for the one it was opened with.
    pub disk: u32,
    /// Zero.
    pub reserved: u32,
}

/// An operation that is over.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_completion {
    /// As it was submitted.
    pub user: *mut c_void,
    /// How it went.
    pub status: fb_status,
    /// Which of the queue's disks.
    pub disk: u32,
}

/// A way to have many operations in flight, on one disk or several, without threads or copies. It
/// belongs to the thread that opened it.
pub struct fb_queue {
    thread: ThreadId,
    process: Process,
    /// Borrowed for the length of a call: a caller that calls from within a call is impossible.
    inner: RefCell<Inner>,
}

/// In the order in which it is to be dropped: the event loop goes last, and waits until the system
/// uses nothing of the caller's memory any more.
struct Inner {
    disks: Vec<Lane>,
    done: Vec<Completion>,
    reactor: Reactor,
    task: TaskId,
    loans: Loans,
    finished: VecDeque<fb_completion>,
    in_flight: usize,
    ready: Vec<TaskId>,
    /// A panic came by: nothing here is to be relied on.
    broken: bool,
}

/// One disk of a queue.
struct Lane {
    queue: Box<dyn Queue>,
    /// What it is a queue of.
    disk: Disk,
    /// Since its queue last worked.
    submitted: bool,
}

/// Opens a queue to a disk: a connection of its own over each path. It does not wait for that:
/// operations do, and end with FB_STATUS_RESOURCES if the disk's queues are all in use. The queue
/// goes on when the disk is let go.
///
/// # Safety
/// The pointers are null or valid: a disk, and a place for the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_open(
    disk: *const fb_disk,
    queue: *mut *mut fb_queue,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let disk = unsafe {
            give(queue, std::ptr::null_mut(), "queue")?;
            handle(disk, "disk")?
        };
        let opened = Box::new(fb_queue::open(disk)?);
        // SAFETY: the caller's promise.
        unsafe { give(queue, Box::into_raw(opened), "queue") }
    })
}

/// Gives a queue one more disk, so that one `fb_poll` waits for several. `index` gets the number
/// that `fb_op.disk` calls it by: 1 for the second disk, and so on.
///
/// # Safety
/// The pointers are null or valid: a queue, a disk, and a place for the number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_add(
    queue: *mut fb_queue,
    disk: *const fb_disk,
    index: *mut u32,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller's promises.
        let (queue, disk) = unsafe {
            give(index, 0, "number of the disk")?;
            (handle(queue, "queue")?, handle(disk, "disk")?)
        };
        let number = queue.with(|inner| inner.add(disk))?;
        // SAFETY: the caller's promise.
        unsafe { give(index, number, "number of the disk") }
    })
}

/// Closes a queue; null does nothing. Of the operations in flight, those that were not begun are
/// given up, and the others waited for, so that no write of the queue is done after this returns
/// and undoes a later one. How they ended is not told. If they do not end within 30 seconds,
/// because the target is away, this returns FB_STATUS_LOST: a write may then still be done, once.
/// The queue is closed in any case, and the memory is the caller's again; should the kernel not
/// give it back, the process is ended (SIGABRT). It has to be the thread that opened it. In a
/// forked process it does nothing.
///
/// # Safety
/// The pointer is null, or a queue that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_queue_close(queue: *mut fb_queue) -> fb_status {
    guard(|| {
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let reference = unsafe { handle(queue, "queue") }?;
        if !reference.process.is_current() {
            return Ok(());
        }
        reference.check_thread()?;
        // SAFETY: made by `fb_queue_open` from a box, and by the caller's promise not freed yet.
        let queue = unsafe { Box::from_raw(queue) };
        // After a panic there is nothing to wait for.
        queue.with(Inner::finish)
    })
}

/// Takes an operation. It is begun at the latest by the next `fb_poll`, so several that are
/// submitted in a row travel together. After a failure nothing was taken.
///
/// # Safety
/// The pointers are null or valid: a queue, and an operation whose memory is as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_submit(queue: *mut fb_queue, op: *const fb_op) -> fb_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { handle(queue, "queue") }?;
        if op.is_null() {
            return Err(Failure::argument("the operation is null"));
        }
        // SAFETY: the caller's promise.
        let op = unsafe { op.read_unaligned() };
        queue.with(|inner| inner.submit(&op))
    })
}

/// Begins what was submitted, waits until at least `min` operations are complete or `timeout_us`
/// microseconds are over (negative: never), and hands up to `max` completions out. Gives their
/// number, or a negative `fb_status`. With a `min` of 0 it does not wait. If fewer than `min` are
/// in flight it waits for those only.
///
/// # Safety
/// The queue is null or valid, and there is room for `max` completions (none: null will do).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_poll(
    queue: *mut fb_queue,
    completions: *mut fb_completion,
    min: u32,
    max: u32,
    timeout_us: i64,
) -> i32 {
    let polled = guarded(|| {
        // SAFETY: the caller's promise.
        let queue = unsafe { handle(queue, "queue") }?;
        if completions.is_null() && max > 0 {
            return Err(Failure::argument("there is no place for completions: it is null"));
        }
        if min > max {
            let text = format!("waiting for {min} completions with room for {max}");
            return Err(Failure::argument(text));
        }
        queue.with(|inner| {
            inner.poll(min as usize, timeout_us)?;
            let count = inner.finished.len().min(max as usize);
            for (at, completion) in inner.finished.drain(..count).enumerate() {
                // SAFETY: there is room for `max`, by the caller's promise.
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
        // Cleared only if no panic comes by.
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
            let text = format!("a queue serves {FB_QUEUE_DISKS} disks and no more");
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
            let text = format!("the queue has no disk {}: it has {disks}", op.disk);
            return Err(Failure::argument(text));
        };
        let op = prepare(op, &lane.disk.geometry(), &self.loans)?;
        lane.queue.submit(op);
        lane.submitted = true;
        self.in_flight += 1;
        Ok(())
    }

    /// Begins what was submitted and waits, until `min` are finished.
    fn poll(&mut self, min: usize, timeout_us: i64) -> Outcome {
        let timeout = u64::try_from(timeout_us).ok().map(Duration::from_micros);
        // A time beyond the end of the clock is for ever.
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
                Failure::new(fb_status::Bug, format!("the event loop cannot go on: {error}"))
            })?;
            self.collect(!self.ready.is_empty());
            if enough || wait.is_some_and(|wait| wait.is_zero()) || self.has(min) {
                return Ok(());
            }
        }
    }

    /// Gives up what was not begun, and waits for the rest.
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
                    "the queue is closed, and {left} operations of it did not end: the target is \
                     away, and may still do what it was sent"
                );
                Err(Failure::new(fb_status::Lost, text))
            }
        }
    }

    /// Whether so many are finished, or no more can be.
    fn has(&self, min: usize) -> bool {
        self.finished.len() >= min || self.in_flight == 0
    }

    /// Lets the disks' queues work: all of them if there is news, else those with something new.
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

/// What the caller wants, checked.
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
        kind => return Err(Failure::argument(format!("no operation has the kind {kind}"))),
    };
    check_flags(op.flags, flags)?;
    if op.reserved != 0 {
        return Err(Failure::argument("the operation's reserved field is not zero"));
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
        // SAFETY: promised by whoever called `fb_submit`.
        true => Some(unsafe { Memory::new(op.data.cast(), op.length) }?.lend(loans)),
        false => None,
    };
    let user = op.user.expose_provenance() as u64;
    let fua = op.flags & FB_DURABLE != 0;
    Ok(Op { fua, ..Op::with(command, lba, blocks, buffer, user) })
}
