//! Listening sockets that systemd passes to the target (`$LISTEN_FDS`). systemd keeps them open, so
//! that hosts can connect while the target restarts.

use crate::error::{Failure, Result};
use listenfd::ListenFd;
use std::net::TcpListener;

/// Takes the inherited sockets. Returns an empty list if there are none.
pub(super) fn handed_over() -> Result<Vec<TcpListener>> {
    let mut handed = ListenFd::from_env();
    (0..handed.len()).map(|index| taken(&mut handed, index)).collect()
}

fn taken(handed: &mut ListenFd, index: usize) -> Result<TcpListener> {
    let socket = handed.take_tcp_listener(index).ok().flatten();
    let listens = |socket: &TcpListener| rustix::net::sockopt::socket_acceptconn(socket);
    socket.filter(|socket| listens(socket) == Ok(true)).ok_or_else(|| {
        Failure::usage(format_args!(
            "socket {} from the service manager ($LISTEN_FDS) is not a listening TCP socket: use \
             only ListenStream=ADDR:PORT in the socket unit",
            index + 1
        ))
    })
}
