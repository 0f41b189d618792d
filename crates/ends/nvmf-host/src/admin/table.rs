//! The commands of an admin queue, and their results.

use super::Purpose;
use crate::transport::{Commands, DataPlace, Moving, Order, Transport};
use farblock_proto::capsule::SlotId;
use farblock_proto::host::{Command, Data};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_reactor::Reactor;
use farblock_wire::Cqe;
use std::collections::VecDeque;
use std::time::Instant;

struct Outcome {
    cqe: Cqe,
    received: u32,
    intact: bool,
}

/// A command in flight, or a completed command whose buffer the transport still uses.
pub(super) struct Pending<T: Transport> {
    pub(super) purpose: Purpose,
    place: T::Place,
    part: T::Part,
    outcome: Option<Outcome>,
    pub(super) deadline: Option<Instant>,
}

pub(super) struct Done {
    pub(super) purpose: Purpose,
    pub(super) cqe: Cqe,
    pub(super) data: Vec<u8>,
    /// Whether the data from the controller are undamaged, as far as their digest shows.
    pub(super) intact: bool,
}

/// The commands of an admin queue. The transport treats each command as one operation, whose index
/// is the number of the command's slot.
pub(super) struct Table<T: Transport> {
    reactor: Reactor,
    slots: Vec<Option<Pending<T>>>,
    pub(super) waiting: VecDeque<(Purpose, Command, Vec<u8>)>,
    pub(super) done: Vec<Done>,
}

impl<T: Transport> Table<T> {
    pub(super) fn new(reactor: Reactor, depth: u16) -> Table<T> {
        let slots = (0..depth).map(|_| None).collect();
        Table { reactor, slots, waiting: VecDeque::new(), done: Vec::new() }
    }

    /// Sends waiting commands while slots are free.
    pub(super) fn pump(&mut self, out: &mut T::Outgoing, deadline: Option<Instant>) {
        T::resume(out, self);
        while let Some((purpose, _, _)) = self.waiting.front() {
            // The first slot is reserved for keep alives, which must not wait behind slow commands.
            let first = usize::from(!matches!(purpose, Purpose::KeepAlive));
            let free = (first..self.slots.len()).find(|&slot| self.slots[slot].is_none());
            let Some(free) = free else { return };
            let Some((purpose, command, data)) = self.waiting.pop_front() else { return };
            let mut place = self.place_of(&command, &data);
            let order = Order {
                slot: SlotId(free as u16),
                index: free as u32,
                command: &command,
                start: 0,
                in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES,
            };
            let part = T::issue(out, &order, &mut place);
            // Event requests have no deadline.
            let deadline = deadline.filter(|_| !matches!(purpose, Purpose::AsyncEvent));
            self.slots[free] = Some(Pending { purpose, place, part, outcome: None, deadline });
        }
    }

    fn place_of(&self, command: &Command, data: &[u8]) -> T::Place {
        let take = |length: u32| self.reactor.buffers().take(length as usize);
        match command.data {
            Data::None => T::Place::NOWHERE,
            Data::FromController(length) => {
                let mut buffer = take(length);
                // If the controller does not fill the buffer, the user must not see old data.
                buffer.fill(0);
                T::Place::here(buffer)
            }
            Data::ToController(length) => {
                let mut buffer = take(length);
                buffer.copy_from_slice(data);
                T::Place::here(buffer)
            }
        }
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = &Pending<T>> {
        self.slots.iter().flatten()
    }
}

impl<T: Transport> Commands<T> for Table<T> {
    fn command(&mut self, slot: SlotId) -> Option<Moving<'_, T>> {
        let pending = self.slots[usize::from(slot.0)].as_mut()?;
        let Pending { place, part, .. } = pending;
        Some(Moving { index: slot.0.into(), start: 0, part, place })
    }

    fn place(&mut self, index: u32) -> &mut T::Place {
        &mut self.slots[index as usize].as_mut().expect("the transport used its buffer").place
    }

    fn find(&self, is_it: impl Fn(&T::Place) -> bool) -> Option<u32> {
        let is_it = |pending: &Option<Pending<T>>| {
            pending.as_ref().is_some_and(|pending| is_it(&pending.place))
        };
        self.slots.iter().position(is_it).map(|index| index as u32)
    }

    fn finish(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let over = |pending: &mut Pending<T>| pending.outcome.is_some() && !pending.place.is_away();
        let Some(Pending { purpose, place, outcome: Some(outcome), .. }) = slot.take_if(over)
        else {
            return;
        };
        let mut data = Vec::new();
        if let Some(buffer) = place.take() {
            data.extend_from_slice(&buffer[..buffer.len().min(outcome.received as usize)]);
            self.reactor.buffers().give(buffer);
        }
        let Outcome { cqe, intact, .. } = outcome;
        self.done.push(Done { purpose, cqe, data, intact });
    }

    fn complete(&mut self, slot: SlotId, cqe: &Cqe, received: u32, intact: bool) {
        let pending = self.slots[usize::from(slot.0)].as_mut().expect("the command was in flight");
        pending.outcome = Some(Outcome { cqe: *cqe, received, intact });
        self.finish(slot.0.into());
    }
}
