//! The socket options of every stream, for all engines.

use std::net::SocketAddr;

use socket2::SockRef;

/// Congestion control on loopback. Loopback has no congestion, but Linux still paces BBR (the
/// default on some systems). That cost a quarter of the throughput, and half of the operations per
/// second at depth one.
#[cfg(target_os = "linux")]
const LOOPBACK_CONGESTION: [&[u8]; 2] = [b"cubic", b"reno"];

/// Sets the options of a connected stream and ignores failures: the next operation reports a socket
/// that its peer has already reset.
pub(crate) fn tune<'a>(socket: impl Into<SockRef<'a>>, peer: Option<SocketAddr>) {
    let socket = socket.into();
    let _ = socket.set_tcp_nodelay(true);
    #[cfg(target_os = "linux")]
    if peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
        // Linux allows the second one to every user.
        let _ = LOOPBACK_CONGESTION.iter().any(|name| socket.set_tcp_congestion(name).is_ok());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = peer;
}
