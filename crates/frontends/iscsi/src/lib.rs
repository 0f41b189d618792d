//! An iSCSI target: serves a namespace as a disk of this machine to any iSCSI initiator. Windows
//! includes an initiator, so the user needs to install nothing.
//!
//! **Overview.** [`Server::start`] opens a namespace, listens on a port of 127.0.0.1, and serves
//! the namespace as logical unit 0 of one target. One thread with one reactor and one queue does
//! all the work. So an action of one session on another needs no lock. A machine's initiator
//! usually has only one session anyway.
//!
//! **Contract.** The target implements RFC 7143 with error recovery level 0 and one connection per
//! session. It supports login with both stages, header and data digests, immediate and unsolicited
//! data, several outstanding R2Ts, pings, discovery, task management and logout. When the target
//! stops, it requests logouts from its initiators.
//!
//! SCSI follows SBC-3: `scsi/opcodes.rs` lists the commands. The unit has the namespace's size,
//! block size and preferred I/O sizes. The unit is writable, supports deallocation and reports a
//! volatile cache exactly if the namespace does. Once the target has answered a write, all sessions
//! see the new data. SYNCHRONIZE CACHE makes the answered writes of all sessions durable. COMPARE
//! AND WRITE is atomic for all sessions, but not for other users of the same remote namespace.
//!
//! When the target answers an abort, the aborted commands can have no further effects. A new
//! session starts only once the operations of disconnected sessions have completed in the
//! namespace, so that no old write takes effect after a new one.
//!
//! On invalid input the target answers as the protocol requires or closes the connection. Other
//! sessions are not affected. [`limits`] bound the resources that one initiator can hold. The
//! target never times out an initiator that stops reading or writing: it may be a paused virtual
//! machine.
//!
//! **Not implemented.** Authentication (the target listens on 127.0.0.1 only, and every user of the
//! machine can reach it). Several connections per session, and error recovery beyond a new session.
//! TARGET COLD RESET, PRE-FETCH, GET LBA STATUS, PREEMPT AND ABORT, and atomic commands except
//! COMPARE AND WRITE (the namespace contract has none). Bidirectional commands, and commands longer
//! than 16 bytes. Reservations that outlive the target, saved mode pages, sense data in descriptor
//! format, ACA, and copy offload.

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
