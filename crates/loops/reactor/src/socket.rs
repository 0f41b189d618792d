//! The socket options of every stream, for all engines.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::OnceLock;

use socket2::SockRef;

/// The congestion control of all streams, if the process has set it.
static CHOSEN: OnceLock<Congestion> = OnceLock::new();

/// A TCP congestion control, by its Linux name: `cubic`, `reno`, `dctcp`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Congestion(String);

impl Congestion {
    /// Whether the process has set a congestion control.
    #[must_use]
    pub fn is_chosen() -> bool {
        CHOSEN.get().is_some()
    }

    /// Sets this congestion control for all later streams of the process.
    ///
    /// # Errors
    /// Returns a sentence if the system lacks the congestion control, this user may not set it, or
    /// the process has already set another congestion control.
    pub fn choose(self) -> Result<(), String> {
        self.try_on_a_socket()?;
        let name = self.0.clone();
        let chosen = CHOSEN.get_or_init(|| self);
        match chosen.0 == name {
            true => Ok(()),
            false => Err(format!("the congestion control is already {chosen}")),
        }
    }

    #[cfg(target_os = "linux")]
    fn try_on_a_socket(&self) -> Result<(), String> {
        use socket2::{Domain, Socket, Type};

        let set = Socket::new(Domain::IPV4, Type::STREAM, None)
            .and_then(|socket| socket.set_tcp_congestion(self.0.as_bytes()));
        let list = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        set.map_err(|_| {
            format!(
                "this user may not choose the congestion control {self}: use one of {} \
                 (net.ipv4.tcp_allowed_congestion_control)",
                list().unwrap_or_default().trim().replace(' ', ", ")
            )
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn try_on_a_socket(&self) -> Result<(), String> {
        Err("only Linux lets a program choose the congestion control: remove the `congestion` \
             setting"
            .to_owned())
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Congestion {
    type Err = String;

    fn from_str(text: &str) -> Result<Congestion, String> {
        /// Linux allows 16 bytes (`TCP_CA_NAME_MAX`), including the terminating zero.
        const MAX_BYTES: usize = 15;
        let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if text.is_empty() || text.len() > MAX_BYTES || !is_name {
            return Err(format!(
                "{text:?} is not a congestion control: use for example cubic or reno"
            ));
        }
        Ok(Congestion(text.to_owned()))
    }
}

/// Sets the options of a stream. Ignores errors: if the peer has reset the connection, the next
/// operation reports this.
pub(crate) fn tune<'a>(socket: impl Into<SockRef<'a>>, peer: Option<SocketAddr>) {
    let socket = socket.into();
    let _ = socket.set_tcp_nodelay(true);
    #[cfg(target_os = "linux")]
    congestion::begin(&socket, peer);
    #[cfg(not(target_os = "linux"))]
    let _ = peer;
}

/// Sets the options that depend on the path to the peer. The stream must be connected.
pub(crate) fn settle<'a>(socket: impl Into<SockRef<'a>>) {
    #[cfg(target_os = "linux")]
    congestion::settle(&socket.into());
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

#[cfg(target_os = "linux")]
mod congestion {
    use super::CHOSEN;
    use socket2::SockRef;
    use std::mem::{MaybeUninit, size_of};
    use std::net::SocketAddr;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    /// The congestion controls that replace BBR on short paths, best first. Every Linux user may
    /// set `reno`.
    const UNPACED: [&[u8]; 2] = [b"cubic", b"reno"];

    /// The limit on the round trip time of a short path, one within a site. BBR, the default of
    /// some systems, spreads packets over time (pacing). Between two network namespaces, this cost
    /// a third of the throughput. On longer paths, streams keep BBR.
    const NEAR: Duration = Duration::from_millis(1);

    pub(super) fn begin(socket: &SockRef<'_>, peer: Option<SocketAddr>) {
        if let Some(chosen) = CHOSEN.get() {
            let _ = socket.set_tcp_congestion(chosen.0.as_bytes());
        } else if peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            // Loopback has no congestion, so pacing has no benefit there.
            unpace(socket);
        }
    }

    pub(super) fn settle(socket: &SockRef<'_>) {
        let paces = || socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"));
        if CHOSEN.get().is_none() && paces() && round_trip(socket).is_some_and(|it| it < NEAR) {
            unpace(socket);
        }
    }

    fn unpace(socket: &SockRef<'_>) {
        let _ = UNPACED.iter().any(|name| socket.set_tcp_congestion(name).is_ok());
    }

    /// Returns the round trip time that the kernel measured during the handshake.
    pub(super) fn round_trip(socket: &SockRef<'_>) -> Option<Duration> {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: `info` has room for `length` bytes, and both variables outlive the call. All bit
        // patterns are values of `tcp_info`, and bytes that the kernel does not write are zero.
        let info = unsafe {
            let place = info.as_mut_ptr().cast();
            let level = libc::IPPROTO_TCP;
            let fd = socket.as_raw_fd();
            let result = libc::getsockopt(fd, level, libc::TCP_INFO, place, &raw mut length);
            (result == 0).then(|| info.assume_init())?
        };
        (info.tcpi_rtt > 0).then(|| Duration::from_micros(u64::from(info.tcpi_rtt)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_congestion_control_names_are_refused() {
        assert_eq!("cubic".parse::<Congestion>().unwrap().to_string(), "cubic");
        for name in ["", "a name", "a_name_of_16_byte", "../x"] {
            assert!(
                name.parse::<Congestion>().unwrap_err().contains("use for example cubic"),
                "{name}"
            );
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_unavailable_congestion_control_is_refused() {
        let refused = Congestion("none_such".to_owned()).choose().unwrap_err();
        assert!(refused.contains("none_such") && refused.contains("reno"), "{refused}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_connected_stream_reports_its_round_trip_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        for socket in [&stream, &accepted] {
            assert!(congestion::round_trip(&socket.into()).is_some());
            tune(socket, socket.peer_addr().ok());
            settle(socket);
            let name = SockRef::from(socket).tcp_congestion().unwrap();
            assert!(!name.starts_with(b"bbr"), "{name:?} paces over loopback");
        }
        let apart = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        assert_eq!(congestion::round_trip(&(&apart.unwrap()).into()), None);
    }
}
