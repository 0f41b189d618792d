//! The controller side: what a command means, without knowing how its bytes travel.
//!
//! **What it is.** [`Registry`] is everything a target's NVM side knows: subsystems with their
//! namespaces, listeners, referrals, the discovery service and the live controllers. It is a plain
//! data machine: the target puts it behind one mutex, asks it about Connect, admin and fabrics
//! commands, tells it about closed queues and the time, and does what it answers. I/O commands
//! never take that mutex: an I/O queue parses them with [`IoCommand::parse`] against a
//! [`NamespaceTable`], a snapshot that it was given at Connect and is given anew by
//! [`Action::Namespaces`].
//!
//! **Contract.**
//! - For an admin command: [`Registry::admin_data_bytes`], pull as many bytes from the host, then
//!   [`Registry::admin`], then do what the [`AdminOutcome`] says.
//! - After *every* call that takes `&mut Registry`: [`Registry::poll_action`] until it is empty.
//!   What concerns other connections than the caller's comes out there.
//! - Before [`Registry::next_deadline`] passes: [`Registry::tick`].
//! - Whatever a peer sends, no call panics, and no answer is longer than the subsystem's largest
//!   transfer.
//! - A [`ControllerId`](crate::ids::ControllerId) is unique in the whole registry, not only in its
//!   subsystem, and is not given out again before all others were.
//!
//! **Not implemented.** Namespace management, firmware download, format, sanitize, self-test,
//! telemetry, directives, the copy command, in-band authentication, the static controller model,
//! saving of features over a restart.

mod admin;
mod ana;
mod channels;
mod cipher;
mod config;
mod connect;
mod copy;
mod discovery;
mod events;
mod features;
mod identifiers;
mod identify;
mod io;
pub mod limits;
mod logs;
mod namespace;
mod properties;
mod registry;
mod reservations;
mod reset;
mod state;
mod visibility;

pub use admin::AdminOutcome;
pub use ana::{PortAccess, USUAL_ANA_GROUP};
pub use channels::HostChannel;
pub use config::{
    AddressFamily, ChannelSecurity, ConfigError, Listener, PortId, Referral, SubsystemConfig,
    SubsystemId,
};
pub use connect::{ConnectRequest, Connected, QueueKind, Refusal};
pub use copy::{CopyPart, CopyPlan, CopyRanges, CopySource};
pub use farblock_wire::log::AnaState;
pub use identifiers::{HostMark, Identified, NotIts};
pub use io::{DeallocateRanges, Fuse, IoCommand, data_pointer};
pub use logs::{ErrorRecord, SmartCounters};
pub use namespace::{NamespaceInfo, NamespaceTable};
pub use properties::Lifecycle;
pub use registry::{Action, ControllerSummary, Registry, Teardown, TeardownReason};
pub use reservations::{
    Access, AccessChange, AccessKind, HostId, KeyedCommand, ReservationCommand, ReservationRequest,
    Reservations, Rights, Ticket,
};
pub use reset::Instance;
pub use state::Traffic;
