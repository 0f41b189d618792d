//! Runs a member of a group against a real etcd.
//!
//! [`start`] creates a thread with a runtime of its own. The thread connects to etcd, drives a
//! [`Member`](farblock_group::Member), and passes its orders to the [`Disks`] of the target. No
//! core of the data path waits for this thread: a core compares `CLOCK_BOOTTIME` ([`now`]) with its
//! permit.
//!
//! | part | task |
//! |---|---|
//! | `store.rs` | the client of etcd |
//! | `driver.rs` | the thread |
//! | `guard.rs`, [`watchdog`] | kills a suspended process at the end of its permit to do I/O |
//! | `ended.rs`, `proof.rs`, `notice.rs` | the watchdog releases what an ended process led |
//! | `folder.rs` | the lock that makes a quick restart possible |
//! | `change.rs` | an operator's changes |
//!
//! **Restart.** A process that ends without [`Service::leave`] keeps its leadership in etcd. Its
//! successor with the same state folder continues at once. The watchdog releases the leadership of
//! a process that has ended, and other members take over one second later. Without the watchdog,
//! they take over when the lease in etcd has ended.
//!
//! **Building** needs `protoc` and its standard files: `etcd-client` compiles etcd's interface.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod change;
mod changes;
mod clock;
mod config;
mod disks;
mod driver;
mod ended;
mod etcd;
mod folder;
mod guard;
mod history;
mod host_list;
mod input;
mod notice;
mod proof;
mod service;
mod status;
mod store;
pub mod watchdog;

pub use changes::Changes;
pub use clock::now;
pub use config::ServiceConfig;
pub use disks::{Disks, Events};
pub use etcd::{EtcdConfig, EtcdTls};
pub use notice::Reporter;
pub use service::{Service, StartError, start};
pub use status::{
    AnaGroupStatus, GroupStatus, HistoryEntry, LeaderProblems, MemberStatus, StoreStatus,
};

pub use farblock_group::{
    Duty, FenceKind, Holder, MemberEvent, Outcome, Permit, Phase, Proposed, Reason, Report,
    ReservationRecord, Timing,
};
pub use farblock_proto::time::Instant;
