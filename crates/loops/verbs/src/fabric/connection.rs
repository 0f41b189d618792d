//! Connections of the fabric in memory: addresses, requests, answers, and disconnections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Weak;

use super::state::{Event, IdState, Key, Objects, QpState, Stage};
use crate::error::VerbsError;
use crate::limits;
use crate::verbs::{CmEventType, ConnParam, REJECTED_BY_CONSUMER, REJECTED_NO_LISTENER, TIMED_OUT};

/// The first port that the fabric gives to connecting ends.
const FIRST_PORT: u16 = 32768;

/// Private data as it arrives at the peer: padded with zeroes to the largest length.
fn padded(data: &[u8], bytes: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(bytes, 0);
    padded
}

/// The parameters as the peer sees them: the READs that this end starts are READs that the peer
/// answers.
fn seen_by_peer(param: &ConnParam, data_bytes: usize) -> ConnParam {
    ConnParam {
        private_data: padded(&param.private_data, data_bytes),
        responder_resources: param.initiator_depth,
        initiator_depth: param.responder_resources,
        ..param.clone()
    }
}

/// Empty parameters, for events without parameters.
fn nothing() -> ConnParam {
    ConnParam {
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ..ConnParam::default()
    }
}

fn invalid(verb: &'static str) -> VerbsError {
    VerbsError::refused(verb, io::ErrorKind::InvalidInput)
}

impl Objects {
    fn event(&mut self, id: Key, event: CmEventType, status: i32, param: ConnParam) {
        self.report(Event { id, listener: None, event, status, param });
    }

    /// Reports an event to all connections and listeners of a node, and closes the listeners.
    pub(super) fn announce(&mut self, node: IpAddr, event: CmEventType) {
        let is_of_it = |id: &&mut IdState| id.local.ip() == node;
        for id in self.ids.values_mut().filter(is_of_it) {
            if matches!(id.stage, Stage::Listening { .. }) {
                id.stage = Stage::Closed;
            }
        }
        // Skip requests whose event is still in the channel: the program has not received them yet.
        let is_known = |id: &IdState| id.local.ip() == node && id.handle.strong_count() > 0;
        let all: Vec<Key> =
            self.ids.iter().filter(|(_, id)| is_known(id)).map(|(key, _)| *key).collect();
        for key in all {
            self.event(key, event, 0, nothing());
        }
    }

    fn new_id(&mut self, channel: Key, local: SocketAddr) -> Key {
        let key = self.next_key();
        let id = IdState {
            channel,
            local,
            remote: None,
            stage: Stage::Idle,
            peer: None,
            param: ConnParam::default(),
            qp: None,
            handle: Weak::new(),
        };
        self.ids.insert(key, id);
        key
    }

    /// The listener at an address, or the listener for all addresses of the node.
    fn listener(&self, address: SocketAddr) -> Option<Key> {
        let listens = |id: &IdState| {
            matches!(id.stage, Stage::Listening { .. })
                && id.local.port() == address.port()
                && (id.local.ip() == address.ip() || id.local.ip().is_unspecified())
        };
        self.ids.iter().find(|(_, id)| listens(id)).map(|(key, _)| *key)
    }

    /// A port of a node that no connection or listener uses.
    fn free_port(&self, ip: IpAddr) -> u16 {
        let is_free = |port: &u16| {
            !self.ids.values().any(|id| id.local.ip() == ip && id.local.port() == *port)
        };
        (FIRST_PORT..=u16::MAX).find(is_free).unwrap_or(0)
    }

    pub(super) fn listen(
        &mut self,
        channel: Key,
        node: IpAddr,
        mut address: SocketAddr,
        backlog: u32,
    ) -> Result<Key, VerbsError> {
        if address.ip().is_unspecified() {
            address.set_ip(node);
        }
        if address.ip() != node || self.nodes.get(&node).is_some_and(|node| node.is_removed) {
            return Err(VerbsError::refused("rdma_bind_addr", io::ErrorKind::AddrNotAvailable));
        }
        if address.port() == 0 {
            address.set_port(self.free_port(node));
        }
        if self.listener(address).is_some() {
            return Err(VerbsError::refused("rdma_bind_addr", io::ErrorKind::AddrInUse));
        }
        let key = self.new_id(channel, address);
        self.ids.entry(key).and_modify(|id| id.stage = Stage::Listening { backlog });
        Ok(key)
    }

    pub(super) fn resolve_addr(
        &mut self,
        channel: Key,
        source: SocketAddr,
        target: SocketAddr,
    ) -> Key {
        let mut local = source;
        if local.port() == 0 {
            local.set_port(self.free_port(local.ip()));
        }
        let key = self.new_id(channel, local);
        let unresolved = self.nodes.get_mut(&target.ip()).map(|node| &mut node.unresolved);
        let is_lost = unresolved.is_some_and(|left| {
            let is_lost = *left > 0;
            *left = left.saturating_sub(1);
            is_lost
        });
        let reaches = !is_lost && self.is_reachable(local.ip(), target.ip());
        self.ids.entry(key).and_modify(|id| {
            id.remote = Some(target);
            id.stage = if reaches { Stage::AddrResolved } else { Stage::Closed };
        });
        let (event, status) = match reaches {
            true => (CmEventType::AddrResolved, 0),
            false => (CmEventType::AddrError, TIMED_OUT),
        };
        self.event(key, event, status, nothing());
        key
    }

    pub(super) fn resolve_route(&mut self, key: Key) -> Result<(), VerbsError> {
        let id = self.id(key).filter(|id| id.stage == Stage::AddrResolved);
        id.ok_or_else(|| invalid("rdma_resolve_route"))?.stage = Stage::RouteResolved;
        self.event(key, CmEventType::RouteResolved, 0, nothing());
        Ok(())
    }

    pub(super) fn connect(&mut self, key: Key, param: &ConnParam) -> Result<(), VerbsError> {
        let is_valid = |id: &IdState| {
            id.stage == Stage::RouteResolved
                && id.qp.is_some()
                && param.private_data.len() <= limits::REQUEST_DATA_BYTES
        };
        let Some(id) = self.ids.get_mut(&key).filter(|id| is_valid(id)) else {
            return Err(invalid("rdma_connect"));
        };
        id.stage = Stage::Connecting;
        id.param = param.clone();
        let local = id.local;
        let target = id.remote.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        if !self.is_reachable(local.ip(), target.ip()) {
            self.event(key, CmEventType::Unreachable, TIMED_OUT, nothing());
            return Ok(());
        }
        let listener = self.listener(target).filter(|listener| self.has_room(*listener));
        let Some(listener) = listener else {
            self.rejected(key, REJECTED_NO_LISTENER, &[]);
            return Ok(());
        };
        let Some(channel) = self.ids.get(&listener).map(|id| id.channel) else { return Ok(()) };
        let request = self.new_id(channel, target);
        self.ids.entry(request).and_modify(|id| {
            id.remote = Some(local);
            id.stage = Stage::Requested { listener };
            id.peer = Some(key);
        });
        self.ids.entry(key).and_modify(|id| id.peer = Some(request));
        self.report(Event {
            id: request,
            listener: Some(listener),
            event: CmEventType::ConnectRequest,
            status: 0,
            param: seen_by_peer(param, limits::REQUEST_DATA_BYTES),
        });
        Ok(())
    }

    /// Whether the listener's queue has room for another connection request.
    fn has_room(&self, listener: Key) -> bool {
        let Some(id) = self.ids.get(&listener) else { return false };
        let Stage::Listening { backlog } = id.stage else { return false };
        let is_waiting = |event: &&Event| event.listener == Some(listener);
        let waiting = self
            .channels
            .get(&id.channel)
            .map_or(0, |channel| channel.events.iter().filter(is_waiting).count());
        waiting < backlog.max(1) as usize
    }

    /// Reports to the end that connects that the peer has rejected its request.
    fn rejected(&mut self, key: Key, reason: i32, data: &[u8]) {
        let Some(id) = self.id(key).filter(|id| id.stage == Stage::Connecting) else { return };
        id.stage = Stage::Closed;
        id.peer = None;
        let private_data = padded(data, limits::REJECT_DATA_BYTES);
        let param = ConnParam { private_data, ..nothing() };
        self.event(key, CmEventType::Rejected, reason, param);
        self.fail(key);
    }

    pub(super) fn accept(&mut self, key: Key, param: &ConnParam) -> Result<(), VerbsError> {
        let is_valid = |id: &IdState| {
            matches!(id.stage, Stage::Requested { .. })
                && id.qp.is_some()
                && param.private_data.len() <= limits::ACCEPT_DATA_BYTES
        };
        let Some(id) = self.ids.get_mut(&key).filter(|id| is_valid(id)) else {
            return Err(invalid("rdma_accept"));
        };
        let peer = id.peer;
        let Some(peer) = peer.filter(|peer| self.ids.contains_key(peer)) else {
            return Err(VerbsError::refused("rdma_accept", io::ErrorKind::ConnectionReset));
        };
        self.ids.entry(key).and_modify(|id| id.stage = Stage::Established);
        let asked = self.ids[&peer].param.rnr_retry_count;
        self.make_ready(key, asked);
        self.ids.entry(peer).and_modify(|id| id.stage = Stage::Established);
        self.make_ready(peer, param.rnr_retry_count);
        let seen = seen_by_peer(param, limits::ACCEPT_DATA_BYTES);
        self.event(peer, CmEventType::Established, 0, seen);
        self.event(key, CmEventType::Established, 0, nothing());
        Ok(())
    }

    /// Makes a queue pair ready. `rnr_retry_count` is the count that the peer requested: how often
    /// to retry if it has no receive posted.
    fn make_ready(&mut self, key: Key, rnr_retry_count: u8) {
        if let Some(qp) = self.qp(key) {
            qp.state = QpState::Ready;
            qp.rnr_retry_count = rnr_retry_count;
        }
    }

    pub(super) fn reject(&mut self, key: Key, data: &[u8]) -> Result<(), VerbsError> {
        let is_valid = |id: &IdState| {
            matches!(id.stage, Stage::Requested { .. }) && data.len() <= limits::REJECT_DATA_BYTES
        };
        let Some(id) = self.ids.get_mut(&key).filter(|id| is_valid(id)) else {
            return Err(invalid("rdma_reject"));
        };
        id.stage = Stage::Closed;
        if let Some(peer) = id.peer.take() {
            self.rejected(peer, REJECTED_BY_CONSUMER, data);
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, key: Key) -> Result<(), VerbsError> {
        let Some(id) = self.ids.get_mut(&key) else { return Err(invalid("rdma_disconnect")) };
        let (local, peer) = (id.local, id.peer);
        match id.stage {
            Stage::Established => {
                id.stage = Stage::Disconnecting;
                self.ask_to_close(key, local, peer);
            }
            Stage::PeerClosed => {
                id.stage = Stage::Closed;
                self.confirm(peer);
            }
            Stage::Disconnecting | Stage::Closed => {}
            _ => return Err(invalid("rdma_disconnect")),
        }
        self.fail(key);
        Ok(())
    }

    /// Asks the peer to disconnect, too. The peer's queue pair flushes its requests when the peer
    /// disconnects. An unreachable peer counts as disconnected.
    fn ask_to_close(&mut self, key: Key, local: SocketAddr, peer: Option<Key>) {
        let asked = peer.and_then(|peer| Some((peer, self.ids.get(&peer)?))).filter(|(_, id)| {
            id.stage == Stage::Established && self.is_reachable(local.ip(), id.local.ip())
        });
        match asked.map(|(peer, _)| peer) {
            Some(peer) => {
                self.ids.entry(peer).and_modify(|id| id.stage = Stage::PeerClosed);
                self.event(peer, CmEventType::Disconnected, 0, nothing());
            }
            None => self.confirm(Some(key)),
        }
    }

    /// Reports to an end that has disconnected that its peer has disconnected, too.
    fn confirm(&mut self, key: Option<Key>) {
        let Some((key, id)) = key.and_then(|key| Some((key, self.ids.get_mut(&key)?))) else {
            return;
        };
        if id.stage == Stage::Disconnecting {
            id.stage = Stage::Closed;
            self.event(key, CmEventType::Disconnected, 0, nothing());
        }
    }

    /// Destroys a connection, as the death of its process would.
    pub(super) fn destroy_id(&mut self, key: Key) {
        match self.ids.get(&key).map(|id| id.stage) {
            Some(Stage::Requested { .. }) => {
                let _ = self.reject(key, &[]);
            }
            Some(Stage::Established | Stage::PeerClosed) => {
                let _ = self.disconnect(key);
            }
            Some(Stage::Listening { .. }) => self.reject_requests_of(key),
            _ => {}
        }
        let Some(id) = self.ids.remove(&key) else { return };
        if let Some(channel) = self.channels.get_mut(&id.channel) {
            channel.events.retain(|event| event.id != key);
        }
        // No end receives the peer's waiting messages any more, so they fail now.
        if let Some(peer) = id.peer {
            self.run(peer);
        }
    }

    /// Rejects the requests that the listener's program has not received yet.
    fn reject_requests_of(&mut self, listener: Key) {
        let is_of_it = |id: &IdState| {
            id.stage == Stage::Requested { listener } && id.handle.strong_count() == 0
        };
        let requests: Vec<Key> =
            self.ids.iter().filter(|(_, id)| is_of_it(id)).map(|(key, _)| *key).collect();
        for key in requests {
            self.destroy_id(key);
        }
    }
}
