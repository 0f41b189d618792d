//! [`BufferPool`]: keeps buffers of a few sizes for reuse. So I/O allocates nothing once the pool
//! has enough buffers.

use std::cell::{Cell, RefCell};

use crate::allowance::pool_bytes;
use crate::buffer::Buffer;
use crate::limits;

/// The size of the buffers in the smallest class, in bytes.
const MIN_CLASS_BYTES: usize = 4096;
/// The size of the buffers in the largest class, in bytes.
const MAX_CLASS_BYTES: usize = limits::POOLED_BUFFER_BYTES;
/// The number of classes. Each class has twice the size of the previous one.
const CLASSES: usize =
    (MAX_CLASS_BYTES.trailing_zeros() - MIN_CLASS_BYTES.trailing_zeros()) as usize + 1;

/// Keeps free buffers in classes of 4 KiB, 8 KiB and so on up to 2 MiB. Each thread has its own
/// pool, without locks.
///
/// The pool reuses the most recently returned buffer first, so that the buffers in use stay in the
/// caches. It keeps at most 64 MiB.
#[derive(Default)]
pub struct BufferPool {
    classes: RefCell<[Vec<Buffer>; CLASSES]>,
    retained_bytes: Cell<usize>,
}

impl BufferPool {
    /// Creates an empty pool.
    pub fn new() -> BufferPool {
        BufferPool::default()
    }

    /// Returns a buffer of exactly `len` bytes. The bytes may be old data of an earlier user.
    pub fn take(&self, len: usize) -> Buffer {
        let Some(class) = class_for(len) else {
            return Buffer::new(len);
        };
        let reused = self.classes.borrow_mut()[class].pop();
        let mut buffer = match reused {
            Some(buffer) => {
                self.retained_bytes.set(self.retained_bytes.get() - buffer.len());
                buffer
            }
            None => self.new_buffer(class),
        };
        buffer.truncate(len);
        buffer
    }

    /// Allocates a buffer of a class. This may allocate several buffers at once; the pool keeps the
    /// others.
    fn new_buffer(&self, class: usize) -> Buffer {
        let mut made = Buffer::several(MIN_CLASS_BYTES << class);
        let first = made.pop().expect("the pool creates at least one buffer");
        let kept: usize = made.iter().map(|buffer| buffer.len()).sum();
        self.retained_bytes.set(self.retained_bytes.get() + kept);
        self.classes.borrow_mut()[class].append(&mut made);
        first
    }

    /// Returns a buffer to the pool. The pool frees the buffer instead if no class has its size, if
    /// other parts of its allocation still exist, or if the pool is full. When the last part of an
    /// allocation is returned, the pool keeps the whole allocation.
    pub fn give(&self, buffer: Buffer) {
        let capacity = buffer.capacity_bytes();
        let Some(class) = class_for(capacity) else { return };
        let retained = self.retained_bytes.get() + capacity;
        if capacity != MIN_CLASS_BYTES << class || retained > pool_bytes() {
            return;
        }
        if let Some(whole) = buffer.into_whole() {
            self.retained_bytes.set(retained);
            self.classes.borrow_mut()[class].push(whole);
        }
    }

    /// Frees all kept buffers.
    pub fn clear(&self) {
        self.classes.borrow_mut().iter_mut().for_each(|class| *class = Vec::new());
        self.retained_bytes.set(0);
    }

    /// Returns the number of bytes that the pool keeps for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.retained_bytes.get()
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} bytes retained)", self.retained_bytes.get())
    }
}

/// Returns the smallest class whose buffers hold `len` bytes.
fn class_for(len: usize) -> Option<usize> {
    if len > MAX_CLASS_BYTES {
        return None;
    }
    let class_bytes = len.max(MIN_CLASS_BYTES).next_power_of_two();
    Some((class_bytes.trailing_zeros() - MIN_CLASS_BYTES.trailing_zeros()) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_map_to_size_classes() {
        assert_eq!(class_for(0), Some(0));
        assert_eq!(class_for(4096), Some(0));
        assert_eq!(class_for(4097), Some(1));
        assert_eq!(class_for(MAX_CLASS_BYTES), Some(CLASSES - 1));
        assert_eq!(class_for(MAX_CLASS_BYTES + 1), None);
    }

    #[test]
    fn a_pool_reuses_the_last_returned_buffer() {
        let pool = BufferPool::new();
        let mut buffer = pool.take(5000);
        let address = buffer.as_ptr();
        // The pool may have allocated other buffers at the same time.
        let others = pool.retained_bytes();
        buffer.truncate(1);
        pool.give(buffer);
        assert_eq!(pool.retained_bytes(), others + 8192);
        let again = pool.take(8192);
        assert_eq!((again.as_ptr(), again.len()), (address, 8192));
        assert_eq!(pool.retained_bytes(), others);
    }

    #[test]
    fn a_split_buffer_returns_to_the_pool_with_its_last_part() {
        let pool = BufferPool::new();
        let mut rest = pool.take(4096);
        let others = pool.retained_bytes();
        let front = rest.split_to(100);
        pool.give(rest);
        assert_eq!(pool.retained_bytes(), others);
        pool.give(front);
        assert_eq!(pool.retained_bytes(), others + 4096);
        assert_eq!(pool.take(4096).len(), 4096);
    }

    #[test]
    fn a_pool_retains_a_bounded_number_of_bytes() {
        let pool = BufferPool::new();
        let buffers: Vec<_> = (0..40).map(|_| pool.take(MAX_CLASS_BYTES)).collect();
        buffers.into_iter().for_each(|b| pool.give(b));
        assert_eq!(pool.retained_bytes(), pool_bytes());
        pool.give(Buffer::new(MAX_CLASS_BYTES + 1));
        pool.give(Buffer::new(5000));
        assert_eq!(pool.retained_bytes(), pool_bytes());
    }
}
