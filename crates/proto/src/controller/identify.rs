//! Identify (NVMe Base Specification 2.0, "Identify command"; NVM Command Set Specification 1.0,
//! "Identify command").

use super::registry::Registry;
use crate::ids::ControllerId;
use alloc::vec::Vec;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

impl Registry {
    /// Identify: 4096 bytes for the host.
    pub(super) fn identify(&self, _id: ControllerId, _sqe: &Sqe) -> Result<Vec<u8>, Status> {
        Err(Status::INVALID_FIELD.with_dnr())
    }
}
