//! Runs `farblock ctl add-namespace` and `replace-namespace`.

use super::args::{AddNamespaceArgs, DiskArgs};
use super::{STALE, ask, done, namespace_at, say, subsystem_at};
use crate::error::{Failure, Result};
use crate::serve::{disk_name, parse_disk};
use farblock_admin_client::Client;
use serde_json::{Value, json};

/// Adds a namespace with the requested namespace ID, or with the first free one.
pub(super) fn add(client: &Client, args: &AddNamespaceArgs) -> Result<()> {
    let mut namespace = json!({ "read_only": args.read_only, "visible_to": args.visible_to });
    if let Some(group) = args.ana_group {
        namespace["ana_group"] = json!(group);
    }
    store(&mut namespace, &args.disk)?;
    let nqn = &args.nqn;
    loop {
        let found = ask(client, "GET", &subsystem_at(nqn), None, None)?;
        let subsystem = found.json();
        let is_free = |nsid: &u32| subsystem["namespaces"].get(nsid.to_string()).is_none();
        let nsid = match args.nsid {
            Some(nsid) if !is_free(&nsid) => {
                return Err(Failure::run(format_args!(
                    "{nqn} has a namespace {nsid} already: choose another number, or replace its \
                     disk with farblock ctl replace-namespace"
                )));
            }
            Some(nsid) => nsid,
            None => (1..u32::MAX).find(is_free).unwrap_or(u32::MAX),
        };
        let (uri, etag) = (namespace_at(nqn, nsid), found.etag.as_deref());
        let answer = client.ask("PUT", &uri, etag, Some(&namespace)).map_err(Failure::run)?;
        if answer.status != STALE {
            return say(&done(answer)?, "nothing to change\n");
        }
    }
}

pub(super) fn replace(client: &Client, nqn: &str, nsid: u32, disk: &DiskArgs) -> Result<()> {
    let uri = namespace_at(nqn, nsid);
    loop {
        let found = ask(client, "GET", &uri, None, None)?;
        let mut namespace = found.json();
        store(&mut namespace, disk)?;
        // Only mirrors have a copy speed. The target refuses it for other disks.
        let path = namespace["path"].as_str();
        if !path.is_some_and(|path| path.starts_with("mirror:")) {
            namespace["copy_bytes_per_second"] = Value::Null;
        }
        let answer = client.ask("PUT", &uri, found.etag.as_deref(), Some(&namespace));
        let answer = answer.map_err(Failure::run)?;
        if answer.status != STALE {
            return say(&done(answer)?, "nothing to change\n");
        }
    }
}

/// Writes the disk and its identifiers into the namespace's JSON. The path is a path on the
/// target's machine.
fn store(namespace: &mut Value, disk: &DiskArgs) -> Result<()> {
    let spec = parse_disk(&disk.path).map_err(Failure::Usage)?;
    namespace["path"] = json!(disk_name(&spec));
    if let Some(bytes) = disk.block_size {
        namespace["block_size"] = json!(bytes);
    }
    namespace["size"] = json!(disk.size);
    namespace["uuid"] = json!(disk.uuid);
    namespace["nguid"] = json!(disk.nguid);
    Ok(())
}
