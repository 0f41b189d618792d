//! Options of a connection.

use crate::identity::{HostId, HostIdentity};
use crate::limits;
use crate::tcp_options::TcpOptions;
use crate::url::Url;
use farblock_reactor::EngineKind;
use farblock_secure::{Group, Hash};
use std::path::PathBuf;
use std::time::Duration;

/// Options of a connection to a controller. The default suits a subsystem on a local network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The host NQN to use; `None`: this machine's host NQN.
    pub hostnqn: Option<String>,
    /// The host identifier to use; `None`: this machine's host identifier.
    pub hostid: Option<HostId>,
    /// The file with this host's secret (DH-HMAC-CHAP), for controllers that require
    /// authentication; see [`key_file`](crate::key_file). The host reads the file again for each
    /// queue that it connects.
    pub dhchap_secret: Option<PathBuf>,
    /// The file with the controller's secret. If set, the controller must authenticate, too.
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// Hash functions allowed in authentication; empty for all. The connection fails if the
    /// controller accepts none of them.
    pub dhchap_hashes: Vec<Hash>,
    /// Diffie-Hellman groups allowed in authentication; empty for all.
    pub dhchap_dhgroups: Vec<Group>,
    /// TCP options.
    pub tcp: TcpOptions,
    /// Keep alive timeout: after this time without traffic, either side closes the connection. Zero
    /// means never. Connections to a discovery service with the well-known NQN ignore this option.
    pub keep_alive: Duration,
    /// The time in which the host must detect an unresponsive controller. If it is shorter than the
    /// keep alive timeout, the host sends keep alives more often.
    pub path_timeout: Option<Duration>,
    /// Time limit for each step of a connection attempt: the TCP connection, and each answer.
    pub connect_timeout: Duration,
    /// Time limit for a command. When it expires, the host drops the connection. Zero means no
    /// limit.
    pub io_timeout: Duration,
    /// The maximum number of commands in flight on each I/O queue, if the controller allows as
    /// many.
    pub queue_depth: u16,
    /// The number of I/O queues to request from the controller. This is the maximum number of open
    /// queues.
    pub queues: u16,
    /// Whether to send small writes in the command capsule, if the controller accepts them there.
    pub in_capsule: bool,
    /// The engine of the event loop for the admin queue. I/O queues run on their users' loops.
    pub engine: EngineKind,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            hostnqn: None,
            hostid: None,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            dhchap_hashes: Vec::new(),
            dhchap_dhgroups: Vec::new(),
            tcp: TcpOptions::default(),
            keep_alive: Duration::from_secs(5),
            path_timeout: None,
            connect_timeout: Duration::from_secs(5),
            io_timeout: Duration::from_secs(30),
            queue_depth: 128,
            queues: limits::QUEUES,
            in_capsule: true,
            engine: EngineKind::Auto,
        }
    }
}

impl Options {
    /// Returns these options with the digests, identity and secrets that the URL sets.
    #[must_use]
    pub fn with_url(&self, url: &Url) -> Options {
        fn first<T: Clone>(url: &[T], own: &[T]) -> Vec<T> {
            if url.is_empty() { own.to_vec() } else { url.to_vec() }
        }
        Options {
            hostnqn: url.hostnqn.clone().or_else(|| self.hostnqn.clone()),
            hostid: url.hostid.or(self.hostid),
            dhchap_secret: url.dhchap_secret.clone().or_else(|| self.dhchap_secret.clone()),
            dhchap_ctrl_secret: url
                .dhchap_ctrl_secret
                .clone()
                .or_else(|| self.dhchap_ctrl_secret.clone()),
            dhchap_hashes: first(&url.dhchap_hashes, &self.dhchap_hashes),
            dhchap_dhgroups: first(&url.dhchap_dhgroups, &self.dhchap_dhgroups),
            tcp: url.tcp.and(&self.tcp),
            ..self.clone()
        }
    }

    /// Returns the host identity that these options set. For values that they do not set, uses this
    /// machine's.
    #[must_use]
    pub fn identity(&self) -> HostIdentity {
        HostIdentity::with(self.hostnqn.as_deref(), self.hostid)
    }
}
