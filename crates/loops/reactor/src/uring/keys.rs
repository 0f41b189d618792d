//! The keys in the `user_data` of io_uring operations, which map a completion to its operation.
//! Only this module creates and reads `user_data`.
//!
//! ```text
//! 63      56 55          32 31             0
//! ┌─────────┬──────────────┬────────────────┐
//! │  kind   │  generation  │     index      │
//! └─────────┴──────────────┴────────────────┘
//! ```
//!
//! | kind      | key of             | outstanding at once                    |
//! |-----------|--------------------|----------------------------------------|
//! | `Recv`    | a stream           | one per stream                         |
//! | `Send`    | a stream           | one per stream                         |
//! | `Connect` | a stream           | one per stream, before the others      |
//! | `Accept`  | a listener         | one per listener, multishot            |
//! | `File`    | a file operation   | one per operation                      |
//! | `Alarm`   | none (zero)        | one                                    |
//! | `Cancel`  | none (zero)        | any number; the engine ignores results |
//! | `Watch`   | a watch            | one per watch, multishot               |
//! | `Probe`   | none (zero)        | one, during the engine's creation      |
//!
//! A slot (an entry in one of the engine's tables) exists until the engine has handled its last
//! completion. A closed stream stays in its slot while an operation is outstanding. So a completion
//! always finds its slot. A missing slot is a bug in this crate, and panics.
//!
//! A cancellation contains the key of the operation to cancel. The cancellation and the operation
//! both complete. If the operation finished first, it completes with its own result.

use crate::slab::{GENERATION_BITS, Key};

/// The kind of operation that a completion reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum CompletionKind {
    Recv = 1,
    Send = 2,
    Connect = 3,
    Accept = 4,
    File = 5,
    Alarm = 6,
    Cancel = 7,
    Probe = 8,
    Watch = 9,
}

const KINDS: [CompletionKind; 9] = [
    CompletionKind::Recv,
    CompletionKind::Send,
    CompletionKind::Connect,
    CompletionKind::Accept,
    CompletionKind::File,
    CompletionKind::Alarm,
    CompletionKind::Cancel,
    CompletionKind::Probe,
    CompletionKind::Watch,
];

const INDEX_BITS: u32 = 32;
const KIND_SHIFT: u32 = INDEX_BITS + GENERATION_BITS;

/// The key of operations that have no slot.
pub(super) const NO_SLOT: Key = Key { index: 0, generation: 0 };

pub(super) fn pack(kind: CompletionKind, key: Key) -> u64 {
    let (generation, index) = (u64::from(key.generation), u64::from(key.index));
    (kind as u64) << KIND_SHIFT | generation << INDEX_BITS | index
}

pub(super) fn unpack(user_data: u64) -> (CompletionKind, Key) {
    let kind = (user_data >> KIND_SHIFT) as usize;
    let generation = (user_data >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
    let kind = *KINDS.get(kind.wrapping_sub(1)).expect("the kernel returns our user_data");
    (kind, Key { index: user_data as u32, generation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_keys_round_trip_through_user_data() {
        for kind in KINDS {
            for index in [0, 1, u32::MAX] {
                for generation in [0, 1, (1 << GENERATION_BITS) - 1] {
                    let key = Key { index, generation };
                    assert_eq!(unpack(pack(kind, key)), (kind, key));
                }
            }
        }
    }
}
