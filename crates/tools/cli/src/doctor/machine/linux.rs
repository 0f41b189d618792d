//! Checks for Linux only: kernel features for sharing and attaching, and process limits.

use super::super::finding::{Finding, split};
use crate::attach;
use farblock_attach::fuse::MountError;
use farblock_reactor::{Config, EngineKind, Polling, Reactor};
use rustix::process::{Resource, Rlimit, getrlimit};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Enough descriptors: each connection needs one.
const ENOUGH_DESCRIPTORS: u64 = 4096;
/// Enough locked memory, against which registered memory counts.
const ENOUGH_LOCKED_BYTES: u64 = 64 << 10;
const IO_URING_DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

pub(super) fn examine() -> Vec<Finding> {
    let disabled = std::fs::read_to_string(IO_URING_DISABLED).unwrap_or_default();
    let ring = Reactor::new(&Config {
        engine: EngineKind::Uring,
        polling: Polling::default(),
        ..Config::default()
    });
    let governor = std::fs::read_to_string(GOVERNOR).unwrap_or_default();
    let mut findings = vec![
        io_uring(&ring.map(drop), disabled.trim()),
        locked_memory(&getrlimit(Resource::Memlock)),
        descriptors(&getrlimit(Resource::Nofile)),
    ];
    findings.push(Finding::ok("attach", attach::choice()));
    findings.extend(fuse(&farblock_attach::fuse::available()));
    findings.extend(drivers(&Places { modules: "/sys/module".as_ref(), devices: "/dev".as_ref() }));
    findings.extend(governed(governor.trim()));
    findings
}

/// Whether io_uring, the fast event loop, works.
fn io_uring(ring: &io::Result<()>, disabled: &str) -> Finding {
    const CHECK: &str = "io_uring";
    let Err(error) = ring else { return Finding::ok(CHECK, "io_uring works") };
    let what = format!("{}: the slower event loop is used", crate::error::os(error));
    let advice = match (error.kind(), disabled) {
        (ErrorKind::OutOfMemory, _) => {
            "raise the memory that may be locked: `ulimit -l`, or LimitMEMLOCK= in the unit"
        }
        (ErrorKind::PermissionDenied, "1") => {
            "run `sysctl kernel.io_uring_disabled=0` as root, or add this user to the group that \
             kernel.io_uring_group names"
        }
        (ErrorKind::PermissionDenied, "2") => {
            "run `sysctl kernel.io_uring_disabled=0` as root: nobody may use it now"
        }
        (ErrorKind::PermissionDenied, _) => {
            "let the container have the system calls io_uring_setup, io_uring_enter and \
             io_uring_register (docker run --security-opt seccomp=FILE)"
        }
        _ => "run Linux 6.1 or later, if it is to be as fast as it can",
    };
    Finding::hint(CHECK, what, advice)
}

fn locked_memory(limit: &Rlimit) -> Finding {
    const CHECK: &str = "memlock";
    match limit.current {
        None => Finding::ok(CHECK, "this user may lock as much memory as there is"),
        Some(bytes) if bytes < ENOUGH_LOCKED_BYTES => Finding::hint(
            CHECK,
            format!(
                "this user may lock {bytes} bytes of memory: what registers some may be refused"
            ),
            "raise that to 64 KiB or more: `ulimit -l`, or LimitMEMLOCK= in the unit",
        ),
        Some(bytes) => Finding::ok(
            CHECK,
            format!(
                "this user may lock {} of memory; what serves an attached disk keeps itself in \
                 memory only if it may raise that",
                farblock_block::size::Size(bytes)
            ),
        ),
    }
}

fn descriptors(limit: &Rlimit) -> Finding {
    const CHECK: &str = "descriptors";
    match limit.maximum {
        None => Finding::ok(CHECK, "a process may have as many descriptors open as it likes"),
        Some(count) if count < ENOUGH_DESCRIPTORS => Finding::hint(
            CHECK,
            format!("a process may have {count} descriptors open, and each connection takes one"),
            "raise that for a target with many hosts: `ulimit -Hn`, or LimitNOFILE= in the unit",
        ),
        Some(count) => Finding::ok(CHECK, format!("a process may have {count} descriptors open")),
    }
}

/// Whether disks can be attached by FUSE.
fn fuse(available: &Result<(), MountError>) -> Option<Finding> {
    let (what, advice) = split(&available.as_ref().err()?.to_string());
    Some(Finding::hint("fuse", what, advice))
}

/// Where the kernel lists its modules and devices.
struct Places<'a> {
    modules: &'a Path,
    devices: &'a Path,
}

/// Findings about the kernel drivers that attach disks.
fn drivers(places: &Places) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_loaded = |module: &str| places.modules.join(module).exists();
    let control = places.devices.join("ublk-control");
    if !is_loaded("ublk_drv") && !control.exists() {
        findings.push(Finding::hint(
            "modules",
            "the kernel's ublk driver is not loaded, the fastest way to attach",
            "run `modprobe ublk_drv` as root (Linux 6.5 or later has it)",
        ));
    } else if let Err(error) = std::fs::File::open(&control) {
        findings.push(Finding::hint(
            "ublk",
            format!("{} cannot be opened: {}", control.display(), crate::error::os(&error)),
            "run attach as root, or give this user the device",
        ));
    }
    if !is_loaded("nvme_tcp") && !places.devices.join("nvme-fabrics").exists() {
        findings.push(Finding::hint(
            "modules",
            "the kernel's own NVMe/TCP host is not loaded (attach --as nvme, nvme-cli)",
            "run `modprobe nvme-tcp` as root, if you mean to use it",
        ));
    }
    findings
}

fn governed(governor: &str) -> Option<Finding> {
    (governor == "powersave").then(|| {
        Finding::hint(
            "speed",
            "the processors save power, and take their time to wake up",
            "run `cpupower frequency-set --governor performance` as root, if latency matters",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::*;

    #[test]
    fn io_uring_that_is_forbidden_has_its_reason() {
        let denied = || Err(io::Error::new(ErrorKind::PermissionDenied, "io_uring is forbidden"));
        let advice = |disabled: &str| io_uring(&denied(), disabled).advice.expect("some");
        assert!(advice("2").contains("kernel.io_uring_disabled=0"));
        assert!(advice("1").contains("kernel.io_uring_group"));
        assert!(advice("0").contains("container"));
        let full = Err(io::Error::new(ErrorKind::OutOfMemory, "no memory"));
        assert!(io_uring(&full, "0").advice.expect("some").contains("LimitMEMLOCK"));
        assert_eq!(io_uring(&Ok(()), "0").verdict, Verdict::Ok);
    }

    #[test]
    fn drivers_that_are_missing_have_the_command_that_loads_them() {
        let kernel = tempfile::tempdir().expect("a folder");
        let (modules, devices) = (kernel.path().join("module"), kernel.path().join("dev"));
        let missing = || {
            let findings = drivers(&Places { modules: &modules, devices: &devices });
            assert!(findings.iter().all(|one| one.verdict == Verdict::Hint), "{findings:?}");
            findings.into_iter().map(|one| (one.check, one.advice.expect("some"))).collect()
        };
        let make = |path: &Path| std::fs::create_dir_all(path).expect("a folder");
        let all: Vec<(&str, String)> = missing();
        assert_eq!((all[0].0, all[1].0, all.len()), ("modules", "modules", 2), "{all:?}");
        assert!(all[0].1.contains("`modprobe ublk_drv`"), "{all:?}");
        assert!(all[1].1.contains("`modprobe nvme-tcp`"), "{all:?}");
        // A loaded driver, in a container without its device node.
        make(&modules.join("ublk_drv"));
        make(&modules.join("nvme_tcp"));
        let all = missing();
        assert!(all.len() == 1 && all[0].0 == "ublk", "{all:?}");
        make(&devices.join("ublk-control"));
        assert_eq!(missing(), []);
        // Built-in drivers show only their device nodes.
        std::fs::remove_dir_all(&modules).expect("ours");
        make(&devices.join("nvme-fabrics"));
        assert_eq!(missing(), []);
    }

    #[test]
    fn fuse_that_is_missing_has_the_command_that_loads_it() {
        assert_eq!(fuse(&Ok(())), None);
        for (error, what, advice) in [
            (MountError::NoDevice, "/dev/fuse does not exist", "modprobe fuse"),
            (MountError::DeviceDenied, "may not open", "chmod 666"),
            (MountError::NoHelper, "fusermount3", "install the package fuse3"),
        ] {
            let found = fuse(&Err(error)).expect("a hint");
            assert_eq!((found.check, found.verdict), ("fuse", Verdict::Hint), "{found:?}");
            assert!(found.what.contains(what), "{found:?}");
            assert!(found.advice.as_ref().is_some_and(|it| it.contains(advice)), "{found:?}");
        }
    }

    #[test]
    fn limits_that_are_small_are_hints() {
        let limit = |count| Rlimit { current: Some(count), maximum: Some(count) };
        let none = Rlimit { current: None, maximum: None };
        assert_eq!(descriptors(&limit(1024)).verdict, Verdict::Hint);
        assert_eq!(descriptors(&limit(1 << 20)).verdict, Verdict::Ok);
        assert_eq!(descriptors(&none).verdict, Verdict::Ok);
        assert_eq!(locked_memory(&limit(0)).verdict, Verdict::Hint);
        assert_eq!(locked_memory(&limit(8 << 20)).verdict, Verdict::Ok);
        assert_eq!(locked_memory(&none).verdict, Verdict::Ok);
        assert!(governed("powersave").is_some() && governed("").is_none());
    }
}
