//! What is shared: from a name on the command line to a namespace with an identity.

use farblock_backends::Spec;
use farblock_wire::nqn::UUID_NQN_PREFIX;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Takes a disk's name apart.
pub(crate) fn parse(text: &str) -> Result<Spec, String> {
    if text.starts_with("nvme+tcp://") {
        return Err(format!(
            "{text} is remote already: sharing a remote namespace once more is not implemented"
        ));
    }
    Spec::parse(text).map_err(|error| error.to_string())
}

/// What tells the disk from all others, here and on other machines, and stays the same over
/// restarts. Memory does not survive a restart, so a RAM disk's identity does not either: a host
/// that comes back must not take the empty disk for the one that it knew.
pub(crate) fn identity(spec: &Spec) -> String {
    let mut text = format!("{}\n{}", crate::machine::id(), absolute(spec));
    if forgets(spec) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        text.push_str(&format!("\n{} {}", std::process::id(), now.as_nanos()));
    }
    text
}

/// The name of a subsystem with these disks: the same for the same paths on the same machine.
pub(crate) fn default_nqn(specs: &[Spec]) -> String {
    let mut name = format!("farblock\n{}", crate::machine::id());
    for spec in specs {
        name.push_str(&format!("\n{}", absolute(spec)));
    }
    format!("{UUID_NQN_PREFIX}{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
}

/// The same disks, with each file's path seen from `directory`.
pub(crate) fn seen_from(spec: &Spec, directory: &Path) -> Spec {
    map_paths(spec, &|path| directory.join(path))
}

fn absolute(spec: &Spec) -> Spec {
    map_paths(spec, &|path| {
        // One that does not exist will not be opened either; its name is as good as any.
        std::fs::canonicalize(path)
            .or_else(|_| std::path::absolute(path))
            .unwrap_or_else(|_| path.to_owned())
    })
}

fn map_paths(spec: &Spec, map: &dyn Fn(&Path) -> std::path::PathBuf) -> Spec {
    let boxed = |inner: &Spec| Box::new(map_paths(inner, map));
    match spec {
        Spec::File(path) => Spec::File(map(path)),
        Spec::Stripe { chunk_bytes, children } => Spec::Stripe {
            chunk_bytes: *chunk_bytes,
            children: children.iter().map(|child| map_paths(child, map)).collect(),
        },
        Spec::Delay { fixed, jitter, inner } => {
            Spec::Delay { fixed: *fixed, jitter: *jitter, inner: boxed(inner) }
        }
        Spec::Limit { rate, inner } => Spec::Limit { rate: *rate, inner: boxed(inner) },
        Spec::Fault { every, inner } => Spec::Fault { every: *every, inner: boxed(inner) },
        Spec::Mem { .. } | Spec::Null { .. } => spec.clone(),
    }
}

fn forgets(spec: &Spec) -> bool {
    match spec {
        Spec::Mem { .. } => true,
        Spec::File(_) | Spec::Null { .. } => false,
        Spec::Stripe { children, .. } => children.iter().any(forgets),
        Spec::Delay { inner, .. } | Spec::Limit { inner, .. } | Spec::Fault { inner, .. } => {
            forgets(inner)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        parse(text).unwrap()
    }

    #[test]
    fn names_are_valid_stable_and_differ() {
        let name = |text| default_nqn(&[spec(text)]);
        assert_eq!(name("a.img"), name("./a.img"));
        assert_ne!(name("a.img"), name("b.img"));
        assert_ne!(name("a.img"), default_nqn(&[spec("a.img"), spec("b.img")]));
        farblock_wire::nqn::validate(&name("mem:1GiB")).unwrap();
    }

    #[test]
    fn only_what_lasts_keeps_its_identity() {
        assert_eq!(identity(&spec("a.img")), identity(&spec("a.img")));
        assert_eq!(identity(&spec("null:1GiB")), identity(&spec("null:1GiB")));
        let stripe = "delay:1ms,stripe:64KiB,a.img,mem:1MiB";
        assert_ne!(identity(&spec(stripe)), identity(&spec(stripe)));
    }

    #[test]
    fn paths_are_seen_from_a_directory() {
        let seen = seen_from(&spec("limit:9/s,stripe:64KiB,a.img,/b.img"), Path::new("/etc"));
        let separator = std::path::MAIN_SEPARATOR;
        assert_eq!(seen.to_string(), format!("limit:9/s,stripe:64KiB,/etc{separator}a.img,/b.img"));
    }
}
