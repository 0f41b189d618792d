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
fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".to_owned())
}

/// Returns the memory that this process may use, in bytes: the machine's memory, or less if a
/// control group has a lower limit. `None` if the system does not report the memory.
#[cfg(target_os = "linux")]
pub(crate) fn memory_bytes() -> Option<u64> {
    let found = rustix::system::sysinfo();
    let whole = (found.totalram as u64).checked_mul(u64::from(found.mem_unit))?;
    Some(group_limit().map_or(whole, |limit| whole.min(limit)))
}

/// Returns the lowest memory limit of this process's control groups (version 2), in bytes.
#[cfg(target_os = "linux")]
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &std::path::Path| {
        let file = std::path::Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        // A control group without a limit has the text "max" in this file.
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    std::path::Path::new(own).ancestors().filter_map(limit).min()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_bytes() -> Option<u64> {
    None
}
