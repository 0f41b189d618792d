//! Keys by name. A name stands for a key file. The target reads the file when a host gets the key.
//! No call returns a key.

use super::limits::{MAX_KEYS, MAX_NAME};
use super::message::{Answer, Errno, INVALID_PARAMETERS, Params, RpcError};
use super::{Method, SpdkRpc, Table, method};
use farblock_admin_api::Aside;
use farblock_state::{Document, Host};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;

pub(super) const METHODS: &[Method] = &[
    method("keyring_file_add_key", add_key),
    method("keyring_file_remove_key", remove_key),
    method("keyring_get_keys", get_keys),
];

/// The prefixes of systemd credentials and kernel keys. SPDK has neither, but a host may have got
/// such a key through another interface.
const NO_FILES: [&str; 2] = ["credential:", "keyring:"];
/// The mode bits that a key file must not have.
const OTHERS: u32 = 0o077;

/// The key files by name. Clients give the names. A key file that a host got through another
/// interface is named after its path.
pub(super) struct Keyring(BTreeMap<String, String>);

impl Keyring {
    pub(super) fn of(table: &Table, document: &Document) -> Self {
        let mut keyring = Self(table.keys.clone());
        for file in used(document) {
            if keyring.name_of(file).is_none() {
                let name = keyring.free_name(file);
                keyring.0.insert(name, file.clone());
            }
        }
        keyring
    }

    /// Derives a name from a path. Replaces colons, because a colon separates the name of a keyring
    /// from the name of a key.
    fn free_name(&self, file: &str) -> String {
        let mut name = file.replace(':', "-");
        while self.0.contains_key(&name) {
            name.push('\'');
        }
        name
    }

    /// The path of a key file.
    pub(super) fn file(&self, name: &str) -> Option<&String> {
        self.0.get(bare(name))
    }

    pub(super) fn name_of(&self, file: &str) -> Option<&String> {
        self.0.iter().find(|(_, known)| *known == file).map(|(name, _)| name)
    }

    /// The names of a host's keys, with the names of SPDK's parameters for them.
    pub(super) fn named(&self, host: &Host) -> Vec<(&'static str, String)> {
        let keys = [
            ("dhchap_key", &host.dhchap_key),
            ("dhchap_ctrlr_key", &host.dhchap_ctrl_key),
            ("psk", &host.tls_key),
        ];
        let named = keys.into_iter().filter_map(|(parameter, file)| {
            let name = self.name_of(file.as_ref()?)?;
            Some((parameter, name.clone()))
        });
        named.collect()
    }

    /// The parameters of the calls that recreate the keyring.
    pub(super) fn saved(&self) -> impl Iterator<Item = Value> {
        self.0.iter().map(|(name, path)| json!({ "name": name, "path": path }))
    }
}

/// The key files of all hosts in a document. The list may contain a file more than once.
fn used(document: &Document) -> impl Iterator<Item = &String> {
    let hosts = document.subsystems.values().flat_map(|subsystem| subsystem.hosts.values());
    hosts.flat_map(|host| [&host.dhchap_key, &host.dhchap_ctrl_key, &host.tls_key]).flatten()
}

/// Removes the colon of `:NAME`.
fn bare(name: &str) -> &str {
    name.strip_prefix(':').unwrap_or(name)
}

fn parse<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let error = RpcError::new(INVALID_PARAMETERS, "Invalid argument");
    params.parse().map_err(|sentence| error.because(sentence))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddKey {
    name: String,
    path: String,
}

fn add_key(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AddKey = parse(params)?;
    let name = bare(&asked.name);
    if name.is_empty() || name.contains(':') || name.chars().count() > MAX_NAME {
        let sentence = format!("name: use 1 to {MAX_NAME} characters without colons");
        return Err(RpcError::from(Errno::Invalid).because(sentence));
    }
    if Keyring::of(table, &rpc.steering.document().0).file(name).is_some() {
        return Err(RpcError::from(Errno::Exists).because(format!("a key {name} already exists")));
    }
    if table.keys.len() >= MAX_KEYS {
        let sentence = format!("at most {MAX_KEYS} keys can exist: remove one");
        return Err(RpcError::from(Errno::NoSpace).because(sentence));
    }
    check_file(table, &asked.path)?;
    table.keys.insert(name.to_owned(), asked.path);
    Ok(json!(true))
}

/// Checks that a path leads to a usable key file. The errors do not repeat the path, because the
/// client may have sent a key instead of a path.
fn check_file(table: &Table, path: &str) -> Result<(), RpcError> {
    if NO_FILES.iter().any(|prefix| path.starts_with(prefix)) {
        return Ok(());
    }
    let refused = |errno: Errno, sentence: &str| RpcError::from(errno).because(sentence);
    if !path.starts_with('/') {
        let sentence = "path: give the absolute path of the key's file";
        return Err(refused(Errno::NotPermitted, sentence));
    }
    let at = path.to_owned();
    let found = table.patience.with(Aside::Key, path, move || Ok(std::fs::metadata(at)));
    let found = found.map_err(|sentence| refused(Errno::Busy, &sentence))?;
    let found = found.map_err(|error| {
        let errno = match error.kind() {
            io::ErrorKind::NotFound => Errno::NotFound,
            io::ErrorKind::PermissionDenied => Errno::AccessDenied,
            _ => Errno::Invalid,
        };
        refused(errno, &format!("path: {error}"))
    })?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    match is_ours && found.mode() & OTHERS == 0 {
        true => Ok(()),
        false => {
            let sentence = "path: the file must belong to the target's user, and no other user may \
                read it: chmod 600";
            Err(refused(Errno::NotPermitted, sentence))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveKey {
    name: String,
}

fn remove_key(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: RemoveKey = parse(params)?;
    let (name, (document, _)) = (bare(&asked.name), rpc.steering.document());
    let keyring = Keyring::of(table, &document);
    let Some(file) = keyring.file(name) else {
        return Err(RpcError::from(Errno::NoKey).because(format!("key {name} does not exist")));
    };
    if used(&document).any(|used| used == file) {
        let sentence = format!("a host uses the key {name}: call nvmf_subsystem_remove_host first");
        return Err(RpcError::from(Errno::Busy).because(sentence));
    }
    table.keys.remove(name);
    Ok(json!(true))
}

fn get_keys(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    params.none("keyring_get_keys")?;
    let (document, _) = rpc.steering.document();
    let keyring = Keyring::of(table, &document);
    let shown = keyring.0.iter().map(|(name, path)| {
        json!({
            "name": name,
            "module": "keyring_file",
            "removed": false,
            "probed": false,
            "refcnt": 1 + used(&document).filter(|used| *used == path).count(),
            "path": path,
        })
    });
    Ok(shown.collect())
}
