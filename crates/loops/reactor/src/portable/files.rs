//! Executes file operations on a few threads, for systems whose readiness interface does not
//! support files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::file_op::FileOp;
use crate::ids::TaskId;
use crate::waker::WakerShared;
use farblock_mem::Buffer;

#[cfg(windows)]
use super::windows::{punch_hole, read_at, write_at, zero_range};

/// A file operation for a thread. Afterwards it holds the result.
pub(crate) struct Job {
    pub(crate) task: TaskId,
    pub(crate) user_data: u64,
    pub(crate) file: Arc<File>,
    pub(crate) op: FileOp,
    pub(crate) result: io::Result<()>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

struct PoolState {
    queue: Mutex<Queue>,
    available: Condvar,
    done: Mutex<Vec<Job>>,
    shared: Arc<WakerShared>,
}

/// The threads for file operations. Dropping the pool waits for running operations, and discards
/// operations that have not started.
pub(crate) struct FilePool {
    state: Arc<PoolState>,
    /// The finished operations that the current `collect` returns. Otherwise empty.
    taken: Vec<Job>,
    threads: Vec<JoinHandle<()>>,
}

/// Locks the mutex, even after a panic in another thread (poison): every critical section leaves
/// its queue consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FilePool {
    /// Starts the threads. Fails only if the system cannot start even one thread.
    pub(crate) fn new(threads: usize, shared: &Arc<WakerShared>) -> io::Result<FilePool> {
        let state = Arc::new(PoolState {
            queue: Mutex::new(Queue::default()),
            available: Condvar::new(),
            done: Mutex::new(Vec::new()),
            shared: Arc::clone(shared),
        });
        let mut pool = FilePool { state, taken: Vec::new(), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let state = Arc::clone(&pool.state);
            let builder = std::thread::Builder::new().name("farblock-file".to_owned());
            match builder.spawn(move || state.work()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, number, "the system started fewer file threads than \
                        requested")
                }
            }
        }
        Ok(pool)
    }

    pub(crate) fn submit(&self, job: Job) {
        lock(&self.state.queue).jobs.push_back(job);
        self.state.available.notify_one();
    }

    /// Returns the finished operations.
    pub(crate) fn collect(&mut self) -> impl Iterator<Item = Job> {
        std::mem::swap(&mut *lock(&self.state.done), &mut self.taken);
        self.taken.drain(..)
    }
}

impl Drop for FilePool {
    fn drop(&mut self) {
        let mut queue = lock(&self.state.queue);
        queue.stop = true;
        queue.jobs.clear();
        drop(queue);
        self.state.available.notify_all();
        for thread in self.threads.drain(..) {
            // An error means that the thread panicked. The pool is being dropped, so no caller can
            // receive the error.
            let _ = thread.join();
        }
    }
}

impl PoolState {
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let mut job = loop {
                if queue.stop {
                    return;
                }
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None => {
                        let waited = self.available.wait(queue);
                        queue = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(queue);
            job.result = perform(&job.file, &mut job.op);
            lock(&self.done).push(job);
            self.shared.notify();
        }
    }
}

fn perform(file: &File, op: &mut FileOp) -> io::Result<()> {
    match op {
        FileOp::Read { buffer, offset } => read_all(file, buffer, *offset),
        FileOp::Write { buffer, offset, durable: false } => write_all(file, buffer, *offset),
        FileOp::Write { buffer, offset, durable: true } => write_durable(file, buffer, *offset),
        FileOp::Sync => file.sync_data(),
        FileOp::PunchHole { offset, len } => punch_hole(file, *offset, *len),
        FileOp::ZeroRange { offset, len } => zero_range(file, *offset, *len),
    }
}

fn read_all(file: &File, buffer: &mut Buffer, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Direct I/O cannot continue at an unaligned offset. A read that was cut short there
            // has reached the end of the file.
            Err(error) if done > 0 && error.kind() == io::ErrorKind::InvalidInput => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(file: &File, buffer: &Buffer, offset: u64) -> io::Result<()> {
    write_with(buffer, offset, |bytes, offset| write_at(file, bytes, offset))
}

fn write_with(
    buffer: &Buffer,
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match write(&buffer[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, offset)
}

#[cfg(target_os = "linux")]
fn write_durable(file: &File, buffer: &Buffer, offset: u64) -> io::Result<()> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    let durable = |bytes: &[u8], offset| {
        let slices = [io::IoSlice::new(bytes)];
        Ok(pwritev2(file, &slices, offset, ReadWriteFlags::DSYNC)?)
    };
    match write_with(buffer, offset, durable) {
        // Some file systems do not support the flag for durable writes.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            write_and_sync(file, buffer, offset)
        }
        result => result,
    }
}

#[cfg(not(target_os = "linux"))]
fn write_durable(file: &File, buffer: &Buffer, offset: u64) -> io::Result<()> {
    write_and_sync(file, buffer, offset)
}

fn write_and_sync(file: &File, buffer: &Buffer, offset: u64) -> io::Result<()> {
    write_all(file, buffer, offset)?;
    file.sync_data()
}

#[cfg(target_os = "linux")]
fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| fallocate(file, flags, offset, len))?)
}

#[cfg(target_os = "linux")]
fn zero_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| fallocate(file, flags, offset, len))?)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(any(target_os = "linux", windows)))]
fn zero_range(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
