//! A stand-in for NBD devices on systems whose kernel has no NBD client. No value of [`Device`]
//! exists there.

use super::super::super::folder::Folder;
use super::super::{Start, StopError};
use super::PORT;
use farblock_attach::nbd::{Address, Server};
use serde_json::Value;
use std::net::Ipv4Addr;

pub(super) fn available() -> Result<(), String> {
    Err("only Linux has NBD devices".to_owned())
}

/// The server's default address.
pub(super) fn usual_address(_: &Folder) -> Address {
    Address::Tcp((Ipv4Addr::LOCALHOST, PORT).into())
}

pub(super) enum Device {}

pub(super) fn found(_: &Value) -> Option<Device> {
    None
}

impl Device {
    pub(super) fn connect(_: &Server, _: &Start<'_>, _: Option<Device>) -> Result<Device, String> {
        available().and(Err("this system has no NBD devices".to_owned()))
    }

    pub(super) fn path(&self) -> String {
        match *self {}
    }

    pub(super) fn state(&self) -> Value {
        match *self {}
    }

    pub(super) fn users(&self) -> Vec<String> {
        match *self {}
    }

    pub(super) fn resize(&self, _: u64) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn disconnect(&self) -> Result<(), StopError> {
        match *self {}
    }
}
