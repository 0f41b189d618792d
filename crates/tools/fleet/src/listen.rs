//! Agents that listen for the controllers of fleets. A controller needs the agent's token.
//!
//! The connection is not encrypted: a person who sees the packets sees the token. So an agent
//! listens on loopback, at the end of a tunnel, unless the operator says that the network is
//! private. A controller with the token can share memory and the [allowed](Allowed) drives. It can
//! also let the agent connect to any address that the agent can reach, and read and write all of
//! these disks.

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

/// An agent that listens, on its own threads, until the process exits.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
}

impl Listener {
    /// Listens at this address. For port 0, the system chooses a free port. Controllers with the
    /// secret may let the agent share these drives. All controllers together may use this much
    /// memory.
    ///
    /// # Errors
    /// The agent cannot listen at the address.
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
                // An accept may fail, for example for lack of file descriptors. A later accept may
                // succeed.
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
                    // Ignore the result: the controller has disconnected, and has received the
                    // reason if possible.
                    let _ = meet(&stream, &secret, allowed, memory);
                };
                let _ = thread::Builder::new().name("fb-fleet-agent".to_owned()).spawn(body);
            }
        };
        thread::Builder::new().name("fb-fleet-accept".to_owned()).spawn(accept)?;
        Ok(Listener { address })
    }

    /// The address at which the agent listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A place among the connections to the agent. Dropping this frees the place.
struct Presence(Arc<AtomicUsize>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tells a controller above the limit why the agent refuses it. A controller that has not sent its
/// first line in time may not receive the reason.
fn refuse(mut stream: &TcpStream) {
    let why = format!("the agent already serves {CONTROLLERS} controllers");
    let _ = stream.set_read_timeout(Some(REFUSAL_TIME));
    let _ = stream.read(&mut [0; FIRST_LINE_BYTES as usize]);
    let _ = lines::write(&mut stream, &Say::Refused { why });
}

fn meet(stream: &TcpStream, secret: &Secret, allowed: Allowed, memory: Memory) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Detect a dead controller machine, which would keep its place and its memory.
    notice_its_end(stream)?;
    stream.set_write_timeout(Some(HELLO_TIME))?;
    let greeted = AtomicBool::new(false);
    let hurried = Hurried { stream, until: Instant::now() + HELLO_TIME, greeted: &greeted };
    let greeted = || greeted.store(true, Ordering::Release);
    agent::serve(hurried, stream, Some(secret), allowed, memory, greeted)
}

/// A reader with a time limit until the agent has admitted the controller. Without the limit, a
/// peer without a token could keep a place by sending one byte at a time.
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
