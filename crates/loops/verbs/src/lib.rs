//! RDMA verbs: registered memory, queue pairs, and connections of RDMA devices.
//!
//! [`Verbs`] is the interface, with the names of the C interface. [`System`] implements it with the
//! system's libibverbs and librdmacm, on Linux. [`Network`] implements it in memory, for tests and
//! the simulation. Both pass the suite in `conformance` (feature `conformance`). A [`Provider`] is
//! one of the two, chosen at run time.
//!
//! **The libraries** are loaded when a program calls [`System::load`]. If they are missing, the
//! error names the packages to install.
//!
//! **Ownership.** A registration owns its [`Memory`]. When it is dropped, the device first loses
//! its access, and then the memory is freed. If the device refuses this, the memory is never freed.
//! A [`Slice`] can only name registered memory, and the device checks its key. So no request makes
//! the device write to other memory of this process, whatever happens to the registration.
//!
//! The device changes memory without the compiler's knowledge. So read a buffer only after the
//! completion of the request that fills it, and write it only while no request uses it.
//!
//! **Not implemented.** Datagrams, atomics, memory windows, immediate data, resizing of queues, and
//! asynchronous events of a device. When a connection breaks, a request fails or the connection
//! reports an event, so asynchronous events are seldom necessary. Only the last request of a shared
//! receive queue needs one.

#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod fabric;
pub mod limits;
#[cfg(target_os = "linux")]
mod linux;
mod memory;
mod provider;
mod queue;
mod request;
mod staging;
mod verbs;

pub use error::{PostError, VerbsError};
pub use fabric::{Calls, Network, Node};
#[cfg(target_os = "linux")]
pub use linux::System;
pub use memory::{Keys, Memory, Pages, Slice};
pub use provider::{
    Provider, ProviderChannel, ProviderCq, ProviderId, ProviderMr, ProviderPd, ProviderSrq,
};
pub use queue::{Arming, post_receives, receive_index};
pub use request::{
    Access, Completed, Completion, Operation, Payload, ReceiveRequest, SendRequest, Status,
};
pub use staging::{Chunk, Staging, StagingSizes};
pub use verbs::{
    CmEvent, CmEventType, ConnParam, Device, Port, QpOptions, REJECTED_BY_CONSUMER,
    REJECTED_NO_LISTENER, Source, TIMED_OUT, Verbs, Waker,
};
