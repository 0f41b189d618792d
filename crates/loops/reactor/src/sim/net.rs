//! The network: connections as two directions of bytes on their way.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::os::{Inner as SocketKind, Socket};

use super::{Happening, WorldState, block_until, try_with_state, with_state};

/// Bytes of a direction that are on their way or not read yet, beyond which a sender waits.
const WINDOW_BYTES: usize = 256 << 10;
/// A side that hears nothing of the other's end finds out by itself after so long.
const GHOST_TIME: Duration = Duration::from_secs(120);
/// Where simulated hosts are.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 100));
const FIRST_PORT: u16 = 40_000;

/// One of the two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// That connected.
    Client,
    /// That accepted.
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

/// How the network treats everybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetFaults {
    /// The longest time that a piece of a stream takes.
    pub delay: Duration,
    /// A send is split into pieces once in so many; 0: never.
    pub split_one_in: u64,
}

impl Default for NetFaults {
    fn default() -> NetFaults {
        NetFaults { delay: Duration::from_micros(100), split_one_in: 4 }
    }
}

/// How a connection breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    /// Both sides find out soon, after what was on its way arrived.
    Reset,
    /// The client finds out at once. What it had sent reaches the server so much later, and only
    /// then does the server find out.
    Stray(Duration),
    /// One side finds out at once; the other hears nothing any more.
    HalfOpen(Side),
    /// Nothing arrives any more, and nobody is told.
    Silence,
    /// What this side sends takes so much longer, and then arrives: nothing is broken.
    Stall(Side, Duration),
}

/// A connection, to be [broken](super::World::break_connection).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    pub(super) link: usize,
    /// Where the client connected to.
    pub server: SocketAddr,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// One direction, and the end that it begins at.
#[derive(Default)]
struct Way {
    /// With the times of their arrival, which do not decrease.
    pieces: VecDeque<(u64, Piece)>,
    /// Bytes in them.
    flying_bytes: usize,
    /// Nothing arrives before.
    held_until: u64,
    /// Nothing arrives any more.
    is_lost: bool,
}

#[derive(Default)]
struct End {
    /// Arrived, to be read.
    input: VecDeque<u8>,
    /// Nothing more will arrive.
    at_end: bool,
    error: Option<ErrorKind>,
    /// Its owner let go of it.
    is_dropped: bool,
    /// Letting go of it resets the connection.
    resets: bool,
}

struct Link {
    addresses: [SocketAddr; 2],
    /// By the side that sends.
    ways: [Way; 2],
    ends: [End; 2],
    is_connected: bool,
    is_broken: bool,
}

struct Listening {
    address: SocketAddr,
    backlog: VecDeque<usize>,
    is_open: bool,
}

#[derive(Default)]
pub(super) struct Net {
    pub(super) faults: NetFaults,
    links: Vec<Link>,
    listeners: Vec<Listening>,
    unreachable: BTreeSet<SocketAddr>,
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
        self.listeners.iter_mut().find(|listener| listener.is_open && listener.address == address)
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

    fn add_link(&mut self, address: SocketAddr, is_connected: bool) -> usize {
        let link = self.net.links.len();
        let client = SocketAddr::new(HOST, FIRST_PORT.wrapping_add(link as u16));
        self.net.links.push(Link {
            addresses: [client, address],
            ways: Default::default(),
            ends: Default::default(),
            is_connected,
            is_broken: false,
        });
        link
    }

    fn connect(&mut self, address: SocketAddr) -> Stream {
        let link = self.add_link(address, false);
        if !self.net.unreachable.contains(&address) {
            let delay = self.net_delay();
            self.schedule(delay, Happening::Connect { link });
        }
        Stream::new(link, Side::Client)
    }

    pub(super) fn reach_listener(&mut self, link: usize) {
        let address = self.net.links[link].addresses[1];
        let is_wanted = !self.net.links[link].ends[0].is_dropped;
        match self.net.listener_at(address) {
            Some(listener) if is_wanted => {
                listener.backlog.push_back(link);
                self.net.links[link].is_connected = true;
            }
            _ => self.net.links[link].ends[0].error = Some(ErrorKind::ConnectionRefused),
        }
    }

    /// How many bytes were taken; none that would fit is "would block".
    pub(super) fn write(&mut self, stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
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
            self.launch(stream.link, stream.side, Piece::Bytes(piece.to_vec()));
            rest = later;
        }
        Ok(taken)
    }

    fn launch(&mut self, link: usize, side: Side, piece: Piece) {
        let delay = self.net_delay();
        let earliest = self.after(delay);
        let way = &mut self.net.links[link].ways[side as usize];
        let last = way.pieces.back().map_or(0, |(at, _)| *at);
        let at = earliest.max(last).max(way.held_until);
        if let Piece::Bytes(bytes) = &piece {
            way.flying_bytes += bytes.len();
        }
        way.pieces.push_back((at, piece));
        self.schedule_at(at, Happening::Arrive { link, side });
    }

    pub(super) fn arrive(&mut self, link: usize, side: Side) {
        let now = self.now;
        let Link { ways, ends, .. } = &mut self.net.links[link];
        let (way, end) = (&mut ways[side as usize], &mut ends[side.other() as usize]);
        if way.is_lost {
            return;
        }
        if way.held_until > now && !way.pieces.is_empty() {
            let until = way.held_until;
            return self.schedule_at(until, Happening::Arrive { link, side });
        }
        let mut is_refused = false;
        while way.pieces.front().is_some_and(|(at, _)| *at <= now) {
            match way.pieces.pop_front() {
                Some((_, Piece::Bytes(bytes))) => {
                    way.flying_bytes -= bytes.len();
                    is_refused |= end.is_dropped;
                    if !end.is_dropped {
                        end.input.extend(bytes);
                    }
                }
                _ => end.at_end = true,
            }
        }
        if is_refused {
            // Nobody is there any more who would read it.
            let delay = self.net_delay();
            self.schedule(delay, Happening::Fail { link, side });
        }
    }

    pub(super) fn fail_end(&mut self, link: usize, side: Side) {
        let end = &mut self.net.links[link].ends[side as usize];
        if !end.is_dropped {
            end.error.get_or_insert(ErrorKind::ConnectionReset);
        }
    }

    /// What arrived: bytes, nothing at the end of the stream, or "would block".
    pub(super) fn read(&mut self, stream: &Stream, into: &mut [u8]) -> io::Result<usize> {
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
        Read::read(&mut end.input, into)
    }

    /// Whether a connection is made, if that is known.
    pub(super) fn connected(&self, stream: &Stream) -> Option<io::Result<()>> {
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
        let is_reset = end.resets || !end.input.is_empty();
        end.input.clear();
        if !found.is_connected || found.is_broken {
            return;
        }
        if !is_reset {
            return self.launch(link, side, Piece::End);
        }
        // Not before what is on its way.
        let last = found.ways[side as usize].pieces.back().map_or(0, |(at, _)| *at);
        let delay = self.net_delay();
        let at = self.after(delay).max(last);
        self.schedule_at(at, Happening::Fail { link, side: side.other() });
    }

    /// Makes a connection request that is under way the listener's.
    pub(super) fn accept(&mut self, listener: &Listener) -> Option<(Stream, SocketAddr)> {
        let link = self.net.listeners[listener.0].backlog.pop_front()?;
        Some((Stream::new(link, Side::Server), self.net.links[link].addresses[0]))
    }

    pub(super) fn break_link(&mut self, link: usize, how: Break) {
        let (client, server) = (Side::Client, Side::Server);
        let fail = |side| Happening::Fail { link, side };
        if let Break::Stall(side, time) = how {
            self.net.links[link].ways[side as usize].held_until = self.after(time);
            return;
        }
        self.net.links[link].is_broken = true;
        match how {
            Break::Reset => {
                for side in [client, server] {
                    let delay = self.net_delay();
                    self.schedule(delay, fail(side));
                }
            }
            Break::Stray(time) => {
                self.schedule(Duration::ZERO, fail(client));
                self.net.links[link].ways[server as usize].is_lost = true;
                self.net.links[link].ways[client as usize].held_until = self.after(time);
                self.schedule(time, Happening::Arrive { link, side: client });
                self.schedule(time + Duration::from_millis(1), fail(server));
            }
            Break::HalfOpen(_) | Break::Silence => {
                self.net.links[link].ways.iter_mut().for_each(|way| way.is_lost = true);
                for side in [client, server] {
                    let knows = how == Break::HalfOpen(side);
                    self.schedule(if knows { Duration::ZERO } else { GHOST_TIME }, fail(side));
                }
            }
            Break::Stall(..) => unreachable!("it is not broken"),
        }
    }

    pub(super) fn kill(&mut self, address: SocketAddr) {
        for listener in &mut self.net.listeners {
            listener.is_open &= listener.address != address;
        }
        for link in 0..self.net.links.len() {
            let found = &mut self.net.links[link];
            if found.addresses[1] != address || found.is_over() {
                continue;
            }
            found.is_broken = true;
            found.ways[1].is_lost = true;
            found.ways[0].is_lost = true;
            found.ends[1].error.get_or_insert(ErrorKind::ConnectionReset);
            let delay = self.net_delay();
            self.schedule(delay, Happening::Fail { link, side: Side::Client });
        }
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
        block_until(crate::os::now().checked_add(timeout), || {
            result = with_state(|state| state.connected(&stream));
            result.is_some()
        });
        result.unwrap_or(Err(ErrorKind::TimedOut.into())).map(|()| stream)
    }

    /// Both ends of a connection, the client's first.
    #[must_use]
    pub fn pair() -> (Socket, Socket) {
        with_state(|state| {
            let link = state.add_link(SocketAddr::new(HOST, 1), true);
            let socket = |side| Socket(SocketKind::Sim(Stream::new(link, side)));
            (socket(Side::Client), socket(Side::Server))
        })
    }

    /// Asks for a connection, without waiting for the answer.
    pub(super) fn start(address: SocketAddr) -> Stream {
        with_state(|state| state.connect(address))
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.read_timeout.lock().expect("nobody panics with it") = timeout;
        Ok(())
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.write_timeout.lock().expect("nobody panics with it") = timeout;
        Ok(())
    }

    pub(crate) fn reset_on_close(&self) {
        with_state(|state| state.net.links[self.link].ends[self.side as usize].resets = true);
    }

    #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(with_state(|state| state.net.links[self.link].addresses[self.side as usize]))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(with_state(|state| state.net.links[self.link].addresses[self.side.other() as usize]))
    }

    /// Repeats a call until it would not block.
    fn wait(
        &self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut WorldState, &Stream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = timeout.and_then(|timeout| crate::os::now().checked_add(timeout));
        let mut result = Err(ErrorKind::TimedOut.into());
        block_until(deadline, || {
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
        let timeout = *self.read_timeout.lock().expect("nobody panics with it");
        self.wait(timeout, |state, stream| state.read(stream, into))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let timeout = *self.write_timeout.lock().expect("nobody panics with it");
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
            let backlog = VecDeque::new();
            state.net.listeners.push(Listening { address, backlog, is_open: true });
            Ok(Listener(state.net.listeners.len() - 1))
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        with_state(|state| state.net.listeners[self.0].address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        try_with_state(|state| {
            state.net.listeners[self.0].is_open = false;
            let backlog = std::mem::take(&mut state.net.listeners[self.0].backlog);
            for link in backlog {
                state.schedule(Duration::ZERO, Happening::Fail { link, side: Side::Client });
            }
        });
    }
}
