//! Receive buffers that the engine provides to the kernel. The kernel picks one only when bytes
//! arrive, so an idle stream holds no buffer.
//!
//! A ring in shared memory lists the buffers, which come from the pool. A buffer's identifier is
//! its index in `buffers`. A completion contains the identifier of the filled buffer. The caller
//! gets this buffer without a copy, and the engine lists a new one in its place. At first the
//! engine lists few buffers, and twice as many each time the kernel runs out.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use crate::context::{LARGE_RECV_BYTES, RECV_BYTES};
use farblock_mem::Buffer;
use farblock_mem::BufferPool;

/// The number of entries of the shared ring, and so the maximum number of buffers in a group.
const PLACES: u16 = 64;

/// A group of receive buffers of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Buffers of [`RECV_BYTES`], for headers and small payloads.
    Small,
    /// Buffers of [`LARGE_RECV_BYTES`], for receives that expect several large payloads.
    Large,
}

impl Group {
    /// Returns the group for receives of this many bytes.
    pub(super) fn of(bytes: usize) -> Group {
        if bytes > RECV_BYTES { Group::Large } else { Group::Small }
    }

    /// Returns the kernel's identifier of the group.
    pub(super) fn id(self) -> u16 {
        self as u16
    }

    fn buffer_bytes(self) -> usize {
        match self {
            Group::Small => RECV_BYTES,
            Group::Large => LARGE_RECV_BYTES,
        }
    }

    /// Returns the number of buffers to list for the group's first receive.
    fn first_buffers(self) -> usize {
        match self {
            Group::Small => 8,
            Group::Large => 2,
        }
    }

    /// Returns the maximum number of buffers in the group: at most 4 MiB together.
    fn most_buffers(self) -> usize {
        match self {
            Group::Small => usize::from(PLACES),
            Group::Large => 16,
        }
    }
}

pub(super) struct ProvidedBuffers {
    group: Group,
    /// The memory of the shared ring.
    places: Buffer,
    /// The listed buffers by identifier. The vector is empty before the first receive.
    buffers: Vec<Buffer>,
    tail: u16,
}

impl ProvidedBuffers {
    pub(super) fn new(
        submitter: &io_uring::Submitter<'_>,
        group: Group,
    ) -> io::Result<ProvidedBuffers> {
        let mut places = Buffer::new(usize::from(PLACES) * size_of::<BufRingEntry>());
        let address = places.as_mut_ptr().addr() as u64;
        // SAFETY: the ring is page-aligned and large enough. The owner unregisters it, or closes
        // the io_uring, before this struct is dropped.
        unsafe { submitter.register_buf_ring_with_flags(address, PLACES, group.id(), 0) }.map_err(
            |error| {
                io::Error::new(
                    error.kind(),
                    format!("the kernel has no provided buffer rings: {error}"),
                )
            },
        )?;
        Ok(ProvidedBuffers { group, places, buffers: Vec::new(), tail: 0 })
    }

    /// Lists the first buffers if none are listed.
    pub(super) fn prepare(&mut self, pool: &BufferPool) {
        if self.buffers.is_empty() {
            self.add(self.group.first_buffers(), pool);
        }
    }

    /// Doubles the number of listed buffers, up to the limit, after the kernel ran out of buffers.
    /// At the limit, lists no more: the caller then only repeats the receive.
    pub(super) fn grow(&mut self, pool: &BufferPool) {
        let room = self.group.most_buffers() - self.buffers.len();
        self.add(self.buffers.len().min(room), pool);
    }

    fn add(&mut self, count: usize, pool: &BufferPool) {
        for _ in 0..count {
            let id = self.buffers.len() as u16;
            self.buffers.push(pool.take(self.group.buffer_bytes()));
            self.list(id);
        }
    }

    /// Returns the buffer that the kernel filled with `len` bytes, and lists a new one.
    pub(super) fn take(&mut self, id: u16, len: usize, pool: &BufferPool) -> Buffer {
        let slot = &mut self.buffers[usize::from(id)];
        let mut filled = std::mem::replace(slot, pool.take(self.group.buffer_bytes()));
        filled.truncate(len);
        self.list(id);
        filled
    }

    /// Lists a buffer again, which the kernel picked but did not fill.
    pub(super) fn give_back(&mut self, id: u16) {
        self.list(id);
    }

    /// Leaks the buffers, because the kernel may still write to them.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
        std::mem::forget(std::mem::take(&mut self.places));
    }

    /// Adds a buffer to the shared ring, from which the kernel picks it.
    fn list(&mut self, id: u16) {
        let buffer = &mut self.buffers[usize::from(id)];
        let (address, len) = (buffer.as_mut_ptr().addr() as u64, buffer.len() as u32);
        let first = self.places.as_mut_ptr().cast::<BufRingEntry>();
        let place = usize::from(self.tail & (PLACES - 1));
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `place` is inside the ring, whose entries are plain integers. The kernel reads
        // the entry only when the tail is past it. There are never more buffers than places, so the
        // entry is free. The setters do not change the tail, which shares the first entry's memory.
        unsafe {
            let entry = &mut *first.add(place);
            entry.set_addr(address);
            entry.set_len(len);
            entry.set_bid(id);
        }
        // SAFETY: `first` is the ring's first entry, valid and aligned. The kernel shares it and
        // only reads it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(first).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}
