//! An iSCSI target: a namespace as a disk of this machine for whoever has an iSCSI initiator, which
//! Windows does from the start, and nothing has to be installed.
//!
//! **What it is.** [`Server::start`] opens a namespace, listens on a port of 127.0.0.1, and serves
//! it as logical unit 0 of one target. One thread does it all, with one reactor and one queue: what
//! sessions do to each other then needs no lock, and a machine's initiator has one session.
//!
//! **Contract.** RFC 7143 with error recovery level 0 and one connection a session: login with both
//! stages, header and data digests, immediate and unsolicited data, several requests for data at
//! once, pings, discovery, task management, logout, and asking for a logout when it stops. SCSI as
//! a disk of SBC-3 has it: the list is in `scsi/opcodes.rs`. Units see the namespace as it is: its
//! sizes, whether it can be written and given back, and whether it has a volatile cache. A write
//! that was answered is seen by all sessions, and SYNCHRONIZE CACHE makes durable what was answered
//! to any of them. COMPARE AND WRITE is one step to all sessions; to others that use the same
//! remote namespace it is two.
//!
//! A command that was aborted has had all its effects when the abortion is answered. A session that
//! begins anew does so only when what its predecessor had handed to the namespace has ended, so
//! that no write of before comes after one of now.
//!
//! Whatever an initiator sends, it gets the protocol's answer or is closed, and no other session
//! notices. What one can make the target hold is bounded ([`limits`]). An initiator that stops to
//! read or write is left alone: it may be a virtual machine that pauses.
//!
//! **Not implemented.** Authentication (the target listens on 127.0.0.1 only; every user of the
//! machine can reach it), connections beyond the first of a session, error recovery beyond a new
//! session, TARGET COLD RESET, bidirectional commands, commands longer than 16 bytes, the atomic
//! commands but COMPARE AND WRITE (the namespace's contract has none), PRE-FETCH, GET LBA STATUS,
//! PREEMPT AND ABORT, reservations that outlive the target, saved mode pages, sense data in
//! descriptor format, ACA, and copying by the unit.

mod alone;
mod connection;
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
