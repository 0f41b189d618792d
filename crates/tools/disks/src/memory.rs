//! The memory for RAM disks.

use farblock_backends::Spec;
use farblock_block::size::Size;

/// Returns a warning if RAM disks are larger than the machine's memory.
#[must_use]
pub fn memory_doubt(specs: &[&Spec]) -> Option<String> {
    let wanted: u64 = specs.iter().map(|spec| memory_bytes(spec)).sum();
    let there = allowed_bytes()?;
    (wanted > there).then(|| {
        format!(
            "RAM disks of {} are more than the {} of memory of this machine: writes to them can \
             exhaust it",
            Size(wanted),
            Size(there >> 20 << 20)
        )
    })
}

fn memory_bytes(spec: &Spec) -> u64 {
    match spec {
        Spec::Mem { bytes } => *bytes,
        spec => spec.parts().iter().map(memory_bytes).sum(),
    }
}

/// Returns the memory that this process may use, in bytes: the machine's memory, or less if a
/// control group has a lower limit. `None` if the system does not report the memory.
#[cfg(target_os = "linux")]
fn allowed_bytes() -> Option<u64> {
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
fn allowed_bytes() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_disks_larger_than_the_memory_give_a_warning() {
        if allowed_bytes().is_some() {
            let doubt = |text| memory_doubt(&[&Spec::parse(text).unwrap()]);
            assert_eq!(doubt("mem:1MiB"), None);
            assert!(doubt("stripe:64KiB,mem:512TiB,mem:512TiB").unwrap().contains("1 PiB"));
        }
    }
}
