//! The server of the [floor](super).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::frame::{FloorRequest, REQUEST_BYTES, emit_answer};
use super::pin::pin;
use super::spin::WaitLimit;
use super::stream::{Cutter, Stream};
use crate::limits::{
    FLOOR_IDLE_LIMIT, FLOOR_MAX_BYTES, FLOOR_MAX_CONNECTIONS, FLOOR_MAX_UNSENT, FLOOR_RECEIVE_BYTES,
};

/// The prefix of the names of server threads. A number follows.
pub const SERVER_THREAD_PREFIX: &str = "fb-floor-s";

/// A server that answers the clients of [`drive`](super::drive()) until it is dropped.
///
/// The server disconnects any other client at its first invalid bytes, or after a minute without
/// data.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` with this many threads. The threads are pinned to `cpus` in turn, or
    /// not pinned if `cpus` is empty.
    ///
    /// # Errors
    ///
    /// The server cannot listen at the address, or cannot start its threads.
    pub fn start(
        address: impl ToSocketAddrs,
        threads: usize,
        cpus: &[usize],
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let mut server =
            Server { address: listener.local_addr()?, stop: Arc::default(), threads: Vec::new() };
        let mut workers = Vec::new();
        for index in 0..threads.max(1) {
            let (sender, arrivals) = mpsc::channel();
            let cpu = cpus.get(index % cpus.len().max(1)).copied();
            let stop = Arc::clone(&server.stop);
            let body = move || serve(cpu, &arrivals, &stop);
            server.spawn(format!("{SERVER_THREAD_PREFIX}{index}"), body)?;
            workers.push(sender);
        }
        let stop = Arc::clone(&server.stop);
        server.spawn("fb-floor-accept".to_owned(), move || accept(&listener, &workers, &stop))?;
        Ok(server)
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wake the accepting thread, which then stops the other threads.
        let mut address = self.address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Distributes connections to the threads in turn.
fn accept(listener: &TcpListener, workers: &[Sender<TcpStream>], stop: &AtomicBool) {
    for index in (0..workers.len()).cycle() {
        let accepted = listener.accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((socket, _)) => {
                if workers[index].send(socket).is_err() {
                    return; // the thread has panicked
                }
            }
            // The connection is closed already, or there are too many connections. The next accept
            // may succeed.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The destination of all writes and the source of all reads, in place of a disk.
struct Memory {
    received: Vec<u8>,
    data: Vec<u8>,
}

/// A connection and its state.
struct Peer {
    stream: Stream,
    requests: Cutter<FloorRequest, REQUEST_BYTES>,
    heard: Instant,
}

/// The body of a server thread. It sleeps while it has no connection, and polls otherwise.
fn serve(cpu: Option<usize>, arrivals: &Receiver<TcpStream>, stop: &AtomicBool) {
    pin(cpu);
    let mut memory = Memory {
        received: vec![0; FLOOR_RECEIVE_BYTES],
        data: vec![0x5a; FLOOR_MAX_BYTES as usize],
    };
    let mut peers: Vec<Peer> = Vec::new();
    let mut patience = WaitLimit::new();
    while !stop.load(Ordering::Relaxed) {
        let arrival = match peers.is_empty() {
            true => match arrivals.recv() {
                Ok(socket) => Some(socket),
                Err(_) => return,
            },
            false => patience.now_and_then().then(|| arrivals.try_recv().ok()).flatten(),
        };
        if let Some(peer) = arrival.and_then(Peer::new)
            && peers.len() < FLOOR_MAX_CONNECTIONS
        {
            peers.push(peer);
        }
        let mut received = 0;
        peers.retain_mut(|peer| match peer.answer(&mut memory, patience.now()) {
            Ok(bytes) => {
                received += bytes;
                true
            }
            Err(_) => false,
        });
        patience.after_a_round(received > 0);
    }
}

impl Peer {
    fn new(socket: TcpStream) -> Option<Peer> {
        let stream = Stream::new(socket).ok()?;
        Some(Peer { stream, requests: Cutter::new(), heard: Instant::now() })
    }

    /// Receives the available bytes, and answers all requests with one send. Returns the number of
    /// received bytes.
    fn answer(&mut self, memory: &mut Memory, now: Instant) -> io::Result<usize> {
        if self.stream.unsent() > FLOOR_MAX_UNSENT {
            self.stream.flush(&memory.data)?; // the client first reads its answers
            return self.check_silence(now);
        }
        let received = self.stream.receive(&mut memory.received)?;
        if received == 0 {
            if self.stream.unsent() > 0 {
                self.stream.flush(&memory.data)?;
            }
            return self.check_silence(now);
        }
        self.heard = now;
        let Peer { stream, requests, .. } = self;
        let parse = |head: &[u8]| {
            let request = FloorRequest::parse(head, FLOOR_MAX_BYTES)?;
            Some((request, request.data_bytes()))
        };
        requests.feed(&memory.received[..received], parse, |request| {
            let bytes = request.answer_bytes();
            stream.push(&emit_answer(bytes), 0, bytes);
        })?;
        stream.flush(&memory.data)?;
        Ok(received)
    }

    fn check_silence(&self, now: Instant) -> io::Result<usize> {
        if now.saturating_duration_since(self.heard) > FLOOR_IDLE_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(0)
    }
}
