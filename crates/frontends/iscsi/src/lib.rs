//! An iSCSI target: serves a namespace as a disk of this machine to any iSCSI initiator. Windows
//! has an initiator built in.
//!
//! **Overview.** [`Server::start`] opens a namespace, listens on a port of 127.0.0.1, and serves
//! the namespace as logical unit 0 of one target. One thread with one event loop and one queue does
//! all the work. So a session can affect another without a lock. One thread is enough, because a
//! machine's initiator usually has one session.
//!
//! **Contract.** The target implements RFC 7143 with error recovery level 0 and one connection per
//! session. It supports logins with both stages, header and data digests, immediate and unsolicited
//! data, several outstanding R2Ts, pings, discovery, task management and logout. When the target
//! stops, it requests logouts from its initiators.
//!
//! SCSI follows SBC-3: `scsi/opcodes.rs` lists the commands. The unit has the namespace's size,
//! block size and preferred I/O sizes. The unit has the same abilities as the namespace: writes,
//! deallocation and a volatile cache. Once the target has answered a write, all sessions see the
//! new data. SYNCHRONIZE CACHE makes the answered writes of all sessions durable. COMPARE AND WRITE
//! is atomic for all sessions, but not for other users of the same remote namespace.
//!
//! After the target has answered an abort, the aborted commands have no further effects. A new
//! session starts only once the operations of disconnected sessions have completed in the
//! namespace. So no old write takes effect after a new one.
//!
//! On invalid input the target answers as the protocol requires or closes the connection. Other
//! sessions do not notice. [`limits`] bound the resources that one initiator can hold. The target
//! never times out an initiator that stops reading or writing: it may be a paused virtual machine.
//!
//! **Not implemented.** Authentication (the target listens on 127.0.0.1 only, and every user of the
//! machine can reach it). Several connections per session, and error recovery beyond a new session.
//! TARGET COLD RESET, PRE-FETCH, GET LBA STATUS, PREEMPT AND ABORT, and atomic commands except
//! COMPARE AND WRITE (a namespace has none). Bidirectional commands, and commands longer than 16
//! bytes. Reservations that outlive the target, saved mode pages, sense data in descriptor format,
//! ACA, and copy offload.

mod alone;
mod connection;
mod context;
mod core;
pub mod initiator;
pub mod limits;
mod login;
mod scsi;
mod server;
mod shared;
mod task;
mod text;
mod unit;
mod wire;

pub use server::{Config, Server, StartError, THREAD_NAME_PREFIX};
