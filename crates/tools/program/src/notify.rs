//! Notifies systemd with datagrams to the socket in `$NOTIFY_SOCKET`, if it is set. systemd can
//! also keep the descriptors of a service for its next process.

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

const VARIABLE: &str = "NOTIFY_SOCKET";
/// The environment variables for descriptors that systemd passes to this process: their count, the
/// ID of this process, and their names.
const HANDED_OVER: [&str; 3] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];
/// The number of the first descriptor that systemd passes.
const FIRST: RawFd = 3;
/// The maximum number of descriptors that this process accepts from systemd.
const MAX_HANDED_OVER: usize = 1024;

/// A connection to systemd; `None` if systemd did not start this process.
#[derive(Default)]
pub struct Notifier(Option<(OwnedFd, SocketAddrUnix)>);

impl Notifier {
    /// Returns the notifier for the socket in the environment.
    pub fn from_environment() -> Notifier {
        let Some(address) = std::env::var_os(VARIABLE) else { return Notifier(None) };
        match Notifier::open(&address) {
            Ok(notifier) => notifier,
            Err(error) => {
                tracing::warn!("cannot use ${VARIABLE}: {error}");
                Notifier(None)
            }
        }
    }

    fn open(address: &OsStr) -> io::Result<Notifier> {
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name)?,
            None => SocketAddrUnix::new(address)?,
        };
        let kind = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
        Ok(Notifier(Some((socket, address))))
    }

    /// Whether a service manager has started this process.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.0.is_some()
    }

    /// Reports that the service is ready, with a status line.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports a status line.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={}", one_line(status)));
    }

    /// Reports that the service is stopping, with a status line.
    pub fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
    }

    /// Makes systemd keep a copy of a descriptor under a name, and pass it to the service's next
    /// process ([`handed_over`]). systemd drops a copy that reports an error or a hang-up.
    pub fn store(&self, name: &str, descriptor: &OwnedFd) {
        self.tell_with(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor.as_fd()));
    }

    /// Makes systemd drop all descriptors of this name.
    pub fn forget(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    fn tell(&self, text: &str) {
        self.tell_with(text, None);
    }

    fn tell_with(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) {
        let Some((socket, address)) = &self.0 else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(text.as_bytes())];
        let flags = SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg_addr(socket, address, &parts, &mut control, flags);
        if let Err(error) = sent {
            tracing::debug!("cannot notify systemd: {error}");
        }
    }

    /// Removes systemd's variables from the environment of a child process.
    pub fn hide_from(command: &mut std::process::Command) {
        for variable in [VARIABLE].iter().chain(&HANDED_OVER) {
            command.env_remove(variable);
        }
    }
}

/// Returns the names and descriptors that an earlier process of this service stored
/// ([`Notifier::store`]). Call this before starting a child process, which would inherit them. Only
/// the first call returns descriptors.
pub fn handed_over() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variables = HANDED_OVER.map(|variable| std::env::var(variable).unwrap_or_default());
    let names = names(&variables, std::process::id());
    if names.is_empty() || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let taken = (FIRST..).zip(names).filter_map(|(number, name)| {
        // SAFETY: systemd has opened this descriptor for this process, and no other code owns it:
        // the flag above lets only one call take it. If the number is not open, the code below
        // forgets it instead of closing it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        match rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC) {
            Ok(()) => Some((name, descriptor)),
            Err(error) => {
                tracing::warn!("cannot use descriptor {number} of the service manager: {error}");
                std::mem::forget(descriptor);
                None
            }
        }
    });
    taken.collect()
}

/// Returns the names of the passed descriptors in their order.
fn names([count, pid, names]: &[String; 3], own_pid: u32) -> Vec<String> {
    let count = count.parse().unwrap_or(0_usize);
    if pid.parse() != Ok(own_pid) {
        return Vec::new();
    }
    let names = names.split(':').map(str::to_owned);
    names.chain(std::iter::repeat(String::new())).take(count.min(MAX_HANDED_OVER)).collect()
}

/// Whether a descriptor is usable: it is open, without error or hang-up.
pub fn lives(descriptor: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(descriptor, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let found = poll(&mut polled, Some(&now));
    let useless = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    found.is_ok() && !polled[0].revents().intersects(useless)
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn passed_descriptors_are_named_and_accepted_by_one_process() {
        let names = |variables: [&str; 3]| names(&variables.map(str::to_owned), 7);
        assert_eq!(names(["2", "7", "a:b"]), ["a", "b"]);
        assert_eq!(names(["2", "7", "a"]), ["a", ""]);
        assert_eq!(names(["1", "7", "a:b"]), ["a"]);
        for nothing in [["", "", ""], ["1", "8", "a"], ["x", "7", "a"], ["-1", "7", "a"]] {
            assert_eq!(names(nothing), [""; 0]);
        }
    }

    #[test]
    fn a_descriptor_is_alive_until_its_peer_closes() {
        let (reader, writer) = io::pipe().expect("the pipe is created");
        let reader = OwnedFd::from(reader);
        assert!(lives(&reader));
        drop(writer);
        assert!(!lives(&reader));
    }

    #[test]
    fn datagrams_have_the_format_of_systemd() {
        let folder = tempfile::tempdir().expect("the folder is created");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("the socket is bound");
        let abstract_name = format!("farblock-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("the name is valid");
        let other = UnixDatagram::bind_addr(&address).expect("the socket is bound");
        let at = format!("@{abstract_name}");
        for (address, socket) in [(path.as_os_str(), socket), (OsStr::new(&at), other)] {
            let notifier = Notifier::open(address).expect("the socket exists");
            notifier.ready("live\nand well");
            notifier.stopping("it ends");
            let mut buffer = [0; 256];
            for expected in ["READY=1\nSTATUS=live and well", "STOPPING=1\nSTATUS=it ends"] {
                let received = socket.recv(&mut buffer).expect("a datagram arrives");
                assert_eq!(std::str::from_utf8(&buffer[..received]), Ok(expected));
            }
        }
    }
}
