//! The controller side: executes commands, independent of the transport.
//!
//! **Design.** [`Registry`] holds all state above the transport: subsystems with their namespaces,
//! listeners, referrals, the discovery service and the live controllers. It does no I/O. The target
//! protects the registry with one mutex. The target passes Connect, admin and fabrics commands,
//! closed queues and the time to the registry, and acts on the results.
//!
//! I/O commands never take the mutex. An I/O queue parses them with [`IoCommand::parse`] against a
//! snapshot, its [`NamespaceTable`]. The queue receives the first snapshot at Connect, and newer
//! snapshots with [`Action::Namespaces`].
//!
//! **Contract.**
//! - For an admin command: call [`Registry::admin_data_bytes`], pull that many bytes from the host,
//!   call [`Registry::admin`], then act on the [`AdminOutcome`].
//! - After *every* call that takes `&mut Registry`: call [`Registry::poll_action`] until it returns
//!   `None`. These actions concern connections other than the one for which the target made the
//!   call.
//! - When the time of [`Registry::next_look`] has come: call [`Registry::tick`].
//! - No input from a peer causes a panic, and no response exceeds the subsystem's largest transfer.
//! - A [`ControllerId`](crate::ids::ControllerId) is unique in the whole registry, not only in its
//!   subsystem. The registry reuses an identifier only after it has used all others.
//!
//! **Not implemented.** Namespace management, firmware download, format, sanitize, self-test,
//! telemetry, directives, in-band authentication, the static controller model, and features that
//! persist over a restart.

mod admin;
mod ana;
mod channels;
mod cipher;
mod config;
mod connect;
mod contents;
mod copy;
mod discovery;
mod entrance;
mod events;
mod features;
mod identifiers;
mod identify;
mod io;
pub mod limits;
mod logs;
mod namespace;
mod properties;
mod published;
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
pub use entrance::{Entrance, Transport};
pub use farblock_wire::log::AnaState;
pub use identifiers::{HostMark, Identified, NotIts};
pub use io::{DeallocateRanges, Fuse, IoCommand, data_pointer};
pub use logs::{ErrorRecord, SmartCounters};
pub use namespace::{NamespaceInfo, NamespaceTable};
pub use properties::Lifecycle;
pub use registry::{Action, ControllerSummary, Registry, Teardown, TeardownReason};
pub use reservations::{
    Access, AccessChange, AccessKind, HostId, KeyedCommand, ReservationCommand, ReservationRequest,
    Reservations, Rights, SharedAnswer, SharedChange, SharedProposal, Ticket,
};
pub use reset::Instance;
pub use state::Traffic;
