//! Makes COMPARE AND WRITE atomic for all sessions. While the command reads, compares and writes,
//! the target submits no other change of blocks to the namespace.
//!
//! So the command waits until the changes in flight have completed, and other changes wait until
//! the command has completed. The command is slow, but rare. Without it, each change only updates a
//! counter. (The target cannot exclude the changes of other hosts to a remote namespace.)

use farblock_block::Op;
use std::collections::VecDeque;

/// Decides when exclusive operations (COMPARE AND WRITE) and other changes may start. A value of
/// type `W` identifies an exclusive operation.
pub(crate) struct Alone<W> {
    /// The number of changes in flight in the namespace.
    in_flight: usize,
    waiting: VecDeque<W>,
    is_taken: bool,
    /// Changes that wait until the exclusive operation has completed.
    parked: VecDeque<Op>,
}

impl<W> Default for Alone<W> {
    fn default() -> Self {
        Self { in_flight: 0, waiting: VecDeque::new(), is_taken: false, parked: VecDeque::new() }
    }
}

impl<W> Alone<W> {
    /// Admits an operation that is not exclusive. Returns the operation if it may start now.
    /// Otherwise keeps it until [`Self::end`] returns it.
    pub(crate) fn enter(&mut self, op: Op) -> Option<Op> {
        if !op.command.writes() {
            return Some(op);
        }
        if self.is_taken || !self.waiting.is_empty() {
            self.parked.push_back(op);
            return None;
        }
        self.in_flight += 1;
        Some(op)
    }

    /// Records that an admitted change has completed.
    pub(crate) fn leave(&mut self) {
        self.in_flight -= 1;
    }

    /// Queues an exclusive operation, which [`Self::next`] returns when its turn comes.
    pub(crate) fn wait(&mut self, who: W) {
        self.waiting.push_back(who);
    }

    /// Returns the next exclusive operation if it may start now.
    pub(crate) fn next(&mut self) -> Option<W> {
        if self.is_taken || self.in_flight > 0 {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.is_taken = true;
        Some(next)
    }

    /// Ends the exclusive operation. Returns the changes that waited. They start before the next
    /// exclusive operation.
    pub(crate) fn end(&mut self) -> VecDeque<Op> {
        debug_assert!(self.is_taken && self.in_flight == 0);
        self.is_taken = false;
        self.in_flight += self.parked.len();
        std::mem::take(&mut self.parked)
    }
}

impl<W> Drop for Alone<W> {
    /// Abandons the parked operations. There are some only after the event loop has failed, when no
    /// initiator expects an answer any more.
    fn drop(&mut self) {
        self.parked.drain(..).for_each(|op| drop(op.abandon()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_reactor::Buffer;

    fn write(token: u64) -> Op {
        Op::write(0, 1, Buffer::new(512), token)
    }

    /// True if an operation may start.
    fn goes(alone: &mut Alone<char>, op: Op) -> bool {
        alone.enter(op).map(Op::abandon).is_some()
    }

    #[test]
    fn an_exclusive_command_runs_alone_and_writes_get_their_turn() {
        let mut alone = Alone::default();
        assert!(goes(&mut alone, write(1)));
        alone.wait('a');
        alone.wait('b');
        assert_eq!(alone.next(), None, "a command runs alone during a write");
        assert!(!goes(&mut alone, write(2)));
        assert!(
            goes(&mut alone, Op::read(0, 1, Buffer::new(512), 3)),
            "a read waits for the exclusive command"
        );
        assert!(goes(&mut alone, Op::flush(4)));
        alone.leave();
        assert_eq!((alone.next(), alone.next()), (Some('a'), None));
        assert!(!goes(&mut alone, write(5)));
        let parked: Vec<_> =
            alone.end().into_iter().map(|op| (op.token.value(), op.abandon()).0).collect();
        assert_eq!(parked, [2, 5], "the waiting writes start out of order");
        assert_eq!(alone.next(), None, "a command runs alone before earlier writes");
        (0..2).for_each(|_| alone.leave());
        assert_eq!(alone.next(), Some('b'));
        assert!(!goes(&mut alone, write(6)), "a write starts during a command that runs alone");
    }
}
