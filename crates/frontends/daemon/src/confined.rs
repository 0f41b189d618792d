//! Drops the server's rights before the server connects to a target (docs/decisions/0035). The
//! supervisor keeps its rights, because it must start the next server. A target cannot attack the
//! supervisor, which has no connection.

use super::folder::Folder;
use super::settings::Settings;
use super::{rights, ways};
use farblock_admin_api::Confinement;
use farblock_host::HostIdentity;
use farblock_host::key_file::{KEYRING, is_file};
use farblock_host::url::Carriage;
use farblock_program::broker::{Broker, keys};
use farblock_program::error::Result;
use farblock_program::sandbox::Paths;
use farblock_program::{output, sandbox};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel's maximum number of symbolic links in one path.
const LINKS: usize = 40;

/// A server's brokers: helper processes that perform privileged operations for it. If a broker
/// dies, the server exits, and the supervisor starts both again. But if this kind of attachment
/// cannot resume the disk after a restart, the server continues without the broker.
#[derive(Default)]
pub(super) struct Brokers {
    keys: Option<Arc<Broker>>,
    pub(super) device: Option<Arc<Broker>>,
}

impl Brokers {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Broker>> {
        [&self.keys, &self.device].into_iter().flatten()
    }
}

/// Drops the rights that this kind of attachment (NBD, FUSE and so on) does not need. The caller
/// must have started no second thread yet. Logs the rights that the process cannot drop.
pub(super) fn confine(folder: &Folder, settings: &Settings) -> Brokers {
    if ways::may_be_written_back_to(settings)
        && let Err(error) = farblock_frontend::stay_resident()
    {
        tracing::debug!("cannot lock this process in memory: {error}");
    }
    if settings.no_sandbox {
        return Brokers::default();
    }
    let begun = match ways::keeps_rights(settings) {
        Some(why) => Err(why.to_owned()),
        None => brokers(folder, settings),
    };
    let brokers = match begun {
        Ok(brokers) => {
            if ways::flushes_for_the_kernel(settings) {
                flush_for_the_kernel();
            }
            // Create the file of the host identity now: every connection reads it, and later this
            // process may not create files there.
            let _ = HostIdentity::of_this_host();
            if let Err(problem) = sandbox::enter_within(&paths(folder, settings)) {
                sandbox::stay(&problem);
            }
            brokers
        }
        Err(why) => {
            sandbox::stay(&format!("this process keeps all rights: {why}"));
            Brokers::default()
        }
    };
    for sentence in sandbox::lacks() {
        tracing::info!(target: output::NOTES, "sandbox: {sentence}");
    }
    brokers
}

/// The devices that libibverbs and librdmacm open.
const RDMA_DEVICES: &str = "/dev/infiniband";

/// The paths that the server opens later. These are the runtime directory (from which the server
/// removes its own folder when it exits), the socket's folder, and the folders of the keys (read
/// for each connection).
fn paths(folder: &Folder, settings: &Settings) -> Paths {
    let mut own: Vec<PathBuf> = folder.0.parent().map(Path::to_owned).into_iter().collect();
    own.extend(settings.socket.as_deref().and_then(Path::parent).map(Path::to_owned));
    if settings.urls.iter().any(|url| url.carriage == Carriage::Rdma) {
        own.push(PathBuf::from(RDMA_DEVICES));
    }
    let urls = settings.urls.iter();
    let in_urls =
        urls.flat_map(|url| [&url.dhchap_secret, &url.dhchap_ctrl_secret, &url.tcp.tls_key]);
    let keys = [&settings.dhchap_secret, &settings.dhchap_ctrl_secret, &settings.tls_key];
    let keys = keys.into_iter().chain(in_urls).flatten().filter(|path| is_file(path));
    let keys = keys.flat_map(|path| ways_to(path));
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::parent).map(Path::to_owned);
    let read = keys.chain(program);
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    Paths { shared: own, own: Vec::new(), read: read.chain(credentials).collect() }
}

/// Returns all folders through which a file is reached: its own folder, and the folder of each
/// symbolic link in the path. The administrator may later replace a link, for example to switch to
/// new keys. The result omits the root directory, because access to it would include everything.
fn ways_to(file: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = file.parent().map(Path::to_owned).into_iter().collect();
    let mut path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    for _ in 0..LINKS {
        let mut prefixes: Vec<&Path> = path.ancestors().collect();
        prefixes.reverse();
        let link = prefixes.into_iter().find_map(|prefix| Some((prefix, prefix.read_link().ok()?)));
        let Some((link, to)) = link else { break };
        let folder = link.parent().unwrap_or(Path::new("/"));
        folders.extend((folder != Path::new("/")).then(|| folder.to_owned()));
        // A trailing slash would make the kernel follow a link, so build the path without one.
        let rest = path.strip_prefix(link).unwrap_or(Path::new(""));
        path = folder.join(to).components().chain(rest.components()).collect();
    }
    folders.extend(path.parent().map(Path::to_owned));
    folders
}

/// Marks this thread, and the threads that it starts later, with `PR_SET_IO_FLUSHER`. The kernel's
/// writeback needs these threads, so their memory allocations must not wait for writeback. Setting
/// the mark needs a right that the server is about to drop.
fn flush_for_the_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("cannot mark this process as a writeback helper: {error}");
    }
}

/// Starts the brokers that these settings need.
fn brokers(folder: &Folder, settings: &Settings) -> Result<Brokers, String> {
    let mut brokers = Brokers::default();
    if has_key_in_keyring(settings) {
        let broker = Arc::new(Broker::start(keys_part(settings))?);
        keys::ask_by(Arc::clone(&broker));
        brokers.keys = Some(broker);
    }
    if ways::takes_rights(settings) {
        let part = [OsStr::new(rights::PART), folder.0.as_os_str()];
        brokers.device = Some(Arc::new(Broker::start(part)?));
    }
    Ok(brokers)
}

fn has_key_in_keyring(settings: &Settings) -> bool {
    let keys = settings.urls.iter().map(|url| &url.tcp.tls_key).chain([&settings.tls_key]);
    let in_keyring = |key: &PathBuf| key.to_str().is_some_and(|text| text.starts_with(KEYRING));
    keys.flatten().any(in_keyring)
}

/// The arguments of the keyring broker: this disk's subsystems. The broker returns only keys for
/// these subsystems, or for any subsystem if a URL names no subsystem.
fn keys_part(settings: &Settings) -> Vec<&str> {
    let subsystems = settings.urls.iter().map(|url| url.subsystem.as_deref());
    let subsystems = subsystems.collect::<Option<Vec<_>>>().unwrap_or_default();
    [keys::PART, "--"].into_iter().chain(subsystems).collect()
}

/// The rights that this process has dropped and kept, for status requests.
pub(super) fn seen() -> Option<Confinement> {
    Some(sandbox::seen())
}

#[cfg(test)]
mod tests {
    use super::super::args::As;
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_folders_of_all_links_to_a_file_are_allowed() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().canonicalize().expect("the path exists");
        let of = |name: &str| root.join(name);
        for folder in ["sec", "sec/v1", "far", "at"] {
            std::fs::create_dir(of(folder)).expect("the folder is created");
        }
        std::fs::write(of("far/key"), "").expect("the file is written");
        for (to, link) in [
            ("v1", "sec/current"),
            ("../../far/key", "sec/v1/key"),
            ("../sec/current/key", "at/key"),
        ] {
            std::os::unix::fs::symlink(to, of(link)).expect("a link");
        }
        let ways = |name: &str| {
            let real = |folder: PathBuf| folder.canonicalize().expect("the path exists");
            let mut ways: Vec<PathBuf> = ways_to(&of(name)).into_iter().map(real).collect();
            ways.sort();
            ways.dedup();
            ways
        };
        assert_eq!(ways("far/key"), [of("far")]);
        assert_eq!(ways("sec/current/key"), [of("far"), of("sec"), of("sec/v1")]);
        assert_eq!(ways("at/key"), [of("at"), of("far"), of("sec"), of("sec/v1")]);
        // These paths lead to a loop of links, and to a missing file.
        std::os::unix::fs::symlink("loop", of("at/loop")).expect("a link");
        assert_eq!(ways("at/loop"), [of("at")]);
        assert_eq!(ways("at/missing"), [of("at")]);
    }

    #[test]
    fn servers_that_create_no_device_keep_no_rights() {
        let url = "nvme+tcp://a/n?ns=1".parse().expect("a URL");
        let socket = Some(PathBuf::from("/s"));
        for way in [As::Nbd, As::VhostUser, As::Iscsi] {
            let urls = vec![Clone::clone(&url)];
            let plain = Settings { way, urls, socket: socket.clone(), ..Settings::default() };
            assert_eq!(ways::keeps_rights(&plain), None);
            assert!(!has_key_in_keyring(&plain));
            let tls_key = Some(PathBuf::from("keyring:"));
            let secured = Settings { tls_key, ..plain };
            assert!(has_key_in_keyring(&secured));
            assert_eq!(keys_part(&secured), ["keys", "--", "n"]);
        }
        let of = |way| Settings { way, ..Settings::default() };
        assert!(ways::keeps_rights(&of(As::Fuse)).is_none() && ways::takes_rights(&of(As::Fuse)));
        // With `--as nbd`, the server needs rights if the kernel has an NBD client, because it then
        // creates a device.
        assert!(ways::keeps_rights(&of(As::Nbd)).is_none());
        for way in [As::Ublk, As::Nvme] {
            assert!(ways::keeps_rights(&of(way)).is_some());
        }
    }
}
