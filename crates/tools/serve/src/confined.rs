//! Drops the rights that a target does not need, and restricts the files that it may open.

use super::{disks, names, reserved};
use crate::args::ServeArgs;
use crate::broker::{Broker, keys};
use crate::error::{Failure, Result, os};
use crate::sandbox::{self, Paths};
use farblock_admin_api::places;
use farblock_host::key_file::{KEYRING, is_file, is_keyring};
use farblock_state::{Entrance, Store, Transport};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The error if a host or disk that is added at run time is the first with a key in the keyring.
const NO_KEYRING: &str = "a target without keyring keys gives up access to the kernel's keyring at \
                          its start: restart it with this host or disk, or name a key file";

/// The devices that libibverbs and librdmacm open.
const RDMA_DEVICES: &str = "/dev/infiniband";

/// Drops all rights that the command line and the configuration do not need. A target calls this
/// after it has read both.
pub(super) fn confine(args: &ServeArgs, written: Option<&str>) -> Result<()> {
    if args.sandbox.no_sandbox {
        return Ok(());
    }
    let paths = match &args.sandbox.allow_path[..] {
        [] => None,
        given => Some(paths(args, given, written)?),
    };
    let broker = wants_keyring(args, written).then(|| Broker::start([keys::PART])).transpose();
    let broker = broker.map_err(Failure::Run)?;
    sandbox::enter(paths.as_ref()).map_err(Failure::Run)?;
    match broker {
        Some(broker) => keys::ask_by(Arc::new(broker)),
        None => keys::refuse(NO_KEYRING),
    }
    for sentence in sandbox::lacks() {
        tracing::debug!("sandbox: {sentence}");
    }
    Ok(())
}

/// Whether a host or a disk of the command line, the configuration or the saved state has its key
/// in the kernel's keyring.
fn wants_keyring(args: &ServeArgs, written: Option<&str>) -> bool {
    let mut given = args.tls_key.iter();
    given.any(|(_, path)| is_keyring(path)) || mentions(args, written, names_keyring)
}

/// Whether a listener or a disk of the command line, the configuration or the saved state uses
/// RDMA. A target that gets its first RDMA listener or disk later needs `--allow-path
/// /dev/infiniband`.
fn wants_rdma(args: &ServeArgs, written: Option<&str>) -> bool {
    let by_rdma = |entrance: &Entrance| entrance.transport == Transport::Rdma;
    args.listen.iter().any(by_rdma) || mentions(args, written, names_rdma)
}

/// Whether `is_it` returns true for a disk of the command line, for the text of the configuration,
/// or for the saved state.
fn mentions(args: &ServeArgs, written: Option<&str>, is_it: fn(&str) -> bool) -> bool {
    // Ignore errors here: the target reports them when it loads the saved state.
    let kept = args.persist.as_ref().and_then(|path| Store::new(path).text().ok()?);
    let mut disks = args.paths.iter().map(|path| path.to_string_lossy());
    written.into_iter().chain(kept.as_deref()).any(is_it) || disks.any(|disk| is_it(&disk))
}

/// Whether the text of a URL, a configuration or a saved state names the transport RDMA.
fn names_rdma(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["rdma:", "\"rdma\"", "'rdma'"].iter().any(|name| text.contains(name))
}

/// Whether the text of a URL, a configuration or a saved state names a key in the keyring.
fn names_keyring(text: &str) -> bool {
    let values = ["tls-key", "tls_key"].into_iter().flat_map(|key| text.split(key).skip(1));
    let unescaped = |value: &str| value.replace("%3A", ":").replace("%3a", ":");
    let between = |c: char| c.is_whitespace() || matches!(c, '=' | ':' | '"' | '\'');
    values
        .map(|value| unescaped(value.trim_start_matches(between)))
        .any(|value| value.starts_with(KEYRING))
}

/// Returns the allowed paths, and the folders of the target's own files.
fn paths(args: &ServeArgs, given: &[PathBuf], written: Option<&str>) -> Result<Paths> {
    let shared = given.iter().map(|path| {
        std::fs::canonicalize(path).map_err(|error| {
            Failure::usage(format_args!("--allow-path {}: {}", path.display(), os(&error)))
        })
    });
    let shared = shared.collect::<Result<_>>()?;
    let default = places::sockets().filter(|_| !args.no_control && args.control.is_none());
    if let Some(folder) = &default {
        // Ignore an error here: the server of the control socket reports it.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    // If the path is a link, the sandbox must allow the folder of its destination.
    let persist = args.persist.as_ref();
    let persist = persist.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
    let own = [&args.control, &persist, &args.spdk_rpc].map(Option::as_ref);
    let state = reserved::wanted(args.state_dir.as_deref());
    if let Some(folder) = &state {
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    let own = own.into_iter().flatten().map(|path| folder(path)).chain(default).chain(state);
    let may_use_rdma = wants_rdma(args, written) && Path::new(RDMA_DEVICES).exists();
    let own = own.chain(may_use_rdma.then(|| PathBuf::from(RDMA_DEVICES)));
    let keys = args.host_key.iter().chain(&args.tls_key).map(|(_, path)| path);
    let read = keys
        .chain(&args.controller_key)
        .chain(&args.ui.ui_token)
        .chain(&args.api.api_tokens)
        .chain(&args.api.https_cert)
        .chain(&args.api.https_key)
        .chain(&args.config);
    let program = std::env::current_exe().ok();
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let specs = args.paths.iter().filter_map(|path| disks::parse_os(path).ok());
    let legs: Vec<PathBuf> = specs.flat_map(|spec| names::key_files(&spec)).collect();
    let read = read.filter(|path| is_file(path)).chain(&program).chain(&legs);
    let read = read.map(|path| folder(path)).chain(credentials);
    Ok(Paths { shared, own: own.collect(), read: read.collect() })
}

/// Returns the folder of a file, to which the process needs access to replace the file.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_is_found_in_disk_names_and_configurations() {
        for text in [
            "mirror:a.img,nvme+rdma://h/n?ns=1",
            "listeners = [\"rdma:192.0.2.7\"]",
            "transport = \"rdma\"",
            "{\"trtype\": \"RDMA\"}",
            "transport = 'rdma'",
        ] {
            assert!(names_rdma(text), "{text}");
        }
        for text in ["", "nvme+tcp://h/n?ns=1", "path = \"/srv/rdma.img\""] {
            assert!(!names_rdma(text), "{text}");
        }
    }

    #[test]
    fn keyring_keys_are_found_in_disk_names_and_configurations() {
        for text in [
            "mirror:a.img,nvme+tcp://h/n?ns=1&tls-key=keyring:",
            r#"path = "mirror:a.img,nvme+tcp://h/n?tls-key=keyring%3A12""#,
            "tls-key=/a tls-key=keyring%3a",
            "tls_key = \"/a\"\ntls_key = 'keyring:'",
            r#"{"tls_key": "keyring:NVMe1R01 h s d"}"#,
        ] {
            assert!(names_keyring(text), "{text}");
        }
        for text in ["", "keyring:", "nvme+tcp://h/n?tls-key=/keyring:/x"] {
            assert!(!names_keyring(text), "{text}");
        }
    }
}
