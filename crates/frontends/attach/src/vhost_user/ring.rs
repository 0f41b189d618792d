//! A virtio ring between a guest and its disk: takes descriptor chains (requests), returns them
//! with answers, and notifies the guest.

use super::chain::Table;
use super::inflight::Notes;
use super::memory::Guest;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueOwnedT, QueueT};

/// The settings with which a ring starts.
pub(super) struct Setup {
    pub(super) guest: Arc<Guest>,
    pub(super) queue: Queue,
    /// True if the driver chose `VIRTIO_F_INDIRECT_DESC`.
    pub(super) indirect: bool,
    pub(super) notes: Option<Notes>,
    pub(super) kick: OwnedFd,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
}

pub(super) struct Ring {
    pub(super) guest: Arc<Guest>,
    queue: Queue,
    pub(super) table: Table,
    notes: Option<Notes>,
    pub(super) call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    /// The heads (indexes of the first descriptors) of chains that a previous server took but did
    /// not finish.
    again: VecDeque<u16>,
    /// By head: true if this server has taken the chain but not returned it. `outstanding` counts
    /// these chains.
    taken: Vec<bool>,
    outstanding: usize,
    /// True if the server may not have notified the guest of the last answers.
    unannounced: bool,
    /// True after the guest broke the ring protocol. The server then takes no more requests.
    broken: bool,
}

impl Ring {
    /// Makes a ring. Also returns the eventfd through which the guest kicks (notifies) the server.
    pub(super) fn new(setup: Setup) -> Result<(Ring, OwnedFd), String> {
        let Setup { guest, mut queue, indirect, mut notes, kick, call, error } = setup;
        let used = queue.used_idx(&guest.map, Ordering::Acquire).map_err(|e| e.to_string())?.0;
        queue.set_next_used(used);
        let mut again = VecDeque::new();
        let mut unannounced = false;
        if let Some(notes) = &mut notes
            && let Some(heads) = notes.recover(used)?
        {
            // The monitor's index may be stale, so compute it: the previous server took the
            // finished chains and the chains in flight.
            queue.set_next_avail(used.wrapping_add(heads.len() as u16));
            // The previous server may have died before it notified the guest of its last answers.
            unannounced = true;
            again = heads.into();
        }
        let size = queue.size();
        let address = vm_memory::GuestAddress(queue.desc_table());
        let table = Table { address, size, indirect };
        let taken = vec![false; usize::from(size)];
        let ring = Ring {
            guest,
            queue,
            table,
            notes,
            call,
            error,
            again,
            taken,
            outstanding: 0,
            unannounced,
            broken: false,
        };
        Ok((ring, kick))
    }

    /// The index of the next available chain. The monitor stores this index while the ring is
    /// stopped.
    pub(super) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// The number of chains that a server has taken from the ring, but no server has returned.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding + self.again.len()
    }

    /// Takes the next chain, and returns its head. With `only_old`, takes only chains that a
    /// previous server did not finish.
    pub(super) fn take(&mut self, only_old: bool) -> Option<u16> {
        if let Some(head) = self.again.pop_front() {
            self.taken[usize::from(head)] = true;
            self.outstanding += 1;
            return Some(head);
        }
        if only_old || self.broken {
            return None;
        }
        let next = match self.queue.iter(&self.guest.map) {
            Ok(mut chains) => chains.next()?.head_index(),
            Err(error) => {
                self.break_down(&error.to_string());
                return None;
            }
        };
        match self.taken.get_mut(usize::from(next)) {
            Some(taken) if !*taken => *taken = true,
            Some(_) => {
                self.break_down("the guest offers a descriptor that is still in use");
                return None;
            }
            None => {
                self.break_down("the guest offers a descriptor that does not exist");
                return None;
            }
        }
        self.outstanding += 1;
        if let Some(notes) = &mut self.notes {
            notes.taken(next);
        }
        Some(next)
    }

    /// Returns a chain to the guest. The device has written `written` bytes into the chain.
    pub(super) fn put(&mut self, head: u16, written: u32) {
        if let Some(notes) = &self.notes {
            notes.finishing(head);
        }
        if let Err(error) = self.queue.add_used(&self.guest.map, head, written) {
            self.break_down(&error.to_string());
        }
        if let Some(notes) = &self.notes {
            notes.finished(head, self.queue.next_used());
        }
        self.taken[usize::from(head)] = false;
        self.outstanding -= 1;
        self.unannounced = true;
    }

    /// Notifies the guest of new answers, if there are any and the guest wants a notification.
    pub(super) fn announce(&mut self) {
        if !std::mem::take(&mut self.unannounced) {
            return;
        }
        match self.queue.needs_notification(&self.guest.map) {
            Ok(true) => self.call(),
            Ok(false) => {}
            Err(error) => self.break_down(&error.to_string()),
        }
    }

    /// Notifies the guest unconditionally.
    pub(super) fn call(&self) {
        if let Some(call) = &self.call {
            signal(call);
        }
    }

    /// Tells the guest that it need not kick, because the server polls the ring.
    pub(super) fn disable_kicks(&mut self) {
        if !self.broken
            && let Err(error) = self.queue.disable_notification(&self.guest.map)
        {
            self.break_down(&error.to_string());
        }
    }

    /// Tells the guest to kick from now on. Returns true if the ring already has requests.
    pub(super) fn enable_kicks(&mut self) -> bool {
        if self.broken {
            return false;
        }
        self.queue.enable_notification(&self.guest.map).unwrap_or_else(|error| {
            self.break_down(&error.to_string());
            false
        })
    }

    pub(super) fn break_down(&mut self, why: &str) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        tracing::warn!("a guest's ring is broken, and the server stops using it: {why}");
        if let Some(error) = &self.error {
            signal(error);
        }
    }
}

fn signal(event: &OwnedFd) {
    // This write fails only if the eventfd's 64-bit counter overflows.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
