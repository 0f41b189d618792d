//! Loads kernel modules that are not loaded on demand.

use std::path::Path;
use std::process::{Command, Stdio};

/// Loads a module if its device is missing. The caller's open of the device shows whether that
/// succeeded.
pub fn load_for(device: &Path, module: &str) {
    if device.exists() || !rustix::process::geteuid().is_root() {
        return;
    }
    let modprobe = Command::new("modprobe")
        .arg("-q")
        .arg(module)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match modprobe {
        Ok(status) => tracing::debug!(module, %status, "modprobe"),
        Err(error) => tracing::debug!(module, %error, "cannot run modprobe"),
    }
}
