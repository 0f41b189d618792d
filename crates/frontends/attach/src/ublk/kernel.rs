//! Sends commands to the ublk driver, and maps the memory that the driver shares. All `unsafe` code
//! for ublk is in this file.
//!
//! Two types send commands through an io_uring. [`Control`] sends commands to `/dev/ublk-control`
//! and waits for each; its ring has large entries. [`Commands`] serves one queue. Each of its
//! commands passes the kernel a buffer, and completes when the kernel has a request. The kernel
//! then returns the buffer.
//!
//! The queue's ring runs deferred work only when its thread enters the ring (`DEFER_TASKRUN`). The
//! driver copies data only in deferred work or while it accepts a command. So the kernel accesses
//! buffers only during [`Commands::enter`].

use super::uapi::{self, DESCRIPTOR_BYTES, Descriptor, io};
use farblock_reactor::Buffer;
use io_uring::{IoUring, cqueue, opcode, squeue, types::Fd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

/// The ring for commands to the control device.
pub(super) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

impl Control {
    pub(super) fn new(file: File) -> Result<Control> {
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(1)?;
        Ok(Control { ring, file })
    }

    /// Executes a command and waits for it. The driver reads `buffer` and may write to it; the
    /// function returns it.
    pub(super) fn call(
        &mut self,
        operation: u32,
        command: &uapi::Control,
        mut buffer: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let length = u16::try_from(buffer.len()).map_err(|_| ErrorKind::InvalidInput)?;
        let address = buffer.as_mut_ptr() as u64;
        let command = uapi::Control { length, address, ..*command };
        let entry = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), operation)
            .cmd(command.emit())
            .build();
        // SAFETY: the buffer does not move until the completion; if none arrives, the code below
        // leaks it.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has room for one command");
        loop {
            let waited = self.ring.submit_and_wait(1);
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    error if error < 0 => Err(Error::from_raw_os_error(-error)),
                    _ => Ok(buffer),
                };
            }
            if let Err(error) = waited
                && error.kind() != ErrorKind::Interrupted
            {
                // The kernel may still use the buffer, so leak it.
                std::mem::forget(buffer);
                return Err(error);
            }
        }
    }
}

/// A completed command.
pub(super) struct Done {
    pub(super) tag: u16,
    /// The kernel's request. An error if the kernel will send no more requests with this tag.
    pub(super) request: Result<Descriptor>,
    pub(super) buffer: Buffer,
}

/// The commands of one queue, one for each tag (the number of a request's slot). At any time, a
/// command is with the kernel or with this process.
pub(super) struct Commands {
    ring: IoUring,
    device: File,
    descriptors: Descriptors,
    queue: u16,
    /// The buffers that the kernel holds, by tag.
    buffers: Vec<Option<Buffer>>,
    with_kernel: usize,
}

impl Commands {
    /// Makes the ring of a queue. Also returns a descriptor that becomes readable when
    /// [`enter`](Commands::enter) has work. Only the calling thread may use the result.
    pub(super) fn new(device: File, queue: u16, depth: u16) -> Result<(Commands, OwnedFd)> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(u32::from(depth))?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let descriptors = Descriptors::new(&device, queue, depth)?;
        let buffers = (0..depth).map(|_| None).collect();
        Ok((Commands { ring, device, descriptors, queue, buffers, with_kernel: 0 }, event))
    }

    /// Sends the first command for this tag. The command completes when the kernel has a request.
    pub(super) fn fetch(&mut self, tag: u16, buffer: Buffer) {
        self.push(io::FETCH_REQ, tag, 0, buffer);
    }

    /// Answers a request, and waits for the tag's next request. `result` is a number of bytes, or a
    /// negative error number.
    pub(super) fn commit(&mut self, tag: u16, result: i32, buffer: Buffer) {
        self.push(io::COMMIT_AND_FETCH_REQ, tag, result, buffer);
    }

    fn push(&mut self, operation: u32, tag: u16, result: i32, mut buffer: Buffer) {
        let address = buffer.as_mut_ptr() as u64;
        let command = uapi::io_command(self.queue, tag, result, address);
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), operation)
            .cmd(command)
            .build()
            .user_data(u64::from(tag));
        let before = self.buffers[usize::from(tag)].replace(buffer);
        assert!(before.is_none(), "the kernel already holds this tag");
        self.with_kernel += 1;
        // SAFETY: the kernel accesses the buffer only while this thread enters the ring (see the
        // top of this file). `Commands` keeps the buffer until the kernel returns it, so the buffer
        // exists at each such time.
        unsafe { self.ring.submission().push(&entry) }
            .expect("the ring has an entry for every tag");
    }

    /// The number of commands that the kernel holds.
    pub(super) fn with_kernel(&self) -> usize {
        self.with_kernel
    }

    /// Submits the queued commands to the kernel, and appends the completed commands to `done`.
    pub(super) fn enter(&mut self, done: &mut Vec<Done>) -> Result<()> {
        match self.ring.submit() {
            Ok(_) => {}
            // The kernel is busy. This is not a failure: the caller retries when a command
            // completes.
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        for completion in self.ring.completion() {
            let tag = completion.user_data() as u16;
            let buffer = self.buffers[usize::from(tag)].take().expect("the kernel held this tag");
            self.with_kernel -= 1;
            let request = match completion.result() {
                0 => Ok(self.descriptors.read(tag)),
                other => Err(Error::from_raw_os_error(-other)),
            };
            done.push(Done { tag, request, buffer });
        }
        Ok(())
    }

    /// True if the kernel did not accept all commands in the last [`enter`](Commands::enter). The
    /// caller must then enter again.
    pub(super) fn is_behind(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }
}

/// The memory in which the kernel describes its requests, mapped read-only.
struct Descriptors {
    base: NonNull<[u8; DESCRIPTOR_BYTES]>,
    depth: u16,
    length: usize,
}

// SAFETY: the memory is not bound to a thread, and this process only reads it.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn new(device: &File, queue: u16, depth: u16) -> Result<Descriptors> {
        let page = rustix::param::page_size();
        let bytes = |count: u16| (usize::from(count) * DESCRIPTOR_BYTES).next_multiple_of(page);
        let length = bytes(depth);
        let offset = usize::from(queue) * bytes(super::limits::MAX_DEPTH);
        // SAFETY: the call makes a new mapping, at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device,
                offset as u64,
            )
        }?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at zero");
        Ok(Descriptors { base, depth, length })
    }

    fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth);
        // SAFETY: the address is inside of the mapping, and all byte values are valid. The kernel
        // does not write to it between the completion of the tag's command and the next command.
        let bytes = unsafe { self.base.add(usize::from(tag)).read_volatile() };
        Descriptor::parse(&bytes)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and no reference to it remains.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
