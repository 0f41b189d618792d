//! How to connect.

use crate::identity::{HostId, HostIdentity};
use crate::limits;
use crate::transport::tcp::TcpOptions;
use crate::url::Url;
use farblock_reactor::EngineKind;
use farblock_secure::{Group, Hash};
use std::path::PathBuf;
use std::time::Duration;

/// How to connect to a controller. The default suits a subsystem on a local network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Host NQN, instead of this machine's.
    pub hostnqn: Option<String>,
    /// Host identifier, instead of this machine's.
    pub hostid: Option<HostId>,
    /// The file with this host's secret (DH-HMAC-CHAP), for controllers that ask for it; see
    /// [`key_file`](crate::key_file). It is read for each queue that is connected.
    pub dhchap_secret: Option<PathBuf>,
    /// The file with the controller's secret, if it has to prove who it is as well.
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// The hash functions that the authentication may use; empty for all. A controller that takes
    /// none of them is not used.
    pub dhchap_hashes: Vec<Hash>,
    /// The Diffie-Hellman groups that it may use; empty for all.
    pub dhchap_dhgroups: Vec<Group>,
    /// What only TCP can be asked for.
    pub tcp: TcpOptions,
    /// Keep alive timeout: after this long without a sign of life either side gives up. Zero:
    /// never. Discovery by the well-known name never uses it.
    pub keep_alive: Duration,
    /// How soon to know that the controller does not answer any more, if that is to be sooner than
    /// by the keep alive timeout: signs of life are then asked for more often.
    pub path_timeout: Option<Duration>,
    /// How long each step of connecting may take: the connection, and each answer.
    pub connect_timeout: Duration,
    /// How long a command may take before the connection is given up. Zero: for ever.
    pub io_timeout: Duration,
    /// Commands in flight per I/O queue, if the controller allows as many.
    pub queue_depth: u16,
    /// I/O queues to ask for: how many can be open at once.
    pub queues: u16,
    /// Send small writes in the command capsule, if the controller takes them there.
    pub in_capsule: bool,
    /// The event loop of the admin queue. I/O queues live on their users' loops.
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
    /// These options with what a URL says about digests, identity and secrets.
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

    /// Who the host is, by these options.
    #[must_use]
    pub fn identity(&self) -> HostIdentity {
        HostIdentity::with(self.hostnqn.as_deref(), self.hostid)
    }
}
