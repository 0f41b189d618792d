//! What every stream is set to, whichever engine moves its bytes.

use std::net::SocketAddr;

use socket2::SockRef;

/// Congestion control on loopback. Nothing can be congested there, but Linux paces what BBR sends
/// (the default on some systems) all the same: that cost a quarter of the throughput, and half of
/// the operations per second one at a time.
#[cfg(target_os = "linux")]
const LOOPBACK_CONGESTION: [&[u8]; 2] = [b"cubic", b"reno"];

/// Sets a connected stream up. What fails is left as it is: a socket that its peer has reset
/// already is found out by the next operation.
pub(crate) fn tune<'a>(socket: impl Into<SockRef<'a>>, peer: Option<SocketAddr>) {
    let socket = socket.into();
    let _ = socket.set_tcp_nodelay(true);
    #[cfg(target_os = "linux")]
    if peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
        // The second is allowed to everyone everywhere.
        let _ = LOOPBACK_CONGESTION.iter().any(|name| socket.set_tcp_congestion(name).is_ok());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = peer;
}
