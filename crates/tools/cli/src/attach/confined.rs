//! What the process that serves a disk gives up before it connects (docs/decisions/0052). Its
//! supervisor, which has no connection, gives nothing up: it starts the next one.

use super::settings::Settings;
use super::ways;
use crate::{output, sandbox};
use farblock_admin::Confinement;
use farblock_host::key_file::KEYRING;
use std::path::PathBuf;

/// Gives up what the way does not take, before there is a second thread. What cannot be given up is
/// said in the log.
pub(super) fn confine(settings: &Settings) {
    if settings.no_sandbox {
        return;
    }
    match reason_to_stay(settings) {
        Some(why) => sandbox::stay(&format!("nothing is given up: {why}")),
        None => {
            if let Err(problem) = sandbox::enter(None) {
                sandbox::stay(&problem);
            }
        }
    }
    for sentence in sandbox::lacks() {
        tracing::info!(target: output::NOTES, "sandbox: {sentence}");
    }
}

/// What holds, for who asks.
pub(super) fn seen() -> Option<Confinement> {
    Some(sandbox::seen())
}

/// Why everything has to stay as it is, if it does.
fn reason_to_stay(settings: &Settings) -> Option<&'static str> {
    let keys = settings.urls.iter().map(|url| &url.tls_key).chain([&settings.tls_key]);
    let in_keyring = |key: &PathBuf| key.to_str().is_some_and(|text| text.starts_with(KEYRING));
    if keys.flatten().any(in_keyring) {
        return Some("its key is in the kernel's keyring, which is asked for each connection");
    }
    ways::keeps_rights(settings)
}

#[cfg(test)]
mod tests {
    use super::super::args::As;
    use super::*;

    #[test]
    fn servers_of_programs_keep_nothing_unless_their_key_is_the_kernels() {
        let url = "nvme+tcp://a/n?ns=1".parse().expect("a URL");
        let socket = Some(PathBuf::from("/s"));
        for way in [As::Nbd, As::VhostUser, As::Iscsi] {
            let urls = vec![Clone::clone(&url)];
            let plain = Settings { way, urls, socket: socket.clone(), ..Settings::default() };
            assert_eq!(reason_to_stay(&plain), None);
            let tls_key = Some(PathBuf::from("keyring:"));
            let why = reason_to_stay(&Settings { tls_key, ..plain }).expect("a reason");
            assert!(why.contains("keyring"), "{why}");
        }
        for way in [As::Ublk, As::Fuse, As::Nvme] {
            assert!(reason_to_stay(&Settings { way, ..Settings::default() }).is_some());
        }
    }
}
