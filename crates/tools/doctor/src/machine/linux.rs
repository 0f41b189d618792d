//! Checks for Linux only: kernel features for sharing and attaching disks, and process limits.

use super::super::finding::{Finding, split};
use crate::attach;
use farblock_attach::fuse::MountError;
use farblock_reactor::{Config, EngineKind, Polling, Reactor};
use rustix::process::{Resource, Rlimit, getrlimit};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The limit of open files below which `farblock doctor` warns. Each connection needs one file
/// descriptor.
const ENOUGH_DESCRIPTORS: u64 = 4096;
/// The limit of locked memory, in bytes, below which `farblock doctor` warns. The limit also covers
/// the buffers that are registered with io_uring.
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

/// Checks whether io_uring works, which the fast event loop needs.
fn io_uring(ring: &io::Result<()>, disabled: &str) -> Finding {
    const CHECK: &str = "io_uring";
    let Err(error) = ring else { return Finding::ok(CHECK, "io_uring works") };
    let what = format!("{}: farblock uses the slower event loop", crate::error::os(error));
    let advice = match (error.kind(), disabled) {
        (ErrorKind::OutOfMemory, _) => {
            "raise the limit of locked memory: `ulimit -l`, or LimitMEMLOCK= in the unit"
        }
        (ErrorKind::PermissionDenied, "1") => {
            "run `sysctl kernel.io_uring_disabled=0` as root, or add this user to the group that \
             kernel.io_uring_group names"
        }
        (ErrorKind::PermissionDenied, "2") => {
            "run `sysctl kernel.io_uring_disabled=0` as root: now no process may use io_uring"
        }
        (ErrorKind::PermissionDenied, _) => {
            "allow the container the system calls io_uring_setup, io_uring_enter and \
             io_uring_register (docker run --security-opt seccomp=FILE)"
        }
        _ => "use Linux 6.1 or later for the fast event loop",
    };
    Finding::hint(CHECK, what, advice)
}

fn locked_memory(limit: &Rlimit) -> Finding {
    const CHECK: &str = "memlock";
    match limit.current {
        None => Finding::ok(CHECK, "this user may lock any amount of memory"),
        Some(bytes) if bytes < ENOUGH_LOCKED_BYTES => Finding::hint(
            CHECK,
            format!(
                "this user may lock only {bytes} bytes of memory, so the kernel may refuse to \
                 register buffers"
            ),
            "raise this limit to 64 KiB or more: `ulimit -l`, or LimitMEMLOCK= in the unit",
        ),
        Some(bytes) => Finding::ok(
            CHECK,
            format!(
                "this user may lock {} of memory; the server of an attached disk locks itself in \
                 memory only if it can raise this limit",
                farblock_block::size::Size(bytes)
            ),
        ),
    }
}

fn descriptors(limit: &Rlimit) -> Finding {
    const CHECK: &str = "descriptors";
    match limit.maximum {
        None => Finding::ok(CHECK, "a process may open any number of descriptors"),
        Some(count) if count < ENOUGH_DESCRIPTORS => Finding::hint(
            CHECK,
            format!("a process may open {count} descriptors, and each connection needs one"),
            "raise this limit for a target with many hosts: `ulimit -Hn`, or LimitNOFILE= in the \
             unit",
        ),
        Some(count) => Finding::ok(CHECK, format!("a process may open {count} descriptors")),
    }
}

/// Checks whether farblock can attach disks with FUSE.
fn fuse(available: &Result<(), MountError>) -> Option<Finding> {
    let (what, advice) = split(&available.as_ref().err()?.to_string());
    Some(Finding::hint("fuse", what, advice))
}

/// The folders that contain the kernel's modules and devices.
struct Places<'a> {
    modules: &'a Path,
    devices: &'a Path,
}

/// Returns findings about the kernel drivers that can attach disks.
fn drivers(places: &Places) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_loaded = |module: &str| places.modules.join(module).exists();
    let control = places.devices.join("ublk-control");
    if !is_loaded("ublk_drv") && !control.exists() {
        findings.push(Finding::hint(
            "modules",
            "the kernel's ublk driver, the fastest way to attach a disk, is not loaded",
            "run `modprobe ublk_drv` as root (Linux 6.5 or later has it)",
        ));
    } else if let Err(error) = std::fs::File::open(&control) {
        findings.push(Finding::hint(
            "ublk",
            format!("{} cannot be opened: {}", control.display(), crate::error::os(&error)),
            "run `farblock attach` as root, or give this user access to the device",
        ));
    }
    if !is_loaded("nvme_tcp") && !places.devices.join("nvme-fabrics").exists() {
        findings.push(Finding::hint(
            "modules",
            "the kernel's NVMe/TCP host driver, for attach --as nvme and nvme-cli, is not loaded",
            "if you want to use this driver, run `modprobe nvme-tcp` as root",
        ));
    }
    findings
}

fn governed(governor: &str) -> Option<Finding> {
    (governor == "powersave").then(|| {
        Finding::hint(
            "speed",
            "the processors save power (governor powersave), and wake up slowly",
            "if latency matters, run `cpupower frequency-set --governor performance` as root",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Verdict;
    use super::*;

    #[test]
    fn doctor_explains_why_io_uring_is_unavailable() {
        let denied = || Err(io::Error::new(ErrorKind::PermissionDenied, "io_uring is forbidden"));
        let advice =
            |disabled: &str| io_uring(&denied(), disabled).advice.expect("the finding has advice");
        assert!(advice("2").contains("kernel.io_uring_disabled=0"));
        assert!(advice("1").contains("kernel.io_uring_group"));
        assert!(advice("0").contains("container"));
        let full = Err(io::Error::new(ErrorKind::OutOfMemory, "no memory"));
        assert!(
            io_uring(&full, "0").advice.expect("the finding has advice").contains("LimitMEMLOCK")
        );
        assert_eq!(io_uring(&Ok(()), "0").verdict, Verdict::Ok);
    }

    #[test]
    fn doctor_names_the_command_that_loads_a_missing_driver() {
        let kernel = tempfile::tempdir().expect("a temporary folder is created");
        let (modules, devices) = (kernel.path().join("module"), kernel.path().join("dev"));
        let missing = || {
            let findings = drivers(&Places { modules: &modules, devices: &devices });
            assert!(findings.iter().all(|one| one.verdict == Verdict::Hint), "{findings:?}");
            findings
                .into_iter()
                .map(|one| (one.check, one.advice.expect("the finding has advice")))
                .collect()
        };
        let make = |path: &Path| std::fs::create_dir_all(path).expect("the folder is created");
        let all: Vec<(&str, String)> = missing();
        assert_eq!((all[0].0, all[1].0, all.len()), ("modules", "modules", 2), "{all:?}");
        assert!(all[0].1.contains("`modprobe ublk_drv`"), "{all:?}");
        assert!(all[1].1.contains("`modprobe nvme-tcp`"), "{all:?}");
        // The drivers are loaded, but the container lacks a device node.
        make(&modules.join("ublk_drv"));
        make(&modules.join("nvme_tcp"));
        let all = missing();
        assert!(all.len() == 1 && all[0].0 == "ublk", "{all:?}");
        make(&devices.join("ublk-control"));
        assert_eq!(missing(), []);
        // Built-in drivers show only their device nodes.
        std::fs::remove_dir_all(&modules).expect("the folder is removed");
        make(&devices.join("nvme-fabrics"));
        assert_eq!(missing(), []);
    }

    #[test]
    fn doctor_names_the_remedy_if_fuse_is_unavailable() {
        assert_eq!(fuse(&Ok(())), None);
        for (error, what, advice) in [
            (MountError::NoDevice, "/dev/fuse does not exist", "modprobe fuse"),
            (MountError::DeviceDenied, "may not open", "chmod 666"),
            (MountError::NoHelper, "fusermount3", "install the package fuse3"),
        ] {
            let found = fuse(&Err(error)).expect("the error leads to a hint");
            assert_eq!((found.check, found.verdict), ("fuse", Verdict::Hint), "{found:?}");
            assert!(found.what.contains(what), "{found:?}");
            assert!(found.advice.as_ref().is_some_and(|it| it.contains(advice)), "{found:?}");
        }
    }

    #[test]
    fn small_resource_limits_are_hints() {
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
