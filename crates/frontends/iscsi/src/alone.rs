//! COMPARE AND WRITE is carried out alone: while it reads, compares and writes, no other change of
//! any session is with the namespace, or it would not be one step to the others. So it waits until
//! those in flight have ended, and others wait until it has. That is slow, and rare; other changes
//! pay one addition for it. (What others do to a remote namespace cannot be kept out.)

use farblock_block::Op;
use std::collections::VecDeque;

/// Who is alone, or waits for that; `W` names one.
pub(crate) struct Alone<W> {
    /// Changes that are with the namespace.
    in_flight: usize,
    waiting: VecDeque<W>,
    is_taken: bool,
    /// Changes that wait.
    parked: VecDeque<Op>,
}

impl<W> Default for Alone<W> {
    fn default() -> Self {
        Self { in_flight: 0, waiting: VecDeque::new(), is_taken: false, parked: VecDeque::new() }
    }
}

impl<W> Alone<W> {
    /// An operation of whoever is not alone: given back if it may go ahead.
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

    /// A change ended that had gone ahead.
    pub(crate) fn leave(&mut self) {
        self.in_flight -= 1;
    }

    /// Wants to be alone, and comes out of [`Self::next`] then.
    pub(crate) fn wait(&mut self, who: W) {
        self.waiting.push_back(who);
    }

    /// Who is alone from now on, if it is anybody's turn.
    pub(crate) fn next(&mut self) -> Option<W> {
        if self.is_taken || self.in_flight > 0 {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.is_taken = true;
        Some(next)
    }

    /// It is not alone any more: gives the changes that waited, which go ahead before anybody else
    /// is alone.
    pub(crate) fn end(&mut self) -> VecDeque<Op> {
        debug_assert!(self.is_taken && self.in_flight == 0);
        self.is_taken = false;
        self.in_flight += self.parked.len();
        std::mem::take(&mut self.parked)
    }
}

impl<W> Drop for Alone<W> {
    /// The event loop has failed: the queue goes as well, and nobody waits for an answer.
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

    /// Whether an operation goes ahead.
    fn goes(alone: &mut Alone<char>, op: Op) -> bool {
        alone.enter(op).map(Op::abandon).is_some()
    }

    #[test]
    fn one_is_alone_and_changes_are_not_kept_out_for_ever() {
        let mut alone = Alone::default();
        assert!(goes(&mut alone, write(1)));
        alone.wait('a');
        alone.wait('b');
        assert_eq!(alone.next(), None, "a change is in flight");
        assert!(!goes(&mut alone, write(2)));
        assert!(goes(&mut alone, Op::read(0, 1, Buffer::new(512), 3)), "it changes nothing");
        assert!(goes(&mut alone, Op::flush(4)));
        alone.leave();
        assert_eq!((alone.next(), alone.next()), (Some('a'), None));
        assert!(!goes(&mut alone, write(5)));
        let parked: Vec<_> =
            alone.end().into_iter().map(|op| (op.token.value(), op.abandon()).0).collect();
        assert_eq!(parked, [2, 5], "they go in their order");
        assert_eq!(alone.next(), None, "those that waited come first");
        (0..2).for_each(|_| alone.leave());
        assert_eq!(alone.next(), Some('b'));
        assert!(!goes(&mut alone, write(6)), "and is given up with all else");
    }
}
