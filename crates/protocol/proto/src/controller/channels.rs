//! Secure channels, as the discovery log page tells each host of them: a record for what the host
//! may use, with what it has to do there (TREQ, TSAS), and none for what it may not.

use super::config::{ChannelSecurity, PortId, SubsystemId};
use super::registry::Registry;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

/// How a host has to come to a subsystem. Of two things that are said, the greater one holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum HostChannel {
    /// Without TLS: it has no key.
    #[default]
    Plain,
    /// With TLS that comes of its authentication, which begins without (TP 8018).
    Concatenated,
    /// With TLS, by its own key.
    Tls,
}

impl HostChannel {
    /// What the log page says of a listener to this host; none if the host cannot come there.
    fn at(self, port: ChannelSecurity) -> Option<ChannelSecurity> {
        match (self, port) {
            (Self::Plain, ChannelSecurity::None | ChannelSecurity::Allowed) => {
                Some(ChannelSecurity::None)
            }
            // A host that is told "required" begins with TLS, for which it has no key: the answer
            // to Connect tells it what has to come of its authentication (ASCR).
            (Self::Concatenated, ChannelSecurity::Allowed) => Some(ChannelSecurity::Allowed),
            (Self::Tls, ChannelSecurity::Allowed | ChannelSecurity::Required) => {
                Some(ChannelSecurity::Required)
            }
            (Self::Tls | Self::Concatenated, ChannelSecurity::None)
            | (Self::Plain | Self::Concatenated, ChannelSecurity::Required) => None,
        }
    }

    /// The same for the discovery service, to which a host may come without its key.
    fn at_discovery(self, port: ChannelSecurity) -> Option<ChannelSecurity> {
        match (self, port) {
            (Self::Tls, port) => Some(port),
            (_, ChannelSecurity::Required) => None,
            (_, ChannelSecurity::None | ChannelSecurity::Allowed) => Some(ChannelSecurity::None),
        }
    }
}

/// What is known of secure channels.
#[derive(Default, Debug)]
pub(super) struct Channels {
    ports: BTreeMap<PortId, ChannelSecurity>,
    /// By the host's name, then by the subsystem, or for all of them.
    hosts: BTreeMap<String, BTreeMap<Option<SubsystemId>, HostChannel>>,
}

impl Channels {
    pub(super) fn forget_port(&mut self, port: PortId) {
        self.ports.remove(&port);
    }

    pub(super) fn forget_subsystem(&mut self, id: SubsystemId) {
        self.hosts.retain(|_, of_host| {
            of_host.remove(&Some(id));
            !of_host.is_empty()
        });
    }

    fn port(&self, port: PortId) -> ChannelSecurity {
        self.ports.get(&port).copied().unwrap_or_default()
    }

    /// How this host has to come to a subsystem.
    fn host(&self, host: &str, id: SubsystemId) -> HostChannel {
        let Some(of_host) = self.hosts.get(host) else { return HostChannel::Plain };
        [None, Some(id)]
            .iter()
            .filter_map(|place| of_host.get(place))
            .copied()
            .max()
            .unwrap_or_default()
    }

    /// What the log page says to a host of a subsystem at a listener; none if it has no record.
    pub(super) fn of_subsystem(
        &self,
        host: &str,
        id: SubsystemId,
    ) -> impl Fn(PortId) -> Option<ChannelSecurity> + '_ {
        let channel = self.host(host, id);
        move |port| channel.at(self.port(port))
    }

    /// The same of the discovery service.
    pub(super) fn of_discovery(
        &self,
        host: &str,
    ) -> impl Fn(PortId) -> Option<ChannelSecurity> + '_ {
        let of_host = self.hosts.get(host).into_iter().flatten();
        let channel = of_host.map(|(_, channel)| *channel).max().unwrap_or_default();
        move |port| channel.at_discovery(self.port(port))
    }
}

/// Secure channels.
impl Registry {
    /// Says in the discovery log page whether hosts have to use TLS where this listener is.
    pub fn set_security(&mut self, port: PortId, security: ChannelSecurity) {
        if self.channels.ports.insert(port, security).unwrap_or_default() != security {
            self.discovery_changed(|_, _| true);
        }
    }

    /// Says how a host has to come to a subsystem, or to all of them.
    pub fn set_host_channel(
        &mut self,
        id: Option<SubsystemId>,
        host_nqn: &str,
        channel: HostChannel,
    ) {
        let of_host = self.channels.hosts.entry(host_nqn.to_string()).or_default();
        let before = match channel {
            HostChannel::Plain => of_host.remove(&id),
            channel => of_host.insert(id, channel),
        };
        self.channels.hosts.retain(|_, of_host| !of_host.is_empty());
        if before.unwrap_or_default() != channel {
            self.discovery_changed(|_, host| host == host_nqn);
        }
    }
}
