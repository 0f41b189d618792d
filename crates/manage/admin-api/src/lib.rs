//! The types of the management API, and small parts that its servers and clients share.
//!
//! A process reports the rights that it has dropped ([`Confinement`]). A daemon reports its
//! attached disk ([`AttachedStatus`]), and a target its [`Status`] and [`Stats`]. [`OpenTimeouts`]
//! limits the wait for a slow disk or key file. Control sockets are files that only their owner can
//! open ([`bind_socket`]), in the folders that [`places`] names.
//!
//! This crate depends on neither targets, hosts nor HTTP. `farblock-admin` serves the API.

#![forbid(unsafe_code)]

mod attached;
mod confinement;
mod fleet;
mod group_order;
mod legs;
mod open_timeouts;
#[cfg(unix)]
pub mod places;
#[cfg(unix)]
mod socket;
mod stats;
mod status;

pub use attached::{AttachedPath, AttachedStatus, ReadAttached};
pub use confinement::Confinement;
pub use fleet::{FleetHost, FleetStatus};
pub use group_order::GroupOrder;
pub use legs::{Difference, LegStatus, MirrorOrder, MirrorStatus, part_name};
pub use open_timeouts::{Aside, OpenTimeouts, STUCK_MAX, Wanted};
#[cfg(unix)]
pub use socket::{OthersStep, bind as bind_socket, step_of_others};
#[cfg(unix)]
pub use socket::{sockets_in, unfinished_in};
pub use stats::{
    ConnectionStats, CoreStats, ErrorStats, HostStats, IoStats, Latency, NamespaceStats, Stats,
    SubsystemStats, Waits,
};
pub use status::{
    AnaStatus, BudgetStatus, ControllerStatus, NamespaceStatus, Status, SubsystemStatus,
};
