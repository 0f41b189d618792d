//! Finds the running targets of this user.

#[cfg(target_os = "linux")]
mod processes;

use crate::client::{Client, ClientError};
use farblock_admin_api::places::sockets;
use farblock_admin_api::{Status, sockets_in};
use std::path::PathBuf;
use std::time::Duration;

/// Returns the sockets of this user's running targets, with each target's status. The status is
/// `None` if the target does not answer within `patience`.
pub fn running(patience: Duration) -> Vec<(PathBuf, Option<Status>)> {
    let mut living = sockets().map(|folder| sockets_in(&folder)).unwrap_or_default();
    #[cfg(target_os = "linux")]
    if sees_every_process() {
        living.extend(processes::control_sockets());
    }
    living.sort();
    living.dedup();
    let ask = |path: PathBuf| {
        let client = Client::new(&path).with_patience(patience);
        match client.ask("GET", "/v1/status", None, None) {
            Ok(answer) => Some((path, Some(serde_json::from_str(&answer.body).ok()?))),
            // No process listens on this socket.
            Err(ClientError::Connect(..)) => None,
            Err(ClientError::Talk(..)) => Some((path, None)),
        }
    };
    living.into_iter().filter_map(ask).collect()
}

/// Describes the places where [`running`] looks for targets, for error messages.
pub fn looked_in() -> String {
    let folder = sockets().map(|folder| folder.display().to_string());
    let folder = folder.unwrap_or_else(|| "no folder ($XDG_RUNTIME_DIR is not set)".to_owned());
    match sees_every_process() {
        true => format!("{folder}, and the --control of each farblock serve"),
        false => folder,
    }
}

/// Whether to include targets with sockets in any folder. FARBLOCK_RUNTIME_DIR restricts the search
/// to its folder.
fn sees_every_process() -> bool {
    cfg!(target_os = "linux") && std::env::var_os("FARBLOCK_RUNTIME_DIR").is_none()
}
