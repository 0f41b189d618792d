//! End-to-end tests of `farblock attach`, `list` and `detach`, with targets in separate processes,
//! real file systems, and killed processes. They need root, FUSE and loop devices.
//!
//! An attachment has a server, which serves the disk, and a supervisor, which starts a successor
//! when the server dies. Some servers have a broker, a helper process with root's rights.
#![cfg(target_os = "linux")]

mod attached;
mod authenticate;
mod bad_input;
mod confined;
mod detach;
mod fuse;
mod hours;
mod hung;
mod identity;
mod iscsi;
mod keyring;
mod nbd;
mod paths;
mod people;
#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;
mod service;
mod state;
#[path = "../support/mod.rs"]
mod support;
mod vhost_user;
