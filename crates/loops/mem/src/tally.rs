//! Counts the bytes of buffers of each machine in a simulation.
//!
//! All machines of a simulation run on one thread. The count includes buffers that this thread has
//! allocated since [`begin`], until any thread frees them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Counts of buffer bytes. They include the buffers in pools.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// The current number of bytes.
    pub now_bytes: usize,
    /// The highest number of bytes so far.
    pub most_bytes: usize,
}

#[derive(Default)]
struct Book {
    /// The number of this simulation. Buffers with the number of an earlier simulation are not
    /// counted.
    volume: u64,
    by_machine: BTreeMap<u32, Tally>,
}

thread_local! {
    static MACHINE: Cell<u32> = const { Cell::new(0) };
    static BOOK: RefCell<Book> = RefCell::default();
}

/// Resets all counts of this thread.
pub fn begin() {
    MACHINE.set(0);
    BOOK.with_borrow_mut(|book| *book = Book { volume: book.volume + 1, ..Book::default() });
}

/// Counts the thread's new buffers for this machine.
pub fn count_for(machine: u32) {
    MACHINE.set(machine);
}

/// Returns the counts of a machine.
#[must_use]
pub fn of(machine: u32) -> Tally {
    BOOK.with_borrow(|book| book.by_machine.get(&machine).copied().unwrap_or_default())
}

/// Counts the bytes of an allocation while this value exists.
pub(crate) struct Counted {
    machine: u32,
    volume: u64,
    bytes: usize,
}

impl Counted {
    pub(crate) fn new(bytes: usize) -> Option<Counted> {
        if bytes == 0 {
            return None;
        }
        let machine = MACHINE.try_with(Cell::get).ok()?;
        let volume = BOOK.try_with(|book| {
            let mut book = book.borrow_mut();
            let tally = book.by_machine.entry(machine).or_default();
            tally.now_bytes += bytes;
            tally.most_bytes = tally.most_bytes.max(tally.now_bytes);
            book.volume
        });
        Some(Counted { machine, volume: volume.ok()?, bytes })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = BOOK.try_with(|book| {
            let mut book = book.borrow_mut();
            if book.volume == self.volume
                && let Some(tally) = book.by_machine.get_mut(&self.machine)
            {
                // Another thread may have allocated the buffer, so that it is not in this count.
                tally.now_bytes = tally.now_bytes.saturating_sub(self.bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn buffers_are_counted_for_their_creator() {
        begin();
        count_for(3);
        let buffers = [Buffer::new(8192), Buffer::new(4096)];
        count_for(0);
        assert_eq!((of(0).now_bytes, of(3).now_bytes), (0, 12288));
        drop(buffers);
        assert_eq!(of(3), Tally { now_bytes: 0, most_bytes: 12288 });
        let old = Buffer::several(4096);
        begin();
        drop(old);
        assert_eq!(of(0), Tally::default());
    }
}
