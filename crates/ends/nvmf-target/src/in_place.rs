//! Commands such as Verify and Copy execute in steps, which the connections of a core start in
//! turn. This module stores the waiting connections and the bytes of the steps under way. See
//! `session::turns`.

use crate::limits;
use crate::route::ConnectionKey;
use crate::volumes::VolumeId;
use std::collections::{HashMap, VecDeque};

/// The connections that wait to start a step at one namespace, in order.
#[derive(Default)]
struct Line {
    queue: VecDeque<ConnectionKey>,
    /// The bytes charged for steps under way at this namespace.
    under_way_bytes: usize,
}

/// The waiting connections of a core, and its steps under way.
#[derive(Default)]
pub(crate) struct InPlace {
    lines: HashMap<VolumeId, Line>,
    /// The lines with waiting connections, in the order of their turns.
    turns: VecDeque<VolumeId>,
    /// The bytes charged for all steps under way.
    under_way_bytes: usize,
    /// The bytes charged for the steps started in this tick.
    begun_bytes: usize,
}

impl InPlace {
    pub(crate) fn tick(&mut self) {
        self.begun_bytes = 0;
    }

    pub(crate) fn join(&mut self, line: VolumeId, key: ConnectionKey) {
        let queue = &mut self.lines.entry(line).or_default().queue;
        if queue.is_empty() {
            self.turns.push_back(line);
        }
        queue.push_back(key);
    }

    /// Removes a connection that has no more commands in this line. When its next command arrives,
    /// the connection joins at the end of the line.
    pub(crate) fn leave(&mut self, line: VolumeId, key: ConnectionKey) {
        let Some(left) = self.lines.get_mut(&line) else { return };
        left.queue.retain(|waits| *waits != key);
        if left.queue.is_empty() {
            self.turns.retain(|waiting| *waiting != line);
        }
    }

    fn has_room(&self, line: VolumeId) -> bool {
        let is_idle = || self.lines.get(&line).is_none_or(|line| line.under_way_bytes == 0);
        self.under_way_bytes < limits::IN_PLACE_BYTES || is_idle()
    }

    /// Returns the next connection that may start a step, and its line. `None` at the byte limits.
    pub(crate) fn next(&mut self) -> Option<(VolumeId, ConnectionKey)> {
        // Return early in the common case, in which the target only reads and writes.
        if self.turns.is_empty() || self.begun_bytes >= limits::IN_PLACE_BYTES {
            return None;
        }
        let place = self.turns.iter().position(|line| self.has_room(*line))?;
        let id = self.turns.remove(place).expect("found just now");
        let line = self.lines.get_mut(&id).expect("a line with waiting operations is listed");
        let key = line.queue.pop_front()?;
        if !line.queue.is_empty() {
            self.turns.push_back(id);
        }
        Some((id, key))
    }

    /// Returns whether a connection waits only because this tick of the event loop has started
    /// enough steps. The core must then run another tick soon.
    pub(crate) fn is_put_off(&self) -> bool {
        !self.turns.is_empty() && self.turns.iter().any(|line| self.has_room(*line))
    }

    /// Removes the line of a namespace into which the core has closed its queue. No step may be
    /// under way.
    pub(crate) fn forget(&mut self, line: VolumeId) {
        let left = self.lines.remove(&line);
        debug_assert!(left.is_none_or(|line| line.under_way_bytes == 0), "a step has not ended");
        self.turns.retain(|waiting| *waiting != line);
    }

    pub(crate) fn begin(&mut self, line: VolumeId, bytes: usize) {
        self.under_way_bytes += bytes;
        self.begun_bytes += bytes;
        self.lines.entry(line).or_default().under_way_bytes += bytes;
    }

    pub(crate) fn end(&mut self, line: VolumeId, bytes: usize) {
        self.under_way_bytes -= bytes;
        self.lines.entry(line).or_default().under_way_bytes -= bytes;
    }
}
