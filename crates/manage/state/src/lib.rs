//! What a target is to share, and how to get there.
//!
//! **What it is.** A [`Document`] says all that a running target can be asked to share: listeners,
//! referrals, subsystems with their hosts and namespaces. [`steps`] lists what leads from one
//! document to another, [`reconcile`] takes these steps on something that runs and takes back what
//! was done when one fails, [`merge`] finds what a changed configuration file asks for of a target
//! that was changed meanwhile, and a [`Store`] keeps a document through crashes.
//!
//! **Contract.** A document that [`Document::check`] lets through is in order by itself; whether a
//! disk can be opened and an address listened on is known when the step is taken. After
//! [`reconcile`] the target is as the new document says, or as it was. After a crash the store
//! holds the old document or the new one.
//!
//! **Not implemented.** What is in a key's file: a document says where it is.

#![forbid(unsafe_code)]

mod check;
mod document;
mod edit;
mod json;
mod merge;
mod reconcile;
mod steps;
mod store;

pub use check::{MAX_BURST_MS, MAX_WEIGHT, Problem};
pub use document::{Ana, Document, Host, Limits, Listener, Namespace};
pub use document::{Demand, Referral, Subsystem, Tls, VERSION};
pub use edit::{doors_kept, keys_kept, patch, pointer, tls_inherited};
pub use json::parse as parse_json;
pub use merge::merge;
pub use reconcile::{Failed, Running, reconcile, take_all_back};
pub use steps::{Step, steps};
pub use store::{Kept, Stage, Store, StoreError, remove_file, replace_file};
