//! `farblock attach`, `list` and `detach`, as a person uses them: with targets in processes of
//! their own, file systems, and whatever can be killed killed. It takes root, FUSE and loop
//! devices.
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
#[allow(dead_code, unreachable_pub, reason = "this uses a part of it")]
#[path = "../../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;
mod service;
mod state;
#[path = "../support/mod.rs"]
mod support;
mod vhost_user;
