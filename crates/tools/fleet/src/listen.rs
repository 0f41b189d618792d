//! Agents that listen, for controllers with a token.
//!
//! Nothing is encrypted: who can see the packets sees the token. So an agent listens on the
//! loopback, at the end of a tunnel, unless it is told that the network is private. Whoever has the
//! token may have it share memory and the drives that it was [allowed](Allowed), connect wherever
//! it can, and read and write all of these.

use crate::agent;
use crate::limits::{CONTROLLERS, FIRST_LINE_BYTES, HELLO_TIME, REFUSAL_TIME};
use crate::lines;
use crate::memory::Memory;
use crate::message::Say;
use crate::peer::{Secret, notice_its_end};
use crate::storage::Allowed;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// An agent that listens, on threads of its own, for as long as the process lives.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
}

impl Listener {
    /// Listens there; port 0 takes a free one. Who has the secret may have these drives shared, and
    /// all of them together so much memory held.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn start(
        address: SocketAddr,
        secret: Secret,
        allowed: Allowed,
        memory: Memory,
    ) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (secret, present) = (Arc::new(secret), Arc::new(AtomicUsize::new(0)));
        let accept = move || {
            for stream in listener.incoming() {
                // Out of descriptors, for example: the next one may do better.
                let Ok(stream) = stream else { continue };
                if present.fetch_add(1, Ordering::AcqRel) >= CONTROLLERS {
                    present.fetch_sub(1, Ordering::AcqRel);
                    refuse(&stream);
                    continue;
                }
                let (secret, presence) = (Arc::clone(&secret), Presence(Arc::clone(&present)));
                let (allowed, memory) = (allowed.clone(), memory.clone());
                let body = move || {
                    let _presence = presence;
                    // Whoever it was is gone, and has been told why if that was possible.
                    let _ = meet(&stream, &secret, allowed, memory);
                };
                let _ = thread::Builder::new().name("fb-fleet-agent".to_owned()).spawn(body);
            }
        };
        thread::Builder::new().name("fb-fleet-accept".to_owned()).spawn(accept)?;
        Ok(Listener { address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Counts one of those who are there.
struct Presence(Arc<AtomicUsize>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Says why to one too many, who has said something by then or does not get to know.
fn refuse(mut stream: &TcpStream) {
    let why = format!("it talks with {CONTROLLERS} controllers already");
    let _ = stream.set_read_timeout(Some(REFUSAL_TIME));
    let _ = stream.read(&mut [0; FIRST_LINE_BYTES as usize]);
    let _ = lines::write(&mut stream, &Say::Refused { why });
}

fn meet(stream: &TcpStream, secret: &Secret, allowed: Allowed, memory: Memory) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A controller's machine that is gone says nothing, and would keep its place and its memory.
    notice_its_end(stream)?;
    stream.set_write_timeout(Some(HELLO_TIME))?;
    let greeted = AtomicBool::new(false);
    let hurried = Hurried { stream, until: Instant::now() + HELLO_TIME, greeted: &greeted };
    let greeted = || greeted.store(true, Ordering::Release);
    agent::serve(hurried, stream, Some(secret), allowed, memory, greeted)
}

/// Reads until the time is over, or for ever once somebody has been let in: a stranger that sends a
/// byte now and then would keep a place otherwise.
struct Hurried<'a> {
    stream: &'a TcpStream,
    until: Instant,
    greeted: &'a AtomicBool,
}

impl Read for Hurried<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.greeted.load(Ordering::Acquire) {
            self.stream.set_read_timeout(None)?;
        } else {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}
