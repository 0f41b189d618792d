//! The simulated network. A connection is two directions of bytes in flight.

mod breaks;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use breaks::Break;
use breaks::next_try;

use super::serving::{Service, Serving};
use super::threads::WaitsFor;
use super::{Happening, WorldState, block_until, local_now, try_with_state, with_state};

/// The maximum number of bytes in flight or unread in one direction. At this limit, the sender
/// waits.
const WINDOW_BYTES: usize = 256 << 10;
/// The address of machine 0, on which threads run by default.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// The base of the addresses of other machines: the machine number is added to it.
const MACHINES: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
const FIRST_PORT: u16 = 40_000;
/// A client repeats an unanswered connection request after this time. The time doubles after each
/// attempt.
const SYN_TIME: Duration = Duration::from_secs(1);
/// A sender retransmits lost data after this time. The time doubles after each attempt.
const RETRANSMIT_TIME: Duration = Duration::from_millis(200);

/// One of the two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// The faults of the whole network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetFaults {
    /// The longest time that a piece of a stream may be in flight.
    pub delay: Duration,
    /// The network splits the data of one send in `split_one_in` into pieces; 0: of no send.
    pub split_one_in: u64,
    /// The faults of new connections.
    pub early: EarlyFaults,
}

/// Faults at a random byte near the start of a connection. The byte may be inside a message or
/// between two messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EarlyFaults {
    /// One connection in `cut_one_in` breaks at the byte; 0: no connection.
    pub cut_one_in: u64,
    /// One connection in `damage_one_in` has a bit of this byte flipped; 0: no connection.
    pub damage_one_in: u64,
    /// The faulty byte is one of the first `bytes` bytes that the client or the server sends.
    pub bytes: u64,
}

impl Default for NetFaults {
    fn default() -> NetFaults {
        let early = EarlyFaults::default();
        NetFaults { delay: Duration::from_micros(100), split_one_in: 4, early }
    }
}

/// A connection that a test can [break](super::World::break_connection).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    pub(super) link: usize,
    /// The address to which the client connected.
    pub server: SocketAddr,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// A piece of a stream that is in flight.
#[derive(Debug)]
struct Flying {
    /// The time at which the piece arrives or, if `is_served`, at which the receiver has processed
    /// it. Earlier pieces of the stream have no later time.
    at: u64,
    /// Whether the piece has arrived, so that `at` includes the receiver's processing time.
    is_served: bool,
    piece: Piece,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    pieces: VecDeque<Flying>,
    flying_bytes: usize,
    /// Until this time, no data arrives.
    held_until: u64,
    /// Whether data that is sent in this direction is lost.
    is_lost: bool,
    /// The number of bytes sent so far.
    sent_bytes: u64,
    /// The position of the byte at which the connection will break, and how it will break.
    cut: Option<(u64, Break)>,
    /// Whether the connection has broken at that byte. Later data is dropped.
    is_cut: bool,
    /// The byte in which a bit flips.
    damaged: Option<u64>,
}

#[derive(Default)]
struct End {
    /// The bytes that have arrived and are unread.
    input: VecDeque<u8>,
    /// Whether no more bytes will arrive.
    at_end: bool,
    error: Option<ErrorKind>,
    /// Whether the program has dropped this end.
    is_dropped: bool,
    /// Whether dropping this end resets the connection.
    resets: bool,
    /// The engine (event loop) that owns this end, and the engine's number for the stream.
    owner: Option<(u64, u64)>,
}

struct Link {
    addresses: [SocketAddr; 2],
    machine: u32,
    /// The number of unanswered connection requests.
    requests: u32,
    /// Whether the server has processed the connection request.
    is_served: bool,
    /// The two directions, indexed by the sending side.
    ways: [Way; 2],
    ends: [End; 2],
    is_connected: bool,
    is_broken: bool,
}

struct Listening {
    address: SocketAddr,
    backlog: VecDeque<usize>,
    is_open: bool,
    /// The engine that accepts connections from this listener.
    engine: Option<u64>,
}

#[derive(Default)]
pub(super) struct Net {
    pub(super) faults: NetFaults,
    links: Vec<Link>,
    /// The connections of each server, so that a lookup need not search all connections.
    links_to: HashMap<SocketAddr, Vec<usize>>,
    listeners: Vec<Listening>,
    /// The number of open connections of each server.
    open: HashMap<SocketAddr, usize>,
    unreachable: BTreeSet<SocketAddr>,
    /// The number of new connections that [`EarlyFaults`] broke or damaged.
    pub(super) early: u64,
    serving: HashMap<SocketAddr, Serving>,
    /// The machines that are disconnected from the network, and the time until which they are.
    cut: BTreeMap<u32, u64>,
    /// The sides whose packets are lost, by server address and side, and the time until which they
    /// are lost.
    dark: BTreeMap<(SocketAddr, Side), u64>,
    /// The machines whose process was killed.
    gone: BTreeSet<u32>,
}

impl Net {
    pub(super) fn set_reachable(&mut self, address: SocketAddr, reachable: bool) {
        match reachable {
            true => self.unreachable.remove(&address),
            false => self.unreachable.insert(address),
        };
    }

    pub(super) fn connections(&self) -> Vec<Connection> {
        let links = self.links.iter().enumerate();
        links
            .filter(|(_, link)| link.is_connected && !link.is_broken && !link.is_over())
            .map(|(index, link)| Connection { link: index, server: link.addresses[1] })
            .collect()
    }

    fn listener_at(&mut self, address: SocketAddr) -> Option<&mut Listening> {
        self.open.get(&address).map(|&index| &mut self.listeners[index])
    }

    fn close_listener(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        if std::mem::replace(&mut listener.is_open, false) {
            self.open.remove(&listener.address);
        }
    }

    pub(super) fn set_service(&mut self, address: SocketAddr, service: Service) {
        self.serving.entry(address).or_default().service = service;
    }

    pub(super) fn overflows(&self, address: SocketAddr) -> u64 {
        self.serving.get(&address).map_or(0, |serving| serving.overflows)
    }

    /// Returns the time at which a machine will have processed data that arrives now. The machine
    /// never waits for data that is still in flight.
    fn serve(&mut self, address: SocketAddr, now: u64, is_accept: bool) -> u64 {
        self.serving.get_mut(&address).map_or(now, |serving| serving.serve(now, is_accept))
    }
}

impl Link {
    fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_dropped || end.error.is_some())
    }
}

impl WorldState {
    fn net_delay(&mut self) -> Duration {
        let longest = self.net.faults.delay;
        self.random.time(longest)
    }

    fn add_link(&mut self, address: SocketAddr, machine: u32, is_connected: bool) -> usize {
        let link = self.net.links.len();
        let ip = match machine {
            0 => HOST,
            machine => Ipv4Addr::from_bits(MACHINES.to_bits() + machine),
        };
        let client = SocketAddr::new(ip.into(), FIRST_PORT.wrapping_add(link as u16));
        self.net.links_to.entry(address).or_default().push(link);
        self.net.links.push(Link {
            addresses: [client, address],
            machine,
            requests: 0,
            is_served: false,
            ways: Default::default(),
            ends: Default::default(),
            is_connected,
            is_broken: false,
        });
        link
    }

    fn connect(&mut self, address: SocketAddr, machine: u32) -> Stream {
        let link = self.add_link(address, machine, false);
        if self.net.gone.contains(&machine) {
            self.net.links[link].ends[0].error = Some(ErrorKind::NetworkUnreachable);
            return Stream::new(link, Side::Client);
        }
        self.doom(link);
        if !self.net.unreachable.contains(&address) {
            let delay = self.net_delay();
            // The client retries until neither the request nor the answer is lost.
            let silent = [Side::Client, Side::Server].map(|side| self.silent_until(link, side));
            let at = match silent.into_iter().flatten().max() {
                Some(until) => next_try(self.now, SYN_TIME, until) + delay.as_nanos() as u64,
                None => self.after(delay),
            };
            self.schedule_at(at, Happening::Connect { link });
        }
        Stream::new(link, Side::Client)
    }

    /// Chooses whether and how a new connection will fail.
    fn doom(&mut self, link: usize) {
        let EarlyFaults { cut_one_in, damage_one_in, bytes } = self.net.faults.early;
        if self.random.one_in(cut_one_in) {
            let at = self.random.below(bytes);
            let how = if self.random.one_in(2) { Break::Reset } else { Break::Silence };
            let side = self.random.index(2);
            self.net.links[link].ways[side].cut = Some((at, how));
        }
        if self.random.one_in(damage_one_in) {
            let at = self.random.below(bytes);
            let side = self.random.index(2);
            self.net.links[link].ways[side].damaged = Some(at);
        }
    }

    /// Applies the connection's chosen faults to a piece. Returns the bytes to send. May break the
    /// connection.
    fn spoil(&mut self, link: usize, side: Side, piece: &[u8]) -> Vec<u8> {
        let Net { links, early, .. } = &mut self.net;
        let way = &mut links[link].ways[side as usize];
        if way.is_cut {
            return Vec::new();
        }
        let begin = way.sent_bytes;
        way.sent_bytes += piece.len() as u64;
        let end = way.sent_bytes;
        let mut bytes = piece.to_vec();
        if let Some(at) = way.damaged.take_if(|at| *at < end) {
            bytes[(at - begin) as usize] ^= 1 << (at % 8);
            *early += 1;
        }
        if let Some((at, how)) = way.cut.take_if(|(at, _)| *at < end) {
            bytes.truncate((at - begin) as usize);
            way.is_cut = true;
            *early += 1;
            if !links[link].is_broken {
                self.break_link(link, how);
            }
        }
        bytes
    }

    /// Sets the engine that owns an end, and the engine's number for the stream. `None`: no owner.
    pub(crate) fn set_owner(&mut self, stream: &Stream, owner: Option<(u64, u64)>) {
        self.net.links[stream.link].ends[stream.side as usize].owner = owner;
    }

    pub(crate) fn set_accepting(&mut self, listener: &Listener, engine: u64) {
        self.net.listeners[listener.0].engine = Some(engine);
        self.wake_engine(engine);
    }

    fn wake_end(&mut self, link: usize, side: Side) {
        if let Some(owner) = self.net.links[link].ends[side as usize].owner {
            self.wake_stream(owner);
        }
    }

    pub(super) fn reach_listener(&mut self, link: usize) {
        let address = self.net.links[link].addresses[1];
        if !std::mem::replace(&mut self.net.links[link].is_served, true) {
            let at = self.net.serve(address, self.now, true);
            if at > self.now {
                return self.schedule_at(at, Happening::Connect { link });
            }
        }
        let is_wanted = !self.net.links[link].ends[0].is_dropped;
        let most = self.net.serving.get(&address).map_or(usize::MAX, |it| it.service.backlog);
        match self.net.listener_at(address) {
            Some(listener) if is_wanted && listener.backlog.len() >= most => {
                return self.ask_again(link, address);
            }
            Some(listener) if is_wanted => {
                listener.backlog.push_back(link);
                let engine = listener.engine;
                self.net.links[link].is_connected = true;
                engine.into_iter().for_each(|engine| self.wake_engine(engine));
            }
            _ => self.net.links[link].ends[0].error = Some(ErrorKind::ConnectionRefused),
        }
        self.wake_end(link, Side::Client);
    }

    /// Sends an unanswered connection request again.
    fn ask_again(&mut self, link: usize, address: SocketAddr) {
        if let Some(serving) = self.net.serving.get_mut(&address) {
            serving.overflows += 1;
        }
        let requests = &mut self.net.links[link].requests;
        let pause = SYN_TIME * (1 << (*requests).min(5));
        *requests += 1;
        self.schedule(pause, Happening::Connect { link });
    }

    /// Returns the number of bytes that the network accepted, or "would block" if it has no room.
    pub(crate) fn write(&mut self, stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
        let (side, other) = (stream.side as usize, stream.side.other() as usize);
        let link = &self.net.links[stream.link];
        if let Some(error) = link.ends[side].error {
            return Err(error.into());
        }
        if !link.is_connected {
            return Err(ErrorKind::NotConnected.into());
        }
        let held = link.ways[side].flying_bytes + link.ends[other].input.len();
        let mut rest = &bytes[..bytes.len().min(WINDOW_BYTES.saturating_sub(held))];
        if rest.is_empty() && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = rest.len();
        self.note_bytes(rest);
        while !rest.is_empty() {
            let is_split = self.random.one_in(self.net.faults.split_one_in);
            let length = match is_split {
                true if self.random.one_in(3) => 1,
                true => 1 + self.random.below(rest.len() as u64) as usize,
                false => rest.len(),
            };
            let (piece, later) = rest.split_at(length);
            let bytes = self.spoil(stream.link, stream.side, piece);
            self.launch(stream.link, stream.side, Piece::Bytes(bytes));
            rest = later;
        }
        Ok(taken)
    }

    fn launch(&mut self, link: usize, side: Side, piece: Piece) {
        let delay = self.net_delay();
        let mut earliest = self.after(delay);
        if let Some(until) = self.silent_until(link, side) {
            earliest = earliest.max(next_try(self.now, RETRANSMIT_TIME, until));
        }
        let way = &mut self.net.links[link].ways[side as usize];
        let last = way.pieces.back().map_or(0, |last| last.at);
        let at = earliest.max(last).max(way.held_until);
        if let Piece::Bytes(bytes) = &piece {
            way.flying_bytes += bytes.len();
        }
        way.pieces.push_back(Flying { at, is_served: false, piece });
        self.schedule_at(at, Happening::Arrive { link, side });
    }

    pub(super) fn arrive(&mut self, link: usize, side: Side) {
        let now = self.now;
        let way = &mut self.net.links[link].ways[side as usize];
        if way.is_lost {
            return;
        }
        if way.held_until > now && !way.pieces.is_empty() {
            let until = way.held_until;
            return self.schedule_at(until, Happening::Arrive { link, side });
        }
        if side == Side::Client {
            self.serve_pieces(link);
        }
        let Link { ways, ends, .. } = &mut self.net.links[link];
        let (way, end) = (&mut ways[side as usize], &mut ends[side.other() as usize]);
        let mut is_refused = false;
        while let Some(flying) = way.pieces.pop_front_if(|flying| flying.at <= now) {
            match flying.piece {
                Piece::Bytes(bytes) => {
                    way.flying_bytes -= bytes.len();
                    is_refused |= end.is_dropped;
                    if !end.is_dropped {
                        end.input.extend(bytes);
                    }
                }
                Piece::End => end.at_end = true,
            }
        }
        if is_refused {
            // The reader has dropped its end, so the sender gets a reset.
            self.reset(link, side, 0);
        }
        self.wake_end(link, side.other());
        // The window has room again, so the sender may send more.
        self.wake_end(link, side);
    }

    /// Delays pieces that have arrived until the server's simulated processor has processed them,
    /// one after the other.
    fn serve_pieces(&mut self, link: usize) {
        let server = self.net.links[link].addresses[1];
        if !self.net.serving.contains_key(&server) {
            return;
        }
        let mut way = std::mem::take(&mut self.net.links[link].ways[Side::Client as usize]);
        let mut last = 0;
        for flying in way.pieces.iter_mut() {
            if !flying.is_served && flying.at <= self.now {
                flying.is_served = true;
                flying.at = self.net.serve(server, self.now, false);
                if flying.at > self.now {
                    self.schedule_at(flying.at, Happening::Arrive { link, side: Side::Client });
                }
            }
            // The pieces must arrive in the order of sending.
            flying.at = flying.at.max(last);
            last = flying.at;
        }
        self.net.links[link].ways[Side::Client as usize] = way;
    }

    pub(super) fn fail_end(&mut self, link: usize, side: Side) {
        let end = &mut self.net.links[link].ends[side as usize];
        if !end.is_dropped {
            end.error.get_or_insert(ErrorKind::ConnectionReset);
        }
        self.wake_end(link, side);
    }

    /// Returns bytes that have arrived, or none at the end of the stream, or "would block".
    pub(crate) fn read(&mut self, stream: &Stream, into: &mut [u8]) -> io::Result<usize> {
        let link = &mut self.net.links[stream.link];
        let end = &mut link.ends[stream.side as usize];
        if end.input.is_empty() {
            return match end.error {
                Some(error) => Err(error.into()),
                None if end.at_end => Ok(0),
                None if !link.is_connected => Err(ErrorKind::NotConnected.into()),
                None => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let count = Read::read(&mut end.input, into)?;
        // Wake the reader if bytes remain, and the sender because the window has room.
        self.wake_end(stream.link, stream.side);
        self.wake_end(stream.link, stream.side.other());
        Ok(count)
    }

    /// Returns whether the connection is established; `None`: not known yet.
    pub(crate) fn connected(&self, stream: &Stream) -> Option<io::Result<()>> {
        let link = &self.net.links[stream.link];
        match link.ends[0].error {
            Some(error) => Some(Err(error.into())),
            None => link.is_connected.then_some(Ok(())),
        }
    }

    fn drop_end(&mut self, link: usize, side: Side) {
        let found = &mut self.net.links[link];
        let end = &mut found.ends[side as usize];
        end.is_dropped = true;
        end.owner = None;
        let is_reset = end.resets || !end.input.is_empty();
        end.input = VecDeque::new();
        if !found.is_connected || found.is_broken {
            return;
        }
        if !is_reset {
            return self.launch(link, side, Piece::End);
        }
        // The reset arrives after the data in flight.
        let last = found.ways[side as usize].pieces.back().map_or(0, |last| last.at);
        self.reset(link, side.other(), last);
    }

    /// Reports a reset to one side. The reset arrives at `earliest` or later, and not while that
    /// side's machine is disconnected.
    fn reset(&mut self, link: usize, side: Side, earliest: u64) {
        let delay = self.net_delay();
        let silent = self.silent_until(link, side.other());
        let at = silent.map_or(self.now, |until| next_try(self.now, RETRANSMIT_TIME, until));
        let at = at.saturating_add(delay.as_nanos() as u64).max(earliest);
        self.schedule_at(at, Happening::Fail { link, side });
    }

    /// Takes the next connection request from a listener.
    pub(crate) fn accept(&mut self, listener: &Listener) -> Option<(Stream, SocketAddr)> {
        let link = self.net.listeners[listener.0].backlog.pop_front()?;
        Some((Stream::new(link, Side::Server), self.net.links[link].addresses[0]))
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Stream {
    link: usize,
    side: Side,
    read_timeout: std::sync::Mutex<Option<Duration>>,
    write_timeout: std::sync::Mutex<Option<Duration>>,
}

impl Stream {
    fn new(link: usize, side: Side) -> Stream {
        Stream { link, side, read_timeout: Default::default(), write_timeout: Default::default() }
    }

    pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Stream> {
        let stream = Stream::start(address);
        let mut result = None;
        block_until(local_now().checked_add(timeout), WaitsFor::Anybody, || {
            result = with_state(|state| state.connected(&stream));
            result.is_some()
        });
        result.unwrap_or(Err(ErrorKind::TimedOut.into())).map(|()| stream)
    }

    /// Returns both ends of a connection: the client's end, then the server's end.
    pub(crate) fn pair() -> (Stream, Stream) {
        with_state(|state| {
            let link = state.add_link(SocketAddr::new(HOST.into(), 1), 0, true);
            (Stream::new(link, Side::Client), Stream::new(link, Side::Server))
        })
    }

    /// Sends a connection request, without waiting for the answer.
    pub(crate) fn start(address: SocketAddr) -> Stream {
        let machine = super::machine();
        with_state(|state| state.connect(address, machine))
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.read_timeout.lock().expect("no holder panics") = timeout;
        Ok(())
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.write_timeout.lock().expect("no holder panics") = timeout;
        Ok(())
    }

    pub(crate) fn reset_on_close(&self) {
        with_state(|state| state.net.links[self.link].ends[self.side as usize].resets = true);
    }

    #[allow(clippy::unnecessary_wraps, reason = "the signature of the system's call")]
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(with_state(|state| state.net.links[self.link].addresses[self.side as usize]))
    }

    #[allow(clippy::unnecessary_wraps, reason = "the signature of the system's call")]
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(with_state(|state| state.net.links[self.link].addresses[self.side.other() as usize]))
    }

    /// Repeats a call until the call would not block.
    fn wait(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut WorldState, &Stream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = timeout.and_then(|timeout| local_now().checked_add(timeout));
        let mut result = Err(ErrorKind::TimedOut.into());
        block_until(deadline, WaitsFor::Anybody, || {
            match with_state(|state| call(state, self)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                other => result = other,
            }
            true
        });
        result
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let timeout = *self.read_timeout.lock().expect("no holder panics");
        self.wait(timeout, |state, stream| state.read(stream, into))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let timeout = *self.write_timeout.lock().expect("no holder panics");
        self.wait(timeout, |state, stream| state.write(stream, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        try_with_state(|state| state.drop_end(self.link, self.side));
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener(usize);

impl Listener {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Listener> {
        with_state(|state| {
            if state.net.listener_at(address).is_some() {
                return Err(ErrorKind::AddrInUse.into());
            }
            let (backlog, index) = (VecDeque::new(), state.net.listeners.len());
            state.net.listeners.push(Listening { address, backlog, is_open: true, engine: None });
            state.net.open.insert(address, index);
            Ok(Listener(index))
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        with_state(|state| state.net.listeners[self.0].address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        try_with_state(|state| {
            state.net.close_listener(self.0);
            let backlog = std::mem::take(&mut state.net.listeners[self.0].backlog);
            for link in backlog {
                state.schedule(Duration::ZERO, Happening::Fail { link, side: Side::Client });
            }
        });
    }
}
