//! A list of the connections that have work at the end of a tick (one round of the event loop).
//! Each of them then gets one *turn*: it does this work, and sends its output with one system call.

use crate::connections::{ConnectionKey, Connections};
use farblock_reactor::{Reactor, TaskId};

/// A thread's list of connections that need a turn.
#[derive(Debug, Default)]
pub struct Turns {
    listed: Vec<ConnectionKey>,
    is_listed: Vec<bool>,
    /// An empty vector. Each tick swaps it with `listed`, so that neither is allocated again.
    spare: Vec<ConnectionKey>,
}

impl Turns {
    /// Adds a connection to the list, if it is not there already.
    pub fn list(&mut self, key: ConnectionKey) {
        let index = key.0 as usize;
        if index >= self.is_listed.len() {
            self.is_listed.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_listed[index], true) {
            self.listed.push(key);
        }
    }

    /// True if no connection is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Takes all connections from the list. The caller returns the vector with
    /// [`Turns::end_round`].
    pub fn begin_round(&mut self) -> Vec<ConnectionKey> {
        std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare))
    }

    /// Returns the vector of [`Turns::begin_round`] for reuse.
    pub fn end_round(&mut self, mut round: Vec<ConnectionKey>) {
        round.clear();
        self.spare = round;
    }

    fn has(&self, key: ConnectionKey) -> bool {
        self.is_listed[key.0 as usize]
    }

    fn take(&mut self, key: ConnectionKey) {
        self.is_listed[key.0 as usize] = false;
    }
}

/// The part of a thread's state that its connections use in their turns.
pub trait TickContext {
    /// The thread's list of turns.
    fn turns(&mut self) -> &mut Turns;

    /// The thread's event loop.
    fn reactor(&self) -> &Reactor;
}

/// A connection that may have work at the end of a tick.
pub trait TickConnection {
    /// The state of the thread that owns the connection.
    type Context: TickContext;

    /// Does the connection's work at the end of a tick.
    fn finish_tick(&mut self, cx: &mut Self::Context);

    /// True if the connection is closed and has no operations in flight.
    fn is_gone(&self) -> bool;

    /// The task that receives the connection's events.
    fn task(&self) -> TaskId;
}

impl<C: TickConnection> Connections<C> {
    /// Gives a connection its turn. If it [is gone](TickConnection::is_gone) and not listed for
    /// another turn, removes it and returns true.
    pub fn finish_tick(&mut self, key: ConnectionKey, cx: &mut C::Context) -> bool {
        cx.turns().take(key);
        let Some(connection) = self.get_mut(key) else { return false };
        connection.finish_tick(cx);
        // A connection that is listed again must exist in its next turn.
        if !connection.is_gone() || cx.turns().has(key) {
            return false;
        }
        let task = connection.task();
        self.remove(key, task);
        cx.reactor().remove_task(task);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_one_turn_in_each_round() {
        let mut turns = Turns::default();
        let keys = [3, 0, 3, 0].map(ConnectionKey);
        keys.iter().for_each(|&key| turns.list(key));
        let round = turns.begin_round();
        assert_eq!(round, [ConnectionKey(3), ConnectionKey(0)]);
        // Connection 3 has its turn. Connection 0 is added, but is already on the list.
        turns.take(ConnectionKey(3));
        turns.list(ConnectionKey(0));
        turns.list(ConnectionKey(3));
        turns.end_round(round);
        assert!(turns.has(ConnectionKey(3)));
        assert_eq!(turns.begin_round(), [ConnectionKey(3)]);
        assert!(turns.is_empty());
    }
}
