//! Records a guest's requests in flight in shared memory that the monitor keeps, so that the next
//! server can continue after this one was killed. A *note* is the record of one descriptor.
//!
//! The layout and the order of stores follow the vhost-user specification's recommendation for
//! split rings. So other back ends can read the records. The layout for each ring, with byte
//! offsets:
//!
//! ```text
//!  0 features u64 | 8 version u16 | 10 descriptors u16 | 12 last batch's head u16 | 14 used u16
//! 16 for each descriptor: in flight u8, 5 bytes, next in the batch u16, counter u64
//! ```
//!
//! The back end sets the note of a request before it executes the request. After execution, the
//! back end records the request's head (its first descriptor) as the last batch, puts the request
//! into the used ring, and then clears its note. In this server, a batch is one request. If the
//! used ring's index is ahead of the recorded index, the last batch is in the used ring although
//! its notes are still set. The next back end then clears them.

use super::memory::{self, Mapping};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, VolatileMemory};

const VERSION: u16 = 1;
const VERSION_AT: usize = 8;
const DESCRIPTORS_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;
const HEADER_BYTES: usize = 16;
const NOTE_BYTES: usize = 16;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;
/// The alignment in bytes that prevents two rings from sharing a cache line.
const ALIGNMENT_BYTES: usize = 64;

/// The notes of all rings of a disk.
#[derive(Clone)]
pub(super) struct Inflight {
    map: Arc<Mapping>,
    queues: u16,
    queue_size: u16,
}

fn bytes_per_queue(queue_size: u16) -> usize {
    (HEADER_BYTES + NOTE_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT_BYTES)
}

/// The size of the notes of `queues` rings, in bytes.
pub(super) fn total_bytes(queues: u16, queue_size: u16) -> u64 {
    (usize::from(queues) * bytes_per_queue(queue_size)) as u64
}

impl Inflight {
    /// Makes empty notes in a new memory file. Also returns the file.
    pub(super) fn create(queues: u16, queue_size: u16) -> io::Result<(Inflight, File)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("farblock-inflight", flags)?);
        let bytes = total_bytes(queues, queue_size);
        file.set_len(bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let shared = file.try_clone()?;
        let notes = Inflight::adopt(file, 0, bytes, queues, queue_size);
        Ok((notes.map_err(io::Error::other)?, shared))
    }

    /// Uses the notes of a previous server, which the monitor has kept.
    pub(super) fn adopt(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<Inflight, String> {
        if bytes < total_bytes(queues, queue_size) {
            return Err(format!(
                "{bytes} bytes are too few for the in-flight records of {queues} rings"
            ));
        }
        let map = memory::map(file, offset, bytes)?;
        Ok(Inflight { map: Arc::new(map), queues, queue_size })
    }

    /// The notes of one ring.
    pub(super) fn queue(&self, index: usize, ring_size: u16) -> Result<Notes, String> {
        if index >= usize::from(self.queues) || ring_size > self.queue_size {
            let (queues, size) = (self.queues, self.queue_size);
            return Err(format!(
                "the in-flight records cover only {queues} rings of {size} descriptors"
            ));
        }
        let start = index * bytes_per_queue(self.queue_size);
        Ok(Notes { map: Arc::clone(&self.map), start, size: ring_size, counter: 0 })
    }
}

/// The notes of one ring.
pub(super) struct Notes {
    map: Arc<Mapping>,
    start: usize,
    size: u16,
    /// The number of the next request. After a restart, the next back end executes the requests in
    /// this order.
    counter: u64,
}

impl Notes {
    fn slice(&self) -> vm_memory::VolatileSlice<'_, ()> {
        self.map.region.as_volatile_slice()
    }

    fn load_u16(&self, at: usize) -> u16 {
        self.slice().load(self.start + at, Ordering::Acquire).expect("the offset is inside the map")
    }

    fn store_u16(&self, at: usize, value: u16) {
        self.slice()
            .store(value, self.start + at, Ordering::Release)
            .expect("the offset is inside the map");
    }

    fn note_at(head: u16) -> usize {
        HEADER_BYTES + NOTE_BYTES * usize::from(head)
    }

    fn in_flight(&self, head: u16) -> bool {
        let at = self.start + Notes::note_at(head);
        self.slice().load::<u8>(at, Ordering::Acquire).expect("the offset is inside the map") == 1
    }

    fn set_in_flight(&self, head: u16, value: bool) {
        let at = self.start + Notes::note_at(head);
        self.slice()
            .store(u8::from(value), at, Ordering::Release)
            .expect("the offset is inside the map");
    }

    fn counter(&self, head: u16) -> u64 {
        let at = self.start + Notes::note_at(head) + COUNTER_AT;
        self.slice().load(at, Ordering::Acquire).expect("the offset is inside the map")
    }

    /// Returns the heads (first descriptors) of the requests that a previous server left in flight,
    /// oldest first. Returns `None` if there was no previous server. `used` is the used ring's
    /// current index in the guest's memory.
    pub(super) fn recover(&mut self, used: u16) -> Result<Option<Vec<u16>>, String> {
        if self.load_u16(VERSION_AT) == 0 {
            self.store_u16(DESCRIPTORS_AT, self.size);
            self.store_u16(USED_AT, used);
            self.store_u16(VERSION_AT, VERSION);
            return Ok(None);
        }
        let (version, size) = (self.load_u16(VERSION_AT), self.load_u16(DESCRIPTORS_AT));
        if version != VERSION || size != self.size {
            return Err(format!(
                "the in-flight records have version {version} and {size} descriptors"
            ));
        }
        let mut head = self.load_u16(LAST_HEAD_AT);
        let unstruck = used.wrapping_sub(self.load_u16(USED_AT));
        if unstruck > self.size {
            return Err("the in-flight records belong to another ring".to_owned());
        }
        for _ in 0..unstruck {
            if head >= self.size {
                return Err(
                    "the in-flight records name a descriptor that does not exist".to_owned()
                );
            }
            self.set_in_flight(head, false);
            head = self.load_u16(Notes::note_at(head) + NEXT_AT);
        }
        self.store_u16(USED_AT, used);
        let mut heads: Vec<_> = (0..self.size).filter(|&head| self.in_flight(head)).collect();
        heads.sort_by_key(|&head| self.counter(head));
        self.counter = heads.last().map_or(0, |&head| self.counter(head).wrapping_add(1));
        Ok(Some(heads))
    }

    /// Sets the note of a request before the server executes it.
    pub(super) fn taken(&mut self, head: u16) {
        let at = self.start + Notes::note_at(head) + COUNTER_AT;
        self.slice()
            .store(self.counter, at, Ordering::Release)
            .expect("the offset is inside the map");
        self.counter = self.counter.wrapping_add(1);
        self.set_in_flight(head, true);
    }

    /// Records that the server is about to put a request into the used ring.
    pub(super) fn finishing(&self, head: u16) {
        self.store_u16(Notes::note_at(head) + NEXT_AT, self.load_u16(LAST_HEAD_AT));
        self.store_u16(LAST_HEAD_AT, head);
    }

    /// Clears the note of a request that is in the used ring. `used` is the ring's new index.
    pub(super) fn finished(&self, head: u16, used: u16) {
        self.set_in_flight(head, false);
        self.store_u16(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes() -> (Inflight, Notes) {
        let (inflight, _) = Inflight::create(2, 8).expect("memory");
        let mut notes = inflight.queue(1, 8).expect("two queues");
        assert_eq!(notes.recover(100), Ok(None));
        (inflight, notes)
    }

    #[test]
    fn requests_in_flight_are_recovered_in_order() {
        let (inflight, mut notes) = notes();
        for head in [5, 2, 7, 0] {
            notes.taken(head);
        }
        notes.finishing(2);
        notes.finished(2, 101);
        let mut successor = inflight.queue(1, 8).expect("two queues");
        assert_eq!(successor.recover(101), Ok(Some(vec![5, 7, 0])));
        successor.taken(2);
        assert_eq!(inflight.queue(1, 8).unwrap().recover(101), Ok(Some(vec![5, 7, 0, 2])));
        assert_eq!(inflight.queue(0, 8).unwrap().recover(0), Ok(None));
    }

    /// The test interrupts a request between two stores, as a killed process does.
    #[test]
    fn the_ring_index_decides_whether_a_request_is_finished() {
        let (inflight, mut notes) = notes();
        notes.taken(3);
        notes.taken(4);
        notes.finishing(3);
        // The process dies before it puts the request into the ring.
        assert_eq!(inflight.queue(1, 8).unwrap().recover(100), Ok(Some(vec![3, 4])));
        // The process dies after it put the request into the ring.
        assert_eq!(inflight.queue(1, 8).unwrap().recover(101), Ok(Some(vec![4])));
        assert_eq!(inflight.queue(1, 8).unwrap().recover(101), Ok(Some(vec![4])));
    }

    #[test]
    fn invalid_inflight_records_are_refused() {
        let (inflight, mut notes) = notes();
        assert!(inflight.queue(2, 8).is_err());
        assert!(inflight.queue(0, 16).is_err());
        assert!(inflight.queue(1, 4).unwrap().recover(100).is_err());
        assert!(notes.recover(200).is_err());
        notes.store_u16(LAST_HEAD_AT, 8);
        assert!(notes.recover(101).is_err());
        notes.store_u16(VERSION_AT, 9);
        assert!(notes.recover(100).is_err());
    }
}
