//! This machine's ability to share and attach disks.

#[cfg(target_os = "linux")]
mod linux;

use super::finding::Finding;
use farblock_host::HostIdentity;
use farblock_host::identity::Source;

/// Default UUIDs that mainboard makers forgot to replace. Host names made from them are not unique.
const NOBODYS: &[&str] = &[
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "00020003-0004-0005-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

pub(super) fn examine() -> Vec<Finding> {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "nothing is added"))]
    let mut findings = vec![version(), identity(HostIdentity::and_source())];
    #[cfg(target_os = "linux")]
    findings.extend(linux::examine());
    #[cfg(target_os = "linux")]
    if super::rdma::has_device(super::rdma::DEVICES.as_ref()) {
        findings.extend(super::rdma::here());
    }
    findings
}

fn version() -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    #[cfg(unix)]
    let system = rustix::system::uname();
    #[cfg(unix)]
    let system = {
        let (name, release) = (system.sysname(), system.release());
        format!(" on {} {}", name.to_string_lossy(), release.to_string_lossy())
    };
    #[cfg(not(unix))]
    let system = "";
    Finding::ok("version", format!("farblock {own}{system}"))
}

/// Checks that this host sends a unique identity to targets.
fn identity((host, source): &(HostIdentity, Source)) -> Finding {
    const CHECK: &str = "identity";
    let HostIdentity { nqn, id } = host;
    let id = id.to_string();
    if NOBODYS.iter().any(|uuid| nqn.ends_with(uuid) || id == *uuid) {
        return Finding::problem(
            CHECK,
            format!("this host's name is {nqn}, as on every machine with this mainboard"),
            "give this host a unique name: write a UUID from `uuidgen` to /etc/nvme/hostid, and \
             `nqn.2014-08.org.nvmexpress:uuid:UUID` to /etc/nvme/hostnqn",
        );
    }
    match source {
        Source::System(folder) | Source::User(folder) => {
            Finding::ok(CHECK, format!("this host's name is {nqn}, from {}", folder.display()))
        }
        Source::Process => Finding::hint(
            CHECK,
            "each farblock process uses a new host name, because it cannot store a name",
            "give this user a writable home directory, or use --hostnqn and --hostid",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_host_identifier_that_many_machines_share_is_a_problem() {
        let id: farblock_host::HostId =
            "03000200-0400-0500-0006-000700080009".parse().expect("the UUID is valid");
        let host = HostIdentity { nqn: id.to_nqn(), id };
        let found = identity(&(host, Source::System("/etc/nvme".into())));
        assert_eq!(found.verdict, Verdict::Problem, "{found:?}");
        let host = HostIdentity { nqn: "nqn.2026-11.org.example:a".to_owned(), ..host_of(1) };
        let found = identity(&(host.clone(), Source::System("/etc/nvme".into())));
        assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
        assert_eq!(identity(&(host, Source::Process)).verdict, Verdict::Hint);
    }

    fn host_of(byte: u8) -> HostIdentity {
        let id = farblock_host::HostId([byte; 16]);
        HostIdentity { nqn: id.to_nqn(), id }
    }
}
