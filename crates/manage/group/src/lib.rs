//! Groups of targets: membership, leadership, fencing and shared reservations, as state machines.
#![forbid(unsafe_code)]

mod action;
mod claim;
mod fence;
mod keys;
pub mod limits;
mod member;
mod mistake;
mod outbox;
mod place;
mod records;
mod reservations;
mod seat;
mod session;
mod settle;
pub mod store;
#[cfg(test)]
mod tests;
mod timing;
mod view;

pub use action::{Action, MemberEvent, Outcome, Permit, Proposed, Report};
pub use keys::{Key, KeySpace, is_name};
pub use member::Member;
use mistake::has_mistake;
pub use place::ranking;
pub use records::{
    AckRecord, AliveRecord, AnaGroupRecord, Duty, FenceKind, Holder, LeaderRecord, MemberRecord,
    NoticeRecord, OrderRecord, Phase, PinRecord, RangeRecord, Reason, Record, ReservationChange,
    ReservationRecord, Unknown, VERSION,
};
pub use session::MemberConfig;
pub use timing::Timing;
pub use view::{Seen, View};
