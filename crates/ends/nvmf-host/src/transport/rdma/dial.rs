//! The start of a connection over RDMA: the address, the queue pair, and commands one at a time.

use super::ends::{Ends, Kept, keep, unwatch, watch};
use super::limits;
use super::queue::{NO_DATA, QueuePair};
use crate::control::{Local, Mailbox, blocking};
use crate::exchange::Exchange;
use crate::system_error::words;
use crate::transport::dial::{Caller, Unreached};
use crate::url::{self, Bracketed, UrlError};
use farblock_proto::capsule::SlotId;
use farblock_proto::host::{Command, ConnectError, Data};
use farblock_proto::rdma::{AnswerError, Granted, rejection};
use farblock_reactor::{WatchId, os};
use farblock_verbs::{
    Chunk, CmEvent, CmEventType, ConnParam, Device, Provider, ProviderChannel, ProviderId,
    REJECTED_BY_CONSUMER, REJECTED_NO_LISTENER, TIMED_OUT, Verbs, VerbsError,
};
use farblock_wire::rdma::{CmRequest, PORT_IO};
use farblock_wire::{Cqe, Sqe};
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The slot of the only command in flight.
const ONE: SlotId = SlotId(0);

/// A controller's RDMA address.
#[derive(Clone)]
pub(crate) struct RdmaAddress {
    /// Name or address, without brackets.
    host: String,
    port: u16,
    /// The socket address that answered for the admin queue.
    found: Option<SocketAddr>,
    /// The socket address that worked before. The host tries it first.
    first: Option<SocketAddr>,
    /// The RDMA devices to use; `None` for the devices of the system.
    provider: Option<Provider>,
}

impl RdmaAddress {
    pub(crate) fn named(host: &str, port: Option<u16>) -> Result<RdmaAddress, UrlError> {
        url::check_place(host, port)?;
        let (host, port) = (host.to_owned(), port.unwrap_or(PORT_IO));
        Ok(RdmaAddress { host, port, found: None, first: None, provider: None })
    }

    /// Reads `host`, `host:port` or `[v6]:port`.
    pub(crate) fn parse(text: &str) -> Result<RdmaAddress, UrlError> {
        let (host, port) = url::parse_authority(text)?;
        RdmaAddress::named(&host, port)
    }

    /// An address on a network in memory, for tests.
    #[cfg(feature = "memory")]
    pub(crate) fn on(provider: Provider, address: SocketAddr) -> RdmaAddress {
        let (host, port) = (address.ip().to_string(), address.port());
        RdmaAddress { host, port, found: None, first: None, provider: Some(provider) }
    }

    /// See [`Address::beginning_with`](crate::transport::dial::Address::beginning_with).
    pub(crate) fn beginning_with(self, first: Option<SocketAddr>) -> RdmaAddress {
        RdmaAddress { first, ..self }
    }

    /// Connects to the first address that accepts; also returns an address for further queues, and
    /// the socket address.
    pub(crate) async fn connect(
        &self,
        caller: &Caller<'_>,
    ) -> Result<(Greeted, RdmaAddress, SocketAddr), Unreached> {
        let provider = match &self.provider {
            Some(provider) => provider.clone(),
            None => Provider::system().map_err(|error| ConnectError::Rdma(error.to_string()))?,
        };
        let mut addresses = self.resolve().await?;
        if let Some(first) = self.first
            && let Some(at) = addresses.iter().position(|address| *address == first)
        {
            addresses.swap(0, at);
        }
        let mut failed = Vec::new();
        for address in addresses {
            match Greeted::connect(&provider, address, caller).await {
                Ok(greeted) => {
                    let again = RdmaAddress { found: Some(address), ..self.clone() };
                    return Ok((greeted, again, address));
                }
                Err(error) => failed.push((address, error)),
            }
        }
        Err(Unreached::of(failed))
    }

    /// Resolves the name. This takes as long as the system's resolver takes.
    async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Some(found) = self.found {
            return Ok(vec![found]);
        }
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (host, port) = (self.host.clone(), self.port);
        let resolve = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        match blocking(resolve).await {
            Ok(addresses) => addresses.map_err(|error| ConnectError::Unresolved(words(&error))),
            Err(error) => Err(ConnectError::Unresolved(error.to_string())),
        }
    }
}

impl fmt::Display for RdmaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(found) => write!(f, "rdma:{found}"),
            None => write!(f, "rdma:{}:{}", Bracketed(&self.host), self.port),
        }
    }
}

/// The queue pair of a connected queue, before its move to an event loop.
pub(crate) struct Connected {
    pub(super) queue: QueuePair,
    pub(super) ends: Kept,
    /// Whether this is an I/O queue: its commands can carry data in their capsules.
    pub(super) is_io: bool,
    /// The maximum number of commands in flight.
    pub(in crate::transport) depth: u16,
}

/// A connection that takes commands one at a time.
pub(crate) struct Greeted {
    local: Local,
    mailbox: Mailbox,
    watch: Option<WatchId>,
    /// `None` after [`Self::finish`].
    connected: Option<Connected>,
    timeout: Duration,
}

impl Drop for Greeted {
    fn drop(&mut self) {
        self.watch.take().into_iter().for_each(|watch| unwatch(self.local.reactor(), watch));
        if let Some(connected) = &self.connected {
            connected.queue.disconnect();
        }
    }
}

/// The steps of a connection attempt that wait, for error messages.
const ADDRESS: &str = "the RDMA address";
const ROUTE: &str = "the RDMA route";

/// A connection attempt.
struct Attempt<'a> {
    verbs: &'a Provider,
    channel: Arc<ProviderChannel>,
    mailbox: Mailbox,
    caller: &'a Caller<'a>,
    watch: Option<WatchId>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let reactor = self.caller.local.reactor();
        self.watch.take().into_iter().for_each(|watch| unwatch(reactor, watch));
    }
}

impl Attempt<'_> {
    /// Waits for the next event. Fails if its type is not `expected`.
    async fn expect(
        &self,
        expected: CmEventType,
        during: &'static str,
    ) -> Result<CmEvent<ProviderId>, ConnectError> {
        let event = self.next(during).await?;
        match event.event == expected {
            true => Ok(event),
            false => Err(self.unexpected(&event, during)),
        }
    }

    fn unexpected(&self, event: &CmEvent<ProviderId>, during: &'static str) -> ConnectError {
        failed(event, during, self.caller.options.connect_timeout)
    }

    async fn next(&self, during: &'static str) -> Result<CmEvent<ProviderId>, ConnectError> {
        let timeout = self.caller.options.connect_timeout;
        let deadline = os::now() + timeout;
        loop {
            if let Some(event) = self.verbs.get_cm_event(&self.channel).map_err(refused)? {
                return Ok(event);
            }
            if self.caller.local.until(deadline, self.mailbox.ready()).await.is_none() {
                return Err(ConnectError::TimedOut { during, after: timeout });
            }
        }
    }

    /// Returns a connection identifier with a resolved address and route.
    async fn route(&self, address: SocketAddr) -> Result<ProviderId, ConnectError> {
        let time = self.caller.options.connect_timeout.min(limits::RESOLVE_TIME);
        let id = self.resolve(address, time).await?;
        self.verbs.resolve_route(&id, milliseconds(time)).map_err(refused)?;
        self.expect(CmEventType::RouteResolved, ROUTE).await?;
        Ok(id)
    }

    /// Resolves an address, in attempts whose time limits double and sum up to `left`.
    ///
    /// Linux misses the peer's ARP reply if it arrives before the request waits for it. The request
    /// then succeeds only at its own time limit, so the first limits are short.
    async fn resolve(
        &self,
        address: SocketAddr,
        mut left: Duration,
    ) -> Result<ProviderId, ConnectError> {
        let mut time = limits::RESOLVE_TIME_MIN;
        loop {
            // If too little time would remain for another attempt, this attempt gets it, too.
            let is_last = left < 2 * time;
            let limit = milliseconds(if is_last { left } else { time });
            let id = self.verbs.resolve_addr(&self.channel, None, address, limit);
            let id = id.map_err(refused)?;
            let event = self.next(ADDRESS).await?;
            match event.event {
                CmEventType::AddrResolved => return Ok(id),
                CmEventType::AddrError if !is_last => {}
                _ => return Err(self.unexpected(&event, ADDRESS)),
            }
            left -= time;
            time *= 2;
        }
    }
}

fn milliseconds(time: Duration) -> u32 {
    time.as_millis().max(1) as u32
}

fn refused(error: VerbsError) -> ConnectError {
    ConnectError::Rdma(error.to_string())
}

/// The error of an event that ends an attempt.
fn failed(event: &CmEvent<ProviderId>, during: &'static str, after: Duration) -> ConnectError {
    const NO_DEVICE: &str = "no RDMA device of this machine reaches the address; see `rdma link`";
    match event.event {
        CmEventType::AddrError if event.status == TIMED_OUT => {
            ConnectError::TimedOut { during, after }
        }
        CmEventType::AddrError | CmEventType::RouteError => {
            ConnectError::Unreachable(NO_DEVICE.to_owned())
        }
        CmEventType::Rejected if event.status == REJECTED_NO_LISTENER => ConnectError::Refused,
        CmEventType::Rejected if event.status == REJECTED_BY_CONSUMER => {
            match rejection(&event.param.private_data) {
                Some(reason) => {
                    ConnectError::Rdma(format!("the controller rejected the connection: {reason}"))
                }
                None => ConnectError::Refused,
            }
        }
        CmEventType::Rejected => {
            let status = event.status;
            ConnectError::Rdma(format!("the peer rejected the connection, for reason {status}"))
        }
        CmEventType::Unreachable => ConnectError::TimedOut { during, after },
        CmEventType::Disconnected => ConnectError::Closed { during },
        other => ConnectError::Rdma(format!("{other:?} came before {during}")),
    }
}

impl Greeted {
    async fn connect(
        verbs: &Provider,
        address: SocketAddr,
        caller: &Caller<'_>,
    ) -> Result<Greeted, ConnectError> {
        const ANSWER: &str = "the controller's answer to the RDMA connection request";
        let channel = Arc::new(verbs.create_event_channel().map_err(refused)?);
        let mailbox = Mailbox::new(caller.local);
        let source = verbs.event_source(&channel);
        let watched = watch(caller.local.reactor(), mailbox.task(), source);
        let watched = watched.map_err(|error| ConnectError::Io(words(&error)))?;
        let mut attempt =
            Attempt { verbs, channel: channel.clone(), mailbox, caller, watch: watched };
        let id = attempt.route(address).await?;
        let device = verbs.device(&id).map_err(refused)?;
        // The queue needs one more entry than commands in flight.
        let entries = caller.sqsize_z + 1;
        let queue = QueuePair::new(verbs, &id, entries, device.max_qp_wr).map_err(refused)?;
        verbs.connect(&id, &parameters(caller, &device)).map_err(refused)?;
        let answer = attempt.expect(CmEventType::Established, ANSWER).await?;
        let granted = Granted::parse(&answer.param.private_data, entries);
        let granted = granted.and_then(|it| {
            match caller.qid == 0 && it.entries < limits::ADMIN_ENTRIES_MIN {
                true => Err(AnswerError::Entries(it.entries)),
                false => Ok(it),
            }
        });
        let granted = granted.map_err(|error| ConnectError::Rdma(error.to_string()))?;
        if granted.entries < entries {
            let most = granted.entries - 1;
            tracing::info!(%address, queue = caller.qid, "the controller grants {most} commands");
        }
        // From now on, [`keep`] receives the channel's events.
        attempt.watch.take().into_iter().for_each(|it| unwatch(caller.local.reactor(), it));
        let ends = Arc::new(Ends::default());
        let (for_keeper, keeper_verbs) = (Arc::clone(&ends), verbs.clone());
        caller.local.spawn_here(move |local| keep(local, keeper_verbs, channel, for_keeper));
        let (ends, depth) = (Kept(ends), granted.entries - 1);
        let connected = Connected { queue, ends, is_io: caller.qid > 0, depth };
        let mailbox = Mailbox::new(caller.local);
        let reactor = caller.local.reactor();
        let watched = watch(reactor, mailbox.task(), verbs.cq_source(connected.queue.cq()));
        let watch = watched.map_err(|error| ConnectError::Io(words(&error)))?;
        connected.ends.attend(reactor.waker(mailbox.task()));
        Ok(Greeted {
            local: caller.local.clone(),
            mailbox,
            watch,
            connected: Some(connected),
            timeout: caller.options.connect_timeout,
        })
    }

    /// The maximum number of commands in flight for which both ends have room.
    pub(crate) fn depth(&self) -> u16 {
        self.connected.as_ref().expect("`finish` was not called").depth
    }

    /// Releases the connection for another event loop.
    pub(crate) fn finish(mut self) -> Box<Connected> {
        Box::new(self.connected.take().expect("`finish` is called once"))
    }

    fn queue(&mut self) -> &mut QueuePair {
        &mut self.connected.as_mut().expect("`finish` was not called").queue
    }

    /// Sends a command; returns the memory of its data.
    fn send(&mut self, command: &Command, data: &[u8]) -> Result<Option<Chunk>, ConnectError> {
        let queue = self.queue();
        let length = match command.data {
            Data::None => 0,
            Data::FromController(length) | Data::ToController(length) => length,
        };
        let mut dptr = NO_DATA;
        let mut memory = None;
        if length > 0 {
            let chunk = queue.take(length as usize).map_err(refused)?;
            let chunk = chunk.expect("no other command uses memory");
            // If the controller does not fill the memory, the caller must not see old data.
            match command.data {
                Data::FromController(_) => queue.write(&chunk, &vec![0; length as usize]),
                _ => queue.write(&chunk, data),
            }
            dptr = queue.keyed(&chunk, length);
            memory = Some(chunk);
        }
        queue.send(ONE, &Sqe { dptr, ..command.sqe });
        queue.post().map_err(|error| ConnectError::Rdma(error.to_string()))?;
        Ok(memory)
    }

    async fn answer(&mut self, during: &'static str) -> Result<Cqe, ConnectError> {
        let deadline: Instant = os::now() + self.timeout;
        let mut found = Vec::new();
        loop {
            // Read this flag before polling: an answer that arrives before the connection ends
            // still counts.
            let has_left = self.connected.as_ref().is_some_and(|it| it.ends.has_left());
            let polled = self.queue().poll(&mut found);
            match found.pop() {
                Some(cqe) if cqe.cid.get() == ONE.0 && found.is_empty() => return Ok(cqe),
                Some(_) => {
                    let reason = "an answer to a command that is not in flight";
                    return Err(ConnectError::Protocol(reason));
                }
                None => {}
            }
            if has_left {
                return Err(ConnectError::Closed { during });
            }
            polled.map_err(|error| ConnectError::Rdma(error.to_string()))?;
            if self.local.until(deadline, self.mailbox.ready()).await.is_none() {
                return Err(ConnectError::TimedOut { during, after: self.timeout });
            }
        }
    }
}

/// Returns the parameters of the connection request. They let the controller READ this host's data.
fn parameters(caller: &Caller<'_>, device: &Device) -> ConnParam {
    let entries = caller.sqsize_z + 1;
    let mut private_data = vec![0; CmRequest::LEN];
    let request = CmRequest::new(caller.qid, entries, caller.sqsize_z, caller.cntlid);
    request.emit(&mut private_data);
    ConnParam {
        private_data,
        responder_resources: limits::READS.min(device.max_qp_rd_atom).max(1),
        initiator_depth: 0,
        ..ConnParam::default()
    }
}

impl Exchange for Greeted {
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        let memory = self.send(command, data)?;
        let cqe = self.answer(during).await?;
        let mut bytes = Vec::new();
        if let Some(chunk) = memory {
            if let Data::FromController(length) = command.data {
                bytes = vec![0; length as usize];
                self.queue().read(&chunk, &mut bytes);
            }
            self.queue().give(chunk);
        }
        Ok((cqe, bytes))
    }
}
