//! A proxy for TCP connections, which a test can cut and stall.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

#[derive(Default)]
struct ProxyState {
    /// Whether the proxy closes new connections at once.
    down: AtomicBool,
    /// Whether the proxy carries no data, without closing connections.
    stalled: AtomicBool,
    /// The proxy carries no data on connections with a lower number than this.
    stalled_before: AtomicU64,
    made: AtomicU64,
    delay_us: AtomicU64,
    /// If set, the proxy closes a connection instead of forwarding bytes that this function
    /// accepts.
    ends_before: OnceLock<fn(&[u8]) -> bool>,
    /// The number of bytes carried in both directions.
    carried: AtomicUsize,
    stop: AtomicBool,
    /// Both sockets of every connection.
    streams: Mutex<Vec<(TcpStream, TcpStream)>>,
}

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<ProxyState>,
}

impl Proxy {
    pub fn new(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(host) = stream else { continue };
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                if !shared.down.load(Ordering::SeqCst) {
                    shared.join(host, to);
                }
            }
        });
        Proxy { address, state }
    }

    /// Closes every connection.
    pub fn cut(&self) {
        for (host, target) in self.state.streams.lock().unwrap().drain(..) {
            let _ = host.shutdown(Shutdown::Both);
            let _ = target.shutdown(Shutdown::Both);
        }
    }

    /// Closes every connection, and refuses new ones until [`up`](Self::up).
    pub fn down(&self) {
        self.state.down.store(true, Ordering::SeqCst);
        self.cut();
    }

    pub fn up(&self) {
        self.state.down.store(false, Ordering::SeqCst);
        self.state.stalled.store(false, Ordering::SeqCst);
        self.state.stalled_before.store(0, Ordering::SeqCst);
    }

    /// Closes the current connections to the hosts, but not to the target, and delivers their data
    /// to the target only after [`up`](Self::up). New connections work.
    pub fn detain(&self) {
        let made = self.state.made.load(Ordering::SeqCst);
        self.state.stalled_before.store(made, Ordering::SeqCst);
        for (host, _) in self.state.streams.lock().unwrap().drain(..) {
            let _ = host.shutdown(Shutdown::Both);
        }
    }

    /// Closes new connections at once, until [`admit`](Self::admit).
    pub fn refuse(&self) {
        self.state.down.store(true, Ordering::SeqCst);
    }

    /// Admits new connections again. The current connections do not change.
    pub fn admit(&self) {
        self.state.down.store(false, Ordering::SeqCst);
    }

    /// Stops all data in both directions, without closing connections.
    pub fn stall(&self) {
        self.state.stalled.store(true, Ordering::SeqCst);
    }

    /// Ends the effect of [`stall`](Self::stall), but not of `detain`.
    pub fn resume(&self) {
        self.state.stalled.store(false, Ordering::SeqCst);
    }

    /// Closes a connection instead of forwarding bytes that `are_last` accepts, in either
    /// direction.
    pub fn end_before(&self, are_last: fn(&[u8]) -> bool) {
        self.state.ends_before.set(are_last).expect("a test calls this once");
    }

    /// Returns the number of bytes carried so far, in both directions.
    pub fn carried(&self) -> usize {
        self.state.carried.load(Ordering::SeqCst)
    }

    pub fn delay(&self, delay: Duration) {
        self.state.delay_us.store(delay.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.up();
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

impl ProxyState {
    fn wait_while_stalled(&self, number: u64) {
        let is_stalled = || {
            let before = self.stalled_before.load(Ordering::SeqCst);
            self.stalled.load(Ordering::SeqCst) || number < before
        };
        while is_stalled() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn join(self: &Arc<Self>, host: TcpStream, to: SocketAddr) {
        let Ok(target) = TcpStream::connect(to) else { return };
        host.set_nodelay(true).unwrap();
        target.set_nodelay(true).unwrap();
        let pair = (host.try_clone().unwrap(), target.try_clone().unwrap());
        self.streams.lock().unwrap().push(pair);
        let number = self.made.fetch_add(1, Ordering::SeqCst);
        for (mut from, mut to) in
            [(host.try_clone().unwrap(), target.try_clone().unwrap()), (target, host)]
        {
            let state = Arc::clone(self);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    let delay = state.delay_us.load(Ordering::SeqCst);
                    if delay > 0 {
                        std::thread::sleep(Duration::from_micros(delay));
                    }
                    state.wait_while_stalled(number);
                    let bytes = &buffer[..length];
                    let is_end = state.ends_before.get().is_some_and(|are_last| are_last(bytes));
                    if is_end || to.write_all(bytes).is_err() {
                        break;
                    }
                    state.carried.fetch_add(length, Ordering::SeqCst);
                }
                // Forward the close only after the stalled data.
                state.wait_while_stalled(number);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }
}
