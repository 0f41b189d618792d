//! The NVMe/TCP and NVMe/RDMA target: subsystems and controllers, on threads with event loops.
//!
//! **Design.** [`Target::start`] binds the listeners and starts the cores: one thread per
//! processor, each with its own event loop. A connection is one queue pair, and stays on one core
//! until close.
//! Each core opens its own queue into each namespace. I/O on a core takes no lock. Connect, admin
//! commands and teardown share one [`Registry`] behind a mutex.
//!
//! **Contract.** For every input, the target answers with the status or terminate PDU that the
//! specification names, and other connections continue. Memory is bounded per connection and per
//! core ([`limits`]). The target closes a connection if its peer starts an exchange and does not
//! finish the exchange in time. A namespace completes every submitted operation, even after the
//! connection that submitted the operation has closed.
//!
//! **Changes.** Through a [`Control`], a running target adds and removes subsystems, hosts,
//! listeners and referrals. It also adds, removes, replaces, resizes and write-protects namespaces.
//! When a namespace is removed, submitted operations complete, and waiting commands fail with
//! Invalid Namespace or Format. The target closes the store of a removed namespace after the last
//! operation.
//!
//! **Not implemented.** Moving a connection to another core.
//!
//! [`Registry`]: farblock_proto::controller::Registry

mod admissions;
mod affinity;
mod authentication;
mod backings;
mod budget;
mod by_namespace;
mod by_status;
mod change_error;
mod changes;
mod claim;
mod claims;
mod config;
mod connection;
mod context;
mod control;
mod core;
mod core_states;
mod deadlines;
mod discoveries;
mod door;
mod events;
mod fence;
mod heap_trim;
mod host_keys;
mod identity;
mod in_place;
mod lifecycle;
pub mod limits;
mod losses;
mod mailbox;
mod memory;
mod meter;
mod meters;
mod notices;
mod pace;
mod permit;
mod quiet;
mod recent_addresses;
mod removal;
mod reservations;
mod route;
mod session;
mod shared;
mod shares;
mod sharing;
mod slots;
mod status;
mod store_errors;
mod target;
mod tls;
mod transport;
mod volumes;

pub use admissions::{AdmissionCounts, ByReason};
pub use budget::Budget;
pub use change_error::ChangeError;
pub use config::{Export, RdmaListeners, StartError, Subsystem, TargetConfig, TlsPolicy};
pub use control::{Batch, Control};
pub use events::{Event, Observer, Visitor};
pub use farblock_block::{LATENCY_STEPS, LatencyCounts, latency_bound_us};
pub use farblock_proto::controller::{Entrance, Transport};
pub use farblock_reactor::notices::Notices;
pub use farblock_secure::Demand;
pub use farblock_tls::limits::KEYS_PER_HOST as TLS_KEYS_PER_HOST;
pub use host_keys::HostKeys;
pub use meter::{ErrorCounts, IoCounts, WaitCounts};
pub use pace::{DEFAULT_BURST, MAX_BURST, Rate, Rates};
pub use permit::{Permit, boot_time};
pub use quiet::Quiet;
pub use removal::Removal;
pub use reservations::{ReservationStore, SharedReservations};
pub use shared::{ControllerReport, NamespaceReport, Report, SubsystemReport};
pub use shared::{CoreStats, HostStats, Stats, SubsystemStats, status_name};
pub use shares::{DEFAULT_WEIGHT, MAX_WEIGHT};
pub use sharing::Sharing;
pub use target::{THREAD_NAME_PREFIX, Target};
