//! Listening sockets that a service manager holds and hands over (`$LISTEN_FDS`), so that no host
//! is refused while the target restarts.

use crate::error::{Failure, Result};
use listenfd::ListenFd;
use std::net::TcpListener;

/// Takes the inherited sockets; the list is empty if there are none.
pub(super) fn handed_over() -> Result<Vec<TcpListener>> {
    let mut handed = ListenFd::from_env();
    (0..handed.len()).map(|index| taken(&mut handed, index)).collect()
}

fn taken(handed: &mut ListenFd, index: usize) -> Result<TcpListener> {
    let socket = handed.take_tcp_listener(index).ok().flatten();
    let listens = |socket: &TcpListener| rustix::net::sockopt::socket_acceptconn(socket);
    socket.filter(|socket| listens(socket) == Ok(true)).ok_or_else(|| {
        Failure::usage(format_args!(
            "the service manager ($LISTEN_FDS) hands over something else than a TCP socket that \
             listens, as number {}: give the socket unit nothing but ListenStream=ADDR:PORT",
            index + 1
        ))
    })
}
