//! The byte stream of a connection during the handshake: plain TCP on the control loop, or TLS over
//! it.

use crate::control::{Local, Mailbox};
use farblock_reactor::os::Socket;
use farblock_reactor::{Event, SendBatch, StreamId};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

/// A byte stream. If a caller drops the future of a call before it completes, the carrier becomes
/// unusable.
pub(crate) trait Carrier {
    /// Sends all bytes.
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Appends the next bytes to `input`. Returns true at the end of the stream.
    async fn receive(&mut self, input: &mut Vec<u8>) -> io::Result<bool>;
}

/// A TCP connection.
pub(crate) struct Tcp {
    local: Local,
    mailbox: Mailbox,
    stream: StreamId,
    events: VecDeque<Event>,
}

impl Tcp {
    pub(crate) async fn connect(local: &Local, address: SocketAddr) -> io::Result<Tcp> {
        let mailbox = Mailbox::new(local);
        let stream = local.reactor().connect(mailbox.task(), address)?;
        let mut tcp = Tcp { local: local.clone(), mailbox, stream, events: VecDeque::new() };
        loop {
            if let Event::Connected { result, .. } = tcp.event().await {
                return result.map(|()| tcp);
            }
        }
    }

    async fn event(&mut self) -> Event {
        let mut events = Vec::new();
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            self.local.reactor().take_events(self.mailbox.task(), &mut events);
            self.events.extend(events.drain(..));
            if self.events.is_empty() {
                self.mailbox.ready().await;
            }
        }
    }

    /// Releases the socket for another event loop. No operation may be outstanding.
    pub(crate) fn take(self) -> io::Result<Socket> {
        let socket = self.local.reactor().take_stream(self.stream);
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // After `take`, the event loop no longer has the stream, and this call has no effect.
        self.local.reactor().close(self.stream);
    }
}

impl Carrier for Tcp {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut batch = SendBatch::new();
        batch.bytes(bytes);
        self.local.reactor().send(self.stream, batch);
        loop {
            if let Event::Sent { result, .. } = self.event().await {
                return result;
            }
        }
    }

    async fn receive(&mut self, input: &mut Vec<u8>) -> io::Result<bool> {
        self.local.reactor().recv(self.stream);
        loop {
            if let Event::Received { result, .. } = self.event().await {
                let buffer = result?;
                input.extend_from_slice(&buffer);
                let is_end = buffer.is_empty();
                self.local.reactor().buffers().give(buffer);
                return Ok(is_end);
            }
        }
    }
}
