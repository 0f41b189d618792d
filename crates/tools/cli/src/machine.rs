//! Identifies this machine, for names that survive restarts and differ between machines.

/// This machine's identifier, or its host name if it has no identifier.
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

/// The bytes of memory that this process can have, if the system tells: the machine's, or less
/// within a control group.
#[cfg(target_os = "linux")]
pub(crate) fn memory_bytes() -> Option<u64> {
    let found = rustix::system::sysinfo();
    let whole = (found.totalram as u64).checked_mul(u64::from(found.mem_unit))?;
    Some(group_limit().map_or(whole, |limit| whole.min(limit)))
}

/// The lowest limit of this process's control groups (version 2).
#[cfg(target_os = "linux")]
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &std::path::Path| {
        let file = std::path::Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        // Without a limit the file contains "max".
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    std::path::Path::new(own).ancestors().filter_map(limit).min()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_bytes() -> Option<u64> {
    None
}
