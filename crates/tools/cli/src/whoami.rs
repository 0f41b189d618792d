//! `farblock whoami`: prints the identity that this host presents to targets.

use crate::error::Result;
use crate::output;
use farblock_host::HostIdentity;
use farblock_host::identity::Source;
use serde_json::json;

pub(crate) fn run(as_json: bool) -> Result<()> {
    let (HostIdentity { nqn, id }, source) = HostIdentity::and_source();
    let (kept, folder) = match source {
        Source::System(folder) => ("for this machine", Some(folder)),
        Source::User(folder) => ("for this user", Some(folder)),
        Source::Process => {
            ("nowhere: this user has no home folder, so each command has a new identity", None)
        }
    };
    if as_json {
        let folder = folder.map(|folder| folder.display().to_string());
        let id = id.to_string();
        return output::print_json(&json!({ "host_nqn": nqn, "host_id": id, "kept_in": folder }));
    }
    let kept = match folder {
        Some(folder) => format!("{} ({kept})", folder.display()),
        None => kept.to_owned(),
    };
    output::print(&format!("host NQN  {nqn}\nhost ID   {id}\nkept in   {kept}\n"))
}
