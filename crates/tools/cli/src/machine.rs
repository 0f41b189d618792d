//! Identifies this machine, for names that survive restarts and differ between machines.

/// This machine's identifier, or its name if it has none.
pub(crate) fn id() -> String {
    system_id().unwrap_or_else(name)
}

#[cfg(not(windows))]
fn system_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"].iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    })
}

#[cfg(windows)]
fn system_id() -> Option<String> {
    let key = windows_registry::LOCAL_MACHINE.open(r"SOFTWARE\Microsoft\Cryptography").ok()?;
    key.get_string("MachineGuid").ok().filter(|id| !id.is_empty())
}

#[cfg(unix)]
fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".to_owned())
}

/// The size of the machine's memory, if the system tells it.
#[cfg(target_os = "linux")]
pub(crate) fn memory_bytes() -> Option<u64> {
    let found = rustix::system::sysinfo();
    (found.totalram as u64).checked_mul(u64::from(found.mem_unit))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_bytes() -> Option<u64> {
    None
}
