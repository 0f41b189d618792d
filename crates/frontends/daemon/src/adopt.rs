//! Gives a server whose supervisor was killed a new supervisor. The new supervisor requests a
//! channel (a socket for messages) over the server's control socket, and then works as if it had
//! started the server.

use super::control::{self, ControlRequest};
use super::folder::{Folder, Lock, Role};
use super::settings::Settings;
use super::system::{self, Channel};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The longest wait for the server's answer. On a timeout, the supervisor does not adopt the
/// server.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// Finds the attachment with these settings that has a server but no supervisor. Returns its folder
/// and its supervisor lock.
pub(super) fn orphan(runtime: &Path, settings: &Settings) -> Option<(Folder, Lock)> {
    let folders = match &settings.name {
        Some(name) => vec![Folder(runtime.join(name))],
        None => Folder::attached(runtime),
    };
    folders.into_iter().find_map(|folder| {
        let before = folder.read_json::<Settings>("settings.json")?;
        let is_its = before.urls == settings.urls && before.way == settings.way;
        let lock = folder.lock(Role::Supervisor).filter(|_| is_its)?;
        folder.is_held(Role::Server).then_some((folder, lock))
    })
}

/// Requests a channel to the server. As the first message, the server reports that the disk is
/// ready.
pub(super) fn channel(folder: &Folder) -> io::Result<Channel> {
    let stream = control::request(folder, &ControlRequest::Adopt, Some(WAIT_LIMIT))?;
    system::receive_channel(&stream)
}
