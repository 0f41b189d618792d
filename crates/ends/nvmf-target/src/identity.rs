//! Identifiers that stay the same across restarts. Each is derived from the object that it
//! identifies.

use farblock_proto::controller::{Entrance, HostMark};
use farblock_reactor::os;
use farblock_wire::origin::ControllerOrigin;
use uuid::Uuid;

/// The identifiers of a namespace: a UUID, and the NGUID and EUI-64 derived from it.
pub(crate) struct NamespaceIdentity {
    pub(crate) uuid: [u8; 16],
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
}

/// Returns the identity of namespace `id` of `subsystem`. If `content` is a UUID, that UUID is the
/// identity. Otherwise the identity is derived from all three arguments, so that a host never
/// mistakes one disk for another.
pub(crate) fn namespace(subsystem: &str, id: u32, content: &str) -> NamespaceIdentity {
    let own = Uuid::try_parse(content).ok().filter(|uuid| !uuid.is_nil());
    let (uuid, name) = match own {
        Some(uuid) => (uuid.into_bytes(), uuid.to_string()),
        None => {
            let name = format!("{subsystem}\n{id}\n{content}");
            (Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()).into_bytes(), name)
        }
    };
    let other = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).into_bytes();
    let eui64 = other[..8].try_into().expect("eight of sixteen bytes");
    NamespaceIdentity { uuid, nguid: other, eui64 }
}

/// Returns a serial number of 20 hexadecimal digits for `subsystem`.
pub(crate) fn serial(subsystem: &str) -> String {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, subsystem.as_bytes());
    uuid.simple().to_string()[..20].to_owned()
}

/// Returns a digest of an authenticated host's name, which identifies the host in stored
/// reservations.
pub(crate) fn mark(host: &str) -> HostMark {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, host.as_bytes()).into_bytes();
    HostMark(u64::from_be_bytes(uuid[8..].try_into().expect("eight of sixteen bytes")))
}

/// Returns the origin of a target that listens on `addresses`. If a host that lost a controller
/// finds a new target process at the same origin, it knows that the old process has ended.
pub(crate) fn origin(addresses: &[Entrance]) -> ControllerOrigin {
    let boot = boot();
    let mut listeners: Vec<String> = addresses.iter().map(Entrance::to_string).collect();
    listeners.sort();
    let network = network(boot.as_deref());
    let place = network.map_or([0; 16], |network| place(&network, &listeners));
    let name = |boot: String| Uuid::new_v5(&Uuid::NAMESPACE_OID, boot.as_bytes()).into_bytes();
    ControllerOrigin { place, boot: boot.map_or([0; 16], name) }
}

/// Returns a UUID for these listeners in this network. The UUID identifies a process, since two
/// processes cannot listen on the same address of a network at once.
fn place(network: &str, listeners: &[String]) -> [u8; 16] {
    let name = format!("{network}\n{}", listeners.join("\n"));
    Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()).into_bytes()
}

/// Returns the identifier of this machine's boot, if the system has one.
fn boot() -> Option<String> {
    if let Some(boot) = os::simulated_boot() {
        return Some(boot);
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Returns an identifier of the process's network namespace. It contains the identifier of the
/// machine's boot, so it is never reused. A container may have its own network namespace.
fn network(boot: Option<&str>) -> Option<String> {
    if os::is_simulated() {
        return Some(format!("{}\nsimulated", boot?));
    }
    system_network(boot)
}

#[cfg(not(windows))]
fn system_network(boot: Option<&str>) -> Option<String> {
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{}\n{}", boot?, network.to_string_lossy()))
}

/// Returns an identifier that all processes of this machine share until it reboots, in place of the
/// identifier of Linux's network namespace. The first process that needs the identifier creates it.
/// A process reads it once.
#[cfg(windows)]
fn system_network(_: Option<&str>) -> Option<String> {
    use std::sync::OnceLock;
    use windows_registry::{CURRENT_USER, LOCAL_MACHINE};
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    // Try HKEY_LOCAL_MACHINE first, which every process reads but only administrators and services
    // write.
    NAME.get_or_init(|| registered(LOCAL_MACHINE).or_else(|| registered(CURRENT_USER))).clone()
}

/// Returns a random name from a volatile registry key, which lasts until reboot or the end of the
/// user's session. A container has its own registry, so processes that read the same name share a
/// machine. If two processes create the name at the same time, they may read different names: a
/// host that has lost its controller then only waits longer before it resends commands.
#[cfg(windows)]
fn registered(root: &windows_registry::Key) -> Option<String> {
    const KEY: &str = r"SOFTWARE\farblock-boot";
    const VALUE: &str = "id";
    let read = |key: &windows_registry::Key| {
        let id = Uuid::try_parse(&key.get_string(VALUE).ok()?).ok()?;
        Some(id.to_string()).filter(|_| !id.is_nil())
    };
    if let Some(id) = root.open(KEY).ok().and_then(|key| read(&key)) {
        return Some(id);
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    let key = root.options().read().write().create().volatile().open(KEY).ok()?;
    key.set_string(VALUE, Uuid::from_bytes(random).to_string()).ok()?;
    read(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(target_os = "linux", windows))]
    fn the_origin_depends_on_the_listeners_and_the_boot() {
        let at = |text: &[&str]| {
            let addresses: Vec<Entrance> = text.iter().map(|it| it.parse().unwrap()).collect();
            origin(&addresses)
        };
        let (one, other) = (at(&["127.0.0.1:1", "[::1]:2"]), at(&["127.0.0.1:1"]));
        assert!(one.is_succeeded_at(&at(&["[::1]:2", "127.0.0.1:1"])));
        assert!(!one.is_succeeded_at(&other));
        assert_eq!(one.boot, other.boot);
        #[cfg(target_os = "linux")]
        assert_ne!(one.boot, [0; 16]);
    }

    #[test]
    fn namespace_identities_are_stable_and_depend_on_every_input() {
        let of = |nqn, id, content| namespace(nqn, id, content).uuid;
        assert_eq!(of("a", 1, "x"), of("a", 1, "x"));
        for other in [of("b", 1, "x"), of("a", 2, "x"), of("a", 1, "y")] {
            assert_ne!(of("a", 1, "x"), other);
        }
        let own = "6f61c8a4-2c0f-4d0e-9d5b-0d3b8f6a1c11";
        assert_eq!(of("a", 1, own), of("b", 2, own));
        assert_eq!(of("a", 1, own), Uuid::parse_str(own).unwrap().into_bytes());
        assert_ne!(of("a", 1, &Uuid::nil().to_string()), [0; 16]);
        assert_eq!(serial("a").len(), 20);
        assert_ne!(serial("a"), serial("b"));
    }
}
