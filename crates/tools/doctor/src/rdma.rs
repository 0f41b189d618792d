//! This machine's RDMA devices: the libraries, the ports, their addresses, and locked memory.

use super::finding::Finding;
use std::path::{Path, PathBuf};

/// The locked memory that a queue of a host needs, in bytes. A target needs as much for each core
/// and device.
const QUEUE_LOCKED_BYTES: u64 = 16 << 20;
const DEVICE: &str = "RDMA device";

/// The system's reports about RDMA.
pub(super) struct System<'a> {
    /// The folder of the devices: `/sys/class/infiniband`.
    pub(super) devices: &'a Path,
    /// Whether the libraries can be used; the error is the reason why they cannot.
    pub(super) library: Result<(), String>,
    /// The limit of locked memory in bytes; `None` without a limit.
    pub(super) locked_bytes: Option<u64>,
}

/// A port of a device.
struct Port {
    /// The device and port, for example `mlx5_0/1`.
    name: String,
    folder: PathBuf,
}

impl Port {
    fn reads(&self, file: &str) -> String {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.trim().to_owned()
    }

    fn is_active(&self) -> bool {
        self.reads("state").ends_with("ACTIVE")
    }

    /// The types of the port's GIDs, without empty entries.
    fn gid_types(&self) -> Vec<String> {
        let entries = entries(&self.folder.join("gid_attrs/types"));
        let text = |path: PathBuf| std::fs::read_to_string(path).ok();
        let types = entries.into_iter().filter_map(text).map(|text| text.trim().to_owned());
        types.filter(|text| !text.is_empty()).collect()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut all: Vec<_> = all.map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn ports(devices: &Path) -> Vec<Port> {
    let folders = entries(devices).into_iter().flat_map(|device| {
        let name_of = name(&device);
        entries(&device.join("ports")).into_iter().map(move |port| (name_of.clone(), port))
    });
    let port = |(device, folder): (String, PathBuf)| Port {
        name: format!("{device}/{}", name(&folder)),
        folder,
    };
    folders.map(port).collect()
}

/// Whether the machine has an RDMA device.
pub(super) fn has_device(devices: &Path) -> bool {
    !entries(devices).is_empty()
}

/// Returns the findings about this machine's RDMA; the last one is a problem if RDMA cannot work.
pub(super) fn examine(system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !has_device(system.devices) {
        return vec![Finding::problem(
            DEVICE,
            "this machine has no RDMA device",
            "load the driver of the network card (for ConnectX `modprobe mlx5_ib`), or make a \
             software device: `modprobe rdma_rxe`, then `rdma link add rxe0 type rxe netdev DEV`; \
             or connect over TCP, with nvme+tcp:// in the URL",
        )];
    }
    if let Err(reason) = &system.library {
        return vec![Finding::problem(
            "RDMA library",
            reason.as_str(),
            "install the packages libibverbs1, ibverbs-providers and librdmacm1 (rdma-core), and \
             run `modprobe -a rdma_ucm ib_uverbs` as root",
        )];
    }
    let ports = ports(system.devices);
    let active: Vec<_> = ports.iter().filter(|port| port.is_active()).collect();
    if active.is_empty() {
        let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        return vec![Finding::problem(
            DEVICE,
            format!("no port of an RDMA device is active: {}", names.join(", ")),
            "connect the cable, and run `ip link set DEV up` for the port's network interface \
             (`rdma link` names it)",
        )];
    }
    let names: Vec<_> = active.iter().map(|port| port.name.as_str()).collect();
    findings.push(Finding::ok(DEVICE, format!("active ports: {}", names.join(", "))));
    findings.extend(active.iter().filter_map(|port| gid(port)));
    findings.extend(locked(system.locked_bytes));
    findings
}

/// Returns a finding if a port has no address, or only addresses of RoCE v1.
fn gid(port: &Port) -> Option<Finding> {
    const CHECK: &str = "GID type";
    if port.reads("link_layer") == "InfiniBand" {
        return None;
    }
    let types = port.gid_types();
    if types.is_empty() {
        return Some(Finding::problem(
            CHECK,
            format!("the port {} has no address", port.name),
            "give the port's network interface an IP address: `ip address add ADDR/24 dev DEV` \
             (`rdma link` names the interface)",
        ));
    }
    (!types.iter().any(|text| text == "RoCE v2")).then(|| {
        Finding::problem(
            CHECK,
            format!("the port {} has only addresses of type {}", port.name, types[0]),
            "use RoCE v2 at both ends, since RoCE v1 does not pass routers: run `cma_roce_mode -d \
             DEVICE -p 1 -m 2` (package rdmacm-utils), and check the card's settings",
        )
    })
}

/// Returns a problem if a queue needs more locked memory than this user may have.
fn locked(limit_bytes: Option<u64>) -> Option<Finding> {
    let bytes = limit_bytes.filter(|bytes| *bytes < QUEUE_LOCKED_BYTES)?;
    Some(Finding::problem(
        "memlock",
        format!(
            "this user may lock {} of memory, and each queue over RDMA needs {}",
            farblock_block::size::Size(bytes),
            farblock_block::size::Size(QUEUE_LOCKED_BYTES)
        ),
        "raise the limit of locked memory: `ulimit -l unlimited`, LimitMEMLOCK=infinity in the \
         unit, or memlock in /etc/security/limits.conf",
    ))
}

/// Returns the failed step and advice for a failed connection over RDMA. `sentence` is its error.
pub(super) fn advice(sentence: &str) -> (&'static str, &'static str) {
    const REJECTED: &[(&str, &str)] = &[
        (
            "no RDMA resources",
            "disconnect other hosts, raise the target's limits, or ask for fewer \
          queues",
        ),
        ("HSQSIZE", "use a smaller --iodepth: the target accepts no queue of this size"),
        ("HRQSIZE", "use a smaller --iodepth: the target accepts no queue of this size"),
        ("IRD", "the target's card answers no RDMA READs: check its settings and firmware"),
        ("ORD", "the target's card starts no RDMA READs: check its settings and firmware"),
        (
            "private data",
            "the peer does not understand NVMe/RDMA connection requests: correct the \
          port",
        ),
        ("RECFMT", "the peer does not understand NVMe/RDMA connection requests: correct the port"),
        ("QID", "update the target: it refuses the number of a queue"),
    ];
    const OTHERS: &[(&str, &str)] = &[
        (
            "rdma link",
            "use an address that an RDMA device reaches: `rdma link` lists the devices, \
          and `ip route get ADDRESS` shows the interface",
        ),
        (
            "ulimit -l",
            "raise the limit of locked memory: `ulimit -l unlimited`, or \
          LimitMEMLOCK=infinity in the unit",
        ),
        ("reason 28", "correct the port: the peer does not serve NVMe/RDMA there"),
        ("queue depth", "use this --iodepth"),
        ("neither digests nor TLS", "omit the options of digests and TLS, or use TCP"),
    ];
    let is_rejection = sentence.contains("rejected");
    let known = if is_rejection { REJECTED } else { OTHERS };
    let found = known.iter().chain(OTHERS).find(|(part, _)| sentence.contains(part));
    let advice = found.map_or("check the target's log, and the devices at both ends", |it| it.1);
    ("connection", advice)
}

/// The folder of this machine's RDMA devices. Only Linux has RDMA.
pub(super) const DEVICES: &str = "/sys/class/infiniband";

/// Returns the findings about this machine's RDMA.
pub(super) fn here() -> Vec<Finding> {
    examine(&System {
        devices: Path::new(DEVICES),
        library: farblock_verbs::Provider::system().map(drop).map_err(|error| error.to_string()),
        locked_bytes: locked_limit(),
    })
}

/// The limit of locked memory in bytes; `None` if this process may lock any amount.
#[cfg(target_os = "linux")]
fn locked_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    // The kernel does not apply the limit to a process with CAP_IPC_LOCK.
    let may_lock_any =
        capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !may_lock_any)
}

#[cfg(not(target_os = "linux"))]
fn locked_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use farblock_wire::rdma::RejectStatus;

    /// A machine with one port.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(state: &str, gid_type: &str) -> Self {
            let machine = Self(tempfile::tempdir().expect("a temporary folder is created"));
            machine.write("state", state);
            machine.write("link_layer", "Ethernet\n");
            machine.write("gid_attrs/types/0", gid_type);
            machine.write("gid_attrs/types/1", "");
            machine
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join("mlx5_0/ports/1").join(file);
            std::fs::create_dir_all(path.parent().expect("the path has a folder"))
                .expect("the folder is created");
            std::fs::write(path, text).expect("the file is written");
        }

        fn examine(&self, library: Result<(), String>, locked_bytes: Option<u64>) -> Vec<Finding> {
            examine(&System { devices: self.0.path(), library, locked_bytes })
        }
    }

    fn expect_problem(findings: &[Finding], check: &str, what: &str, advice: &str) {
        let last = findings.last().expect("the report has a finding");
        assert_eq!((last.check, last.verdict), (check, Verdict::Problem), "{findings:?}");
        assert!(last.what.contains(what), "{findings:?}");
        assert!(last.advice.as_ref().is_some_and(|it| it.contains(advice)), "{findings:?}");
    }

    #[test]
    fn doctor_reports_each_missing_part_of_rdma() {
        const ACTIVE: &str = "4: ACTIVE\n";
        const V2: &str = "RoCE v2\n";
        let empty = tempfile::tempdir().expect("a temporary folder is created");
        let none = System { devices: empty.path(), library: Ok(()), locked_bytes: None };
        expect_problem(&examine(&none), "RDMA device", "no RDMA device", "rdma_rxe");
        let whole = Machine::new(ACTIVE, V2);
        let missing = whole.examine(Err("libibverbs.so.1 is absent".to_owned()), None);
        expect_problem(&missing, "RDMA library", "libibverbs", "rdma-core");
        let down = Machine::new("1: DOWN\n", V2).examine(Ok(()), None);
        expect_problem(&down, "RDMA device", "mlx5_0/1", "ip link set");
        let old = Machine::new(ACTIVE, "IB/RoCE v1\n").examine(Ok(()), None);
        expect_problem(&old, "GID type", "IB/RoCE v1", "cma_roce_mode");
        let bare = Machine::new(ACTIVE, "").examine(Ok(()), None);
        expect_problem(&bare, "GID type", "no address", "ip address add");
        let small = whole.examine(Ok(()), Some(8 << 20));
        expect_problem(&small, "memlock", "8 MiB", "LimitMEMLOCK=infinity");
        for limit in [None, Some(64 << 20)] {
            let findings = whole.examine(Ok(()), limit);
            assert!(findings.iter().all(|one| one.verdict == Verdict::Ok), "{findings:?}");
        }
    }

    #[test]
    fn each_reject_reason_of_the_specification_has_advice() {
        let general = advice("").1;
        for code in 1..=8 {
            let reason = RejectStatus(code);
            let sentence = format!("the controller rejected the connection: {reason}");
            assert_ne!(advice(&sentence).1, general, "{sentence}");
        }
        assert!(advice("ibv_reg_mr failed: raise it (`ulimit -l`)").1.contains("LimitMEMLOCK"));
    }
}
