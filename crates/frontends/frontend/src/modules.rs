//! Modules of the kernel's that nothing loads by itself.

use std::path::Path;
use std::process::{Command, Stdio};

/// Has a module loaded if its device is missing. Whether that has helped shows when the device is
/// opened.
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
        Err(error) => tracing::debug!(module, %error, "modprobe does not run"),
    }
}
