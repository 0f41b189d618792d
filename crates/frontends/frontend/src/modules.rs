//! Loads kernel modules that the kernel does not load on demand.

use std::path::Path;
use std::process::{Command, Stdio};

/// Loads a module if its device file is missing and this process is root. If loading fails, the
/// caller's open of the device fails.
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
