//! Tracks whether the target refuses users' operations although its paths are live. For example, a
//! fenced host keeps its connections but may not write.
//!
//! Queues report every result here. While the target refuses no operation, a report costs one
//! relaxed load.

use farblock_block::{BlockError, Command};
use std::sync::atomic::{AtomicU8, Ordering};

/// Errors that concern the whole disk. The stored value of a refusal is (index in this list + 1) *
/// 2, plus 1 if the operation writes. The value 0 means that the target refuses nothing.
const KINDS: [BlockError; 5] = [
    BlockError::Conflict,
    BlockError::Denied,
    BlockError::ReadOnly,
    BlockError::NoSpace,
    BlockError::NotReady,
];

#[derive(Default)]
pub(super) struct Refusal(AtomicU8);

impl Refusal {
    /// Records the result of an operation. A refused write stays recorded until a write succeeds,
    /// even if reads succeed before that.
    pub(super) fn note(&self, command: Command, result: Result<(), BlockError>) {
        let writes = u8::from(!command.reads());
        match result {
            Ok(()) => {
                let held = self.0.load(Ordering::Relaxed);
                // Ignore a flush, which succeeds even for a host that may not write.
                if held != 0 && held & 1 == writes && command != Command::Flush {
                    self.0.store(0, Ordering::Relaxed);
                }
            }
            Err(error) => {
                if let Some(kind) = KINDS.iter().position(|&kind| kind == error) {
                    self.0.store((kind as u8 + 1) << 1 | writes, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the present refusal, if there is one: whether the refused operation writes, and its
    /// error.
    pub(super) fn held(&self) -> Option<(bool, BlockError)> {
        let held = self.0.load(Ordering::Relaxed);
        let kind = usize::from(held >> 1).checked_sub(1)?;
        Some((held & 1 != 0, KINDS[kind]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_reported_until_a_write_succeeds() {
        let refusal = Refusal::default();
        refusal.note(Command::Write, Err(BlockError::WriteFailed));
        assert_eq!(refusal.held(), None, "the failure of one block is no refusal");
        for kind in KINDS {
            refusal.note(Command::Write, Err(kind));
            refusal.note(Command::Read, Ok(()));
            refusal.note(Command::Flush, Ok(()));
            assert_eq!(refusal.held(), Some((true, kind)));
            refusal.note(Command::Write, Ok(()));
            assert_eq!(refusal.held(), None);
        }
        refusal.note(Command::Read, Err(BlockError::Denied));
        assert_eq!(refusal.held(), Some((false, BlockError::Denied)));
        refusal.note(Command::Read, Ok(()));
        assert_eq!(refusal.held(), None);
    }
}
