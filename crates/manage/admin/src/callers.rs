//! The callers of requests, for the audit log: a local process, a browser with the dashboard, or
//! the holder of a token.

use crate::bounded::{Active, Activity, Bounded, Connection};
use crate::tls_listener::TlsListener;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tokio::net::{UnixListener, UnixStream};

/// The process at the client end of the control socket, as the kernel reports it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
    activity: Activity,
}

impl Active for Peer {
    fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl Connected<IncomingStream<'_, Bounded<UnixListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded<UnixListener>>) -> Self {
        let connection: &Connection<UnixStream> = stream.io();
        let credentials = connection.get_ref().peer_cred().ok();
        Self {
            uid: credentials.map(|credentials| credentials.uid()),
            pid: credentials.and_then(|credentials| credentials.pid()),
            activity: connection.activity(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.uid, self.pid) {
            (Some(uid), Some(pid)) => write!(f, "user {uid}, process {pid}"),
            (Some(uid), None) => write!(f, "user {uid}"),
            _ => f.write_str("an unknown process"),
        }
    }
}

/// A browser that uses the dashboard. All browsers share one token, so only the address differs.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) from: SocketAddr,
    activity: Activity,
}

impl Connected<IncomingStream<'_, Bounded<TlsListener>>> for Visitor {
    fn connect_info(stream: IncomingStream<'_, Bounded<TlsListener>>) -> Self {
        Self { from: *stream.remote_addr(), activity: stream.io().activity() }
    }
}

impl Active for Visitor {
    fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl fmt::Display for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the dashboard, from {}", self.from)
    }
}

/// A client with a valid token.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) from: SocketAddr,
}

impl Caller {
    pub(crate) fn address(&self) -> IpAddr {
        self.from.ip()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}, from {}", self.name, self.from)
    }
}
