//! Secure channels in the discovery log page. Each host gets a record for each subsystem that it
//! may use. The record contains the security requirements for this host at the listener (TREQ,
//! TSAS).

use super::config::{ChannelSecurity, PortId, SubsystemId};
use super::registry::Registry;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

/// The way in which a host must connect to a subsystem. If two requirements apply, the later
/// variant takes precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum HostChannel {
    /// Without TLS, because the host has no key.
    #[default]
    Plain,
    /// With TLS concatenation: the host first authenticates without TLS (TP 8018).
    Concatenated,
    /// With TLS and the host's own pre-shared key.
    Tls,
}

impl HostChannel {
    /// Returns the security of a listener in this host's log page; `None` if the host cannot
    /// connect to the listener.
    fn at(self, port: ChannelSecurity) -> Option<ChannelSecurity> {
        match (self, port) {
            (Self::Plain, ChannelSecurity::None | ChannelSecurity::Allowed) => {
                Some(ChannelSecurity::None)
            }
            // Do not report "required": a host that reads it starts with TLS, but this host gets
            // its key only by authentication. The response to Connect tells it to use TLS
            // concatenation (ASCR).
            (Self::Concatenated, ChannelSecurity::Allowed) => Some(ChannelSecurity::Allowed),
            (Self::Tls, ChannelSecurity::Allowed | ChannelSecurity::Required) => {
                Some(ChannelSecurity::Required)
            }
            (Self::Tls | Self::Concatenated, ChannelSecurity::None)
            | (Self::Plain | Self::Concatenated, ChannelSecurity::Required) => None,
        }
    }

    /// Returns the security in the discovery service's own record; `None` if the host cannot
    /// connect to the listener. Hosts without a key may use discovery.
    fn at_discovery(self, port: ChannelSecurity) -> Option<ChannelSecurity> {
        match (self, port) {
            (Self::Tls, port) => Some(port),
            (_, ChannelSecurity::Required) => None,
            (_, ChannelSecurity::None | ChannelSecurity::Allowed) => Some(ChannelSecurity::None),
        }
    }
}

/// The channel security of each listener and host.
#[derive(Default, Debug)]
pub(super) struct Channels {
    ports: BTreeMap<PortId, ChannelSecurity>,
    /// The requirements by the host's name, then by subsystem. `None`: all subsystems.
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

    /// Returns the way in which this host must connect to a subsystem.
    fn host(&self, host: &str, id: SubsystemId) -> HostChannel {
        let Some(of_host) = self.hosts.get(host) else { return HostChannel::Plain };
        [None, Some(id)]
            .iter()
            .filter_map(|place| of_host.get(place))
            .copied()
            .max()
            .unwrap_or_default()
    }

    /// Returns the security of a subsystem at a listener in a host's log page; `None` if the page
    /// has no such record.
    pub(super) fn of_subsystem(
        &self,
        host: &str,
        id: SubsystemId,
    ) -> impl Fn(PortId) -> Option<ChannelSecurity> + '_ {
        let channel = self.host(host, id);
        move |port| channel.at(self.port(port))
    }

    /// Returns the security of the discovery service at a listener in a host's log page.
    pub(super) fn of_discovery(
        &self,
        host: &str,
    ) -> impl Fn(PortId) -> Option<ChannelSecurity> + '_ {
        let of_host = self.hosts.get(host).into_iter().flatten();
        let channel = of_host.map(|(_, channel)| *channel).max().unwrap_or_default();
        move |port| channel.at_discovery(self.port(port))
    }
}

/// Methods for secure channels.
impl Registry {
    /// Sets the security of a listener in the discovery log page: whether hosts may or must use
    /// TLS.
    pub fn set_security(&mut self, port: PortId, security: ChannelSecurity) {
        if self.channels.ports.insert(port, security).unwrap_or_default() != security {
            self.discovery_changed(|_, _| true);
        }
    }

    /// Sets the way in which a host must connect to a subsystem; `None`: to all subsystems.
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
