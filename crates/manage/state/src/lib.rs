//! The desired state of a target, and the steps to reach it.
//!
//! **Overview.** A [`Document`] describes all that a running target can share: listeners,
//! referrals, and subsystems with their hosts and namespaces. [`steps`] lists the changes from one
//! document to another. [`reconcile`] applies these steps to a running target. If a step fails,
//! `reconcile` rolls the earlier steps back. [`merge`] combines a changed configuration file with
//! changes made at run time. A [`Store`] keeps a document through crashes.
//!
//! **Contract.** A document that passes [`Document::check`] is consistent. But it may name a disk
//! that cannot be opened, or an address that cannot be bound: that shows only when the target
//! executes the step. After [`reconcile`] the target has either the state of the new document or
//! its old state. After a crash the store holds either the old document or the new one.
//!
//! **Not implemented.** The contents of key files: a document contains only the locations of keys.

#![forbid(unsafe_code)]

mod check;
mod document;
mod edit;
mod entrances;
mod eui64;
mod json;
mod merge;
mod name;
mod problem;
mod reconcile;
mod steps;
mod store;

pub use check::{MAX_BURST_MS, MAX_WEIGHT};
pub use document::{Ana, Document, Host, Limits, Listener, Namespace};
pub use document::{Demand, Referral, Subsystem, Tls, VERSION};
pub use edit::{doors_kept, keys_kept, patch, pointer, tls_inherited};
pub use eui64::Eui64;
pub use farblock_proto::controller::{Entrance, Transport};
pub use json::parse as parse_json;
pub use merge::merge;
pub use name::check_name;
pub use problem::Problem;
pub use reconcile::{Failed, Running, reconcile, take_all_back};
pub use steps::{Step, steps};
pub use store::{Kept, Stage, Store, StoreError, remove_file, replace_file};
