//! The kernel's own host, told to connect through `/dev/nvme-fabrics`.

use super::{Attached, Start, StopError};
use serde_json::Value;

const NOT_HERE: &str = "this farblock does not hand disks to the kernel's NVMe host yet: use \
                        `nvme connect`, or --as auto";

pub(super) fn start(_: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    Err(NOT_HERE.to_owned())
}

pub(super) fn clean_up(_: &Value, _: bool) -> Result<(), StopError> {
    Ok(())
}
