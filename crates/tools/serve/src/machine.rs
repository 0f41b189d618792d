//! An identifier of this machine, which survives restarts and differs between machines.

/// Returns this machine's identifier, or its host name if the system has no identifier.
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
pub(crate) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
pub(crate) fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".to_owned())
}
