//! The commands that wait for the rate limits of their host or namespace. They wait before the
//! target requests their data, so they hold no memory except for in-capsule data. A command *books*
//! its cost in the budgets of the limits; see [`crate::pace`].

use super::{Queue, Session, Work};
use crate::backings::Backings;
use crate::context::Context;
use crate::lifecycle::{Answer, Gate};
use crate::meter::Wait;
use crate::pace::{Cost, Pace};
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

#[derive(Clone, Copy)]
struct Booking {
    cost: Cost,
    /// The read cost of a Copy or a fused pair, in addition to the write cost.
    read: Option<Cost>,
}

impl Booking {
    fn costs(self) -> impl Iterator<Item = Cost> {
        [Some(self.cost), self.read].into_iter().flatten()
    }
}

/// The waiting commands of one kind (read or write) for one namespace, in order.
struct Lane {
    /// The first command's booking. Its namespace and kind identify the lane.
    booked: Booking,
    start: Instant,
    /// The limit that determines `start`, for the wait counters.
    by: Wait,
    /// The time up to which the wait counters include the waits of this lane.
    counted: Instant,
    slots: VecDeque<SlotId>,
}

impl Lane {
    /// Returns the time in nanoseconds that all commands of the lane together have waited since the
    /// last call.
    fn waited(&mut self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.counted).as_nanos();
        self.counted = self.counted.max(now);
        u64::try_from(since).unwrap_or(u64::MAX).saturating_mul(self.slots.len() as u64)
    }
}

#[derive(Default)]
pub(super) struct Paced {
    lanes: Vec<Lane>,
}

impl<T: Transport> Session<T> {
    /// Books a command in its budgets. The command waits if it may not start yet, or if other
    /// commands of its lane wait before it.
    pub(super) fn pace_command(&mut self, cx: &mut Context, slot: SlotId) -> Answer {
        let Some(booking) = self.booking(slot) else { return Answer::Pass };
        let whose = |booking: Booking| (booking.cost.namespace, booking.cost.kind);
        let is_it = |lane: &&mut Lane| whose(lane.booked) == whose(booking);
        let now = cx.now();
        if let Some(index) = self.paced.lanes.iter_mut().position(|mut lane| is_it(&mut lane)) {
            self.count_lane(index, now);
            self.paced.lanes[index].slots.push_back(slot);
            return Answer::Wait;
        }
        let Some((start, by)) = self.book(booking, now).filter(|(start, _)| *start > now) else {
            return Answer::Pass;
        };
        let slots = [slot].into();
        self.paced.lanes.push(Lane { booked: booking, start, by, counted: now, slots });
        cx.deadlines.set(start, self.route.key);
        Answer::Wait
    }

    fn booking(&mut self, slot: SlotId) -> Option<Booking> {
        let Work::Io(command) = self.request(slot).work else {
            unreachable!("only I/O commands are paced")
        };
        let life = self.request(slot).life;
        if life.is_fused() {
            let (cost, read) = self.fused_costs(slot, &command)?;
            return Some(Booking { cost, read: Some(read) });
        }
        if let IoCommand::Copy { .. } = command {
            // A Copy books each step separately, once its ranges are known.
            let (cost, read) = self.copy_costs(slot)?;
            return Some(Booking { cost, read: Some(read) });
        }
        let namespace = NamespaceId(self.request(slot).sqe.nsid.get());
        let cost = Cost::of(&command, self.namespace_info(namespace)?.block_size)?;
        Some(Booking { cost, read: None })
    }

    /// Returns when a command may start, and the limit that determines this time. `None`: no limit
    /// applies.
    fn book(&self, booking: Booking, now: Instant) -> Option<(Instant, Wait)> {
        let starts = self.booked_with(booking).map(|(cost, pace, by)| (pace.book(cost, now), by));
        starts.max_by_key(|(start, _)| *start)
    }

    fn give_booking_back(&self, booking: Booking) {
        self.booked_with(booking).for_each(|(cost, pace, _)| pace.give_back(cost));
    }

    fn booked_with(&self, booking: Booking) -> impl Iterator<Item = (Cost, &Pace, Wait)> {
        let with = |cost: Cost| self.paces(cost.namespace).map(move |(pace, by)| (cost, pace, by));
        booking.costs().flat_map(with)
    }

    /// Returns the budgets of a command: the namespace's and the host's.
    fn paces(&self, namespace: NamespaceId) -> impl Iterator<Item = (&Pace, Wait)> {
        let host = match &self.queue {
            Queue::Io(queue) => queue.pace.as_deref(),
            _ => None,
        };
        let namespaces = self.pace(namespace).map(|pace| (pace, Wait::NamespaceLimit));
        namespaces.into_iter().chain(host.map(|pace| (pace, Wait::HostLimit)))
    }

    fn count_lane(&mut self, index: usize, now: Instant) {
        let lane = &mut self.paced.lanes[index];
        let (waited, by, namespace) = (lane.waited(now), lane.by, lane.booked.cost.namespace);
        self.count_wait(Some(namespace), by, waited);
    }

    fn count_lanes(&mut self, now: Instant) {
        (0..self.paced.lanes.len()).for_each(|index| self.count_lane(index, now));
    }

    fn pace(&self, namespace: NamespaceId) -> Option<&Pace> {
        let Queue::Io(queue) = &self.queue else { return None };
        queue.backings.find(namespace)?.pace.as_deref()
    }

    /// Removes a command that no longer waits.
    pub(super) fn withdraw_paced(&mut self, cx: &mut Context, slot: SlotId) {
        let waits = |lane: &Lane| lane.slots.contains(&slot);
        let Some(index) = self.paced.lanes.iter().position(waits) else { return };
        self.count_lane(index, cx.now());
        let lane = &mut self.paced.lanes[index];
        let was_first = lane.slots.front() == Some(&slot);
        lane.slots.retain(|waits| *waits != slot);
        let (booked, start) = (lane.booked, lane.start);
        if !was_first {
            return;
        }
        cx.deadlines.unset(start, self.route.key);
        self.give_booking_back(booked);
        if self.paced.lanes[index].slots.is_empty() {
            self.paced.lanes.remove(index);
        } else {
            // The next command may be larger, so book again for that command.
            self.book_first(index, cx.now());
        }
        // Set the deadlines of all lanes again: a lane with the same start time as the removed one
        // has lost its deadline.
        for lane in &self.paced.lanes {
            cx.deadlines.set(lane.start, self.route.key);
        }
    }

    fn book_first(&mut self, index: usize, now: Instant) {
        let Some(&first) = self.paced.lanes[index].slots.front() else { return };
        let booking = self.booking(first);
        let start = booking.and_then(|booking| self.book(booking, now));
        let lane = &mut self.paced.lanes[index];
        let (start, by) = start.unwrap_or((now, lane.by));
        (lane.start, lane.by, lane.booked) = (start, by, booking.unwrap_or(lane.booked));
    }

    /// Ends the waiting commands that reservations now forbid, since their wait may be long.
    pub(super) fn end_forbidden(&mut self, cx: &mut Context) {
        let slots = self.paced.lanes.iter().flat_map(|lane| &lane.slots);
        for slot in slots.copied().collect::<Vec<_>>() {
            if let Err(status) = self.check_access(slot) {
                self.withdraw_paced(cx, slot);
                self.respond_and_release(cx, slot, status, 0);
                self.list(cx);
            }
        }
    }

    /// Drops all waiting commands when the connection closes.
    pub(super) fn stop_waiting(&mut self, cx: &mut Context) {
        self.count_lanes(cx.now());
        for lane in &mut self.paced.lanes {
            lane.slots.clear();
            cx.deadlines.unset(lane.start, self.route.key);
        }
        self.give_back_booked();
    }

    /// Gives the bookings of empty lanes back to their budgets, and removes the lanes.
    fn give_back_booked(&mut self) {
        let is_empty = |lane: &mut Lane| lane.slots.is_empty();
        let ended: Vec<_> = self.paced.lanes.extract_if(.., is_empty).collect();
        for Lane { booked, .. } in ended {
            self.give_booking_back(booked);
        }
    }

    pub(crate) fn go_on(&mut self, cx: &mut Context) {
        if !self.is_serving() {
            // A closing connection starts no commands.
            return;
        }
        let now = cx.now();
        let mut free = Vec::new();
        for index in 0..self.paced.lanes.len() {
            if self.paced.lanes[index].start > now {
                // The deadline of this lane is still set.
                continue;
            }
            self.count_lane(index, now);
            while self.paced.lanes[index].start <= now
                && let Some(slot) = self.paced.lanes[index].slots.pop_front()
            {
                free.push(slot);
                self.book_first(index, now);
            }
            if !self.paced.lanes[index].slots.is_empty() {
                cx.deadlines.set(self.paced.lanes[index].start, self.route.key);
            }
        }
        self.paced.lanes.retain(|lane| !lane.slots.is_empty());
        free.into_iter().for_each(|slot| self.wake(cx, slot, Gate::Pace));
        self.list(cx);
    }

    /// Books waiting commands again if their limits differ from those in `before`. All other
    /// commands keep their booking, since a new booking would be later.
    pub(super) fn pace_again(&mut self, cx: &mut Context, before: &Backings) {
        self.count_lanes(cx.now());
        let Queue::Io(queue) = &self.queue else { return };
        let backings = Arc::clone(&queue.backings);
        let pace = |backings: &Backings| backings.pace_of(&queue.host).map(Arc::as_ptr);
        let is_host_changed = pace(&backings) != pace(before);
        // A Copy is also booked in its source's budgets.
        let copies = |slot: &SlotId| self.requests[usize::from(slot.0)].progress.copying.is_some();
        let changed = |lane: &mut Lane| {
            is_host_changed
                || !backings.pace_alike(before, lane.booked.cost.namespace)
                || lane.slots.iter().any(copies)
        };
        for lane in self.paced.lanes.extract_if(.., changed).collect::<Vec<_>>() {
            lane.booked.costs().for_each(|cost| self.give_back_unchanged(before, cost));
            lane.slots.into_iter().for_each(|slot| self.admit(cx, slot));
        }
    }

    /// Gives a booking back to its budgets, except to budgets that `before` lacks.
    fn give_back_unchanged(&self, before: &Backings, booked: Cost) {
        let Queue::Io(queue) = &self.queue else { return };
        let ptr = |backings: &Backings| backings.pace_of(&queue.host).map(Arc::as_ptr);
        let own = queue.pace.as_ref().filter(|pace| ptr(before) == Some(Arc::as_ptr(pace)));
        let is_alike = queue.backings.pace_alike(before, booked.namespace);
        let shared = self.pace(booked.namespace).filter(|_| is_alike);
        [own.map(Arc::as_ref), shared]
            .into_iter()
            .flatten()
            .for_each(|pace| pace.give_back(booked));
    }

    /// Starts all waiting commands, since the target is stopping.
    pub(super) fn wait_no_longer(&mut self, cx: &mut Context) {
        for lane in std::mem::take(&mut self.paced.lanes) {
            lane.slots.into_iter().for_each(|slot| self.wake(cx, slot, Gate::Pace));
        }
    }
}
