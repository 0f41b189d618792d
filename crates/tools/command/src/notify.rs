//! Telling systemd how it is going: datagrams to the socket in `$NOTIFY_SOCKET`, if there is one.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// Where to tell, if somebody wants to know.
#[derive(Default)]
pub struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// As the environment has it.
    pub fn from_environment() -> Notifier {
        let Some(address) = std::env::var_os(VARIABLE) else { return Notifier(None) };
        match Notifier::open(&address) {
            Ok(notifier) => notifier,
            Err(error) => {
                tracing::warn!("${VARIABLE} is of no use: {error}");
                Notifier(None)
            }
        }
    }

    fn open(address: &OsStr) -> io::Result<Notifier> {
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(address)?,
        };
        Ok(Notifier(Some((UnixDatagram::unbound()?, address))))
    }

    /// What was started can be used.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// How it is going.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={}", one_line(status)));
    }

    /// It is about to end.
    pub fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!("systemd is not told: {error}");
        }
    }

    /// Is not for processes that we start.
    pub fn hide_from(command: &mut std::process::Command) {
        command.env_remove(VARIABLE);
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_as_systemd_has_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let abstract_name = format!("farblock-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        let other = UnixDatagram::bind_addr(&address).expect("a socket");
        let at = format!("@{abstract_name}");
        for (address, socket) in [(path.as_os_str(), socket), (OsStr::new(&at), other)] {
            let notifier = Notifier::open(address).expect("it is there");
            notifier.ready("live\nand well");
            notifier.stopping("it ends");
            let mut buffer = [0; 256];
            for expected in ["READY=1\nSTATUS=live and well", "STOPPING=1\nSTATUS=it ends"] {
                let received = socket.recv(&mut buffer).expect("a datagram");
                assert_eq!(std::str::from_utf8(&buffer[..received]), Ok(expected));
            }
        }
    }
}
