//! A block device of the kernel's ublk driver.

use super::{Attached, Start, StopError};
use serde_json::Value;

const NOT_HERE: &str = "this farblock makes no ublk devices yet: use --as auto";

/// Whether the kernel has the driver and lets us, or why not.
pub(super) fn available() -> Result<(), String> {
    Err("ublk is not there".to_owned())
}

pub(super) fn start(_: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    Err(NOT_HERE.to_owned())
}

pub(super) fn clean_up(_: &Value, _: bool) -> Result<(), StopError> {
    Ok(())
}
