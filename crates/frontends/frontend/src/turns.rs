//! Whose turn it is at the end of a tick: a connection with something to do then has one, however
//! often it asks for it, and all that it has to say goes out at once.

use crate::connections::{ConnectionKey, Connections};
use farblock_reactor::{Reactor, TaskId};

/// The connections of a thread that have a turn.
#[derive(Debug, Default)]
pub struct Turns {
    listed: Vec<ConnectionKey>,
    is_listed: Vec<bool>,
    /// The other vector: the two change places, so that neither is allocated again.
    spare: Vec<ConnectionKey>,
}

impl Turns {
    /// Gives a connection a turn, if it has none.
    pub fn list(&mut self, key: ConnectionKey) {
        let index = key.0 as usize;
        if index >= self.is_listed.len() {
            self.is_listed.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_listed[index], true) {
            self.listed.push(key);
        }
    }

    /// Nobody has a turn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Those that have a turn now. They are to be given back, by [`Turns::end_round`].
    pub fn begin_round(&mut self) -> Vec<ConnectionKey> {
        std::mem::replace(&mut self.listed, std::mem::take(&mut self.spare))
    }

    /// All have had it.
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

/// What the connections of a thread need of it.
pub trait TickContext {
    /// Whose turn it is.
    fn turns(&mut self) -> &mut Turns;

    /// The thread's event loop.
    fn reactor(&self) -> &Reactor;
}

/// A connection that has turns.
pub trait TickConnection {
    /// What it needs of its thread.
    type Context: TickContext;

    /// Does what there is to do at the end of a tick.
    fn finish_tick(&mut self, cx: &mut Self::Context);

    /// Whether nothing of it is left anywhere.
    fn is_gone(&self) -> bool;

    /// Whose events are its own.
    fn task(&self) -> TaskId;
}

impl<C: TickConnection> Connections<C> {
    /// Has a connection its turn, and lets it go if nothing of it is left: then true.
    pub fn finish_tick(&mut self, key: ConnectionKey, cx: &mut C::Context) -> bool {
        cx.turns().take(key);
        let Some(connection) = self.get_mut(key) else { return false };
        connection.finish_tick(cx);
        // One that still has something to do would be found gone when it is its turn.
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
    fn a_connection_has_one_turn_a_round_and_may_ask_for_another() {
        let mut turns = Turns::default();
        let keys = [3, 0, 3, 0].map(ConnectionKey);
        keys.iter().for_each(|&key| turns.list(key));
        let round = turns.begin_round();
        assert_eq!(round, [ConnectionKey(3), ConnectionKey(0)]);
        // One asks before its turn, for which it has one already; the other after it.
        turns.take(ConnectionKey(3));
        turns.list(ConnectionKey(0));
        turns.list(ConnectionKey(3));
        turns.end_round(round);
        assert!(turns.has(ConnectionKey(3)));
        assert_eq!(turns.begin_round(), [ConnectionKey(3)]);
        assert!(turns.is_empty());
    }
}
