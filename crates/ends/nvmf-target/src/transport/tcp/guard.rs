//! TLS between the stream and its PDUs.
//!
//! ```text
//!            no TLS, and that is allowed
//!  Undecided ----------------------------> (no guard)
//!      | a ClientHello
//!      v            done, with a key
//!  Handshake ----------------------------> Open
//!      | refused, or broken                  | broken
//!      v                                     v
//!    Over: the alert is sent, and the connection closed
//! ```
//!
//! What a tick produced is sealed at once when it is sent, in full records. What comes is opened
//! into a buffer of the pool, and goes the way of what comes in plain; straight into place goes
//! nothing. Either is done record by record: what is in the library at once, it keeps memory for.

use super::Tcp;
use crate::config::TlsPolicy;
use crate::core::Context;
use crate::limits;
use crate::notices::Kind;
use crate::session::Session;
use farblock_reactor::{Buffer, BufferPool, SendBatch};
use farblock_tls::limits::{RECORD_BYTES, RECORD_EXTRA_BYTES};
use farblock_tls::{Named, ServerKeys, Tls, TlsError};
use std::sync::Arc;

/// The type of the record that TLS begins with: a handshake.
const HANDSHAKE: u8 = 22;

/// See the module's text.
pub(crate) enum Guard {
    /// Nothing has come yet.
    Undecided {
        keys: Arc<ServerKeys>,
        policy: TlsPolicy,
    },
    Handshake(Box<dyn Tls>),
    Open(Box<dyn Tls>),
    /// It has failed, and may have an alert to send.
    Over(Option<Box<dyn Tls>>),
}

impl Guard {
    pub(crate) fn new(keys: Arc<ServerKeys>, policy: TlsPolicy) -> Self {
        Self::Undecided { keys, policy }
    }

    /// For whom the host's key is.
    pub(super) fn peer(&self) -> Option<&Named> {
        match self {
            Guard::Open(tls) => tls.peer().map(|named| &**named),
            _ => None,
        }
    }

    /// Whether it has nothing to send of its own.
    pub(super) fn is_silent(&self) -> bool {
        match self {
            Guard::Handshake(tls) | Guard::Open(tls) | Guard::Over(Some(tls)) => {
                tls.output_bytes() == 0
            }
            Guard::Undecided { .. } | Guard::Over(None) => true,
        }
    }

    fn tls(&mut self) -> Option<&mut dyn Tls> {
        match self {
            Guard::Handshake(tls) | Guard::Open(tls) | Guard::Over(Some(tls)) => Some(&mut **tls),
            Guard::Undecided { .. } | Guard::Over(None) => None,
        }
    }

    /// Takes what came, as far as to a handshake's end; true if it is not TLS and need not be.
    fn feed(&mut self, bytes: &[u8]) -> Result<bool, TlsError> {
        if let Guard::Undecided { keys, policy } = self {
            let is_tls = bytes.first() == Some(&HANDSHAKE);
            match policy {
                TlsPolicy::Allowed if !is_tls => return Ok(true),
                TlsPolicy::Plain => return Ok(true),
                TlsPolicy::Required if !is_tls => return Err(TlsError::NotTls),
                _ => *self = Guard::Handshake(farblock_tls::server(Arc::clone(keys))?),
            }
        }
        self.tls().ok_or(TlsError::Closed)?.feed(bytes);
        if let Guard::Handshake(tls) = self
            && tls.handshake()?
            && let Guard::Handshake(tls) = std::mem::replace(self, Guard::Over(None))
        {
            *self = Guard::Open(tls);
        }
        Ok(false)
    }

    /// It has failed: only an alert is left to be sent.
    fn end(&mut self) {
        let is = std::mem::replace(self, Guard::Over(None));
        if let Guard::Handshake(tls) | Guard::Open(tls) = is {
            *self = Guard::Over(Some(tls));
        }
    }
}

impl Tcp {
    pub(super) fn receive_sealed(&self, cx: &Context) {
        if cx.memory.is_pressed() {
            cx.reactor.recv_at_most(self.stream, limits::SMALL_RECEIVE_BYTES);
        } else {
            cx.reactor.recv(self.stream);
        }
    }
}

impl Session<Tcp> {
    /// Takes what came through TLS.
    pub(super) fn unseal(&mut self, cx: &mut Context, buffer: Buffer) {
        let guard = self.transport.guard.as_mut().expect("checked by the caller");
        if let Guard::Open(_) = **guard {
            self.list(cx);
            return self.open_records(cx, Some(buffer));
        }
        match guard.feed(&buffer) {
            Ok(true) => {
                self.transport.guard = None;
                self.transport.unread = Some((buffer, 0));
                return self.process_unread(cx);
            }
            Ok(false) => {}
            Err(error) => {
                cx.reactor.buffers().give(buffer);
                return self.refuse_tls(cx, &error);
            }
        }
        cx.reactor.buffers().give(buffer);
        if let Some(named) = guard.peer() {
            let identity = &named.psk.identity;
            tracing::debug!(peer = %self.peer, %identity, key = %named.psk.derivation, "TLS");
        }
        // Alerts, answers to key updates, and what a handshake has to say.
        self.list(cx);
        self.open_records(cx, None);
    }

    fn open_records(&mut self, cx: &mut Context, sealed: Option<Buffer>) {
        let Some(Guard::Open(tls)) = self.transport.guard.as_deref_mut() else {
            return self.arm_receive(cx);
        };
        let bytes = sealed.as_deref().unwrap_or(&[]);
        let mut plain = cx.reactor.buffers().take(bytes.len() + tls.readable_bytes());
        let (filled, ended) = open(&mut **tls, bytes, &mut plain);
        sealed.into_iter().for_each(|buffer| cx.reactor.buffers().give(buffer));
        if filled == 0 {
            cx.reactor.buffers().give(plain);
            if ended.is_none() {
                self.arm_receive(cx);
            }
        } else {
            plain.truncate(filled);
            self.transport.unread = Some((plain, 0));
            self.process_unread(cx);
        }
        match ended {
            None => {}
            Some(TlsError::Closed) => self.close(cx),
            Some(error) => self.refuse_tls(cx, &error),
        }
    }

    /// Says why there is no TLS with this host, and ends its connection.
    fn refuse_tls(&mut self, cx: &mut Context, error: &TlsError) {
        cx.notice(Kind::Refused, self.peer.ip(), || {
            let peer = self.peer;
            match error {
                TlsError::NotTls => tracing::warn!(
                    %peer, "refused: it came without TLS, which is required here (`--tls-key` at \
                     the host; `--tls allowed` here lets hosts in that have no key)"
                ),
                error => tracing::warn!(%peer, "refused: {error}"),
            }
        });
        if let Some(guard) = &mut self.transport.guard {
            guard.end();
        }
        self.close_after_sending(cx);
    }

    /// What is to be sent, in records; none if that fails.
    pub(super) fn seal(&mut self, cx: &mut Context) -> Option<SendBatch> {
        let mut plain = std::mem::take(&mut self.transport.outbox);
        let tls = self.transport.guard.as_mut().and_then(|guard| guard.tls());
        let sealed =
            tls.ok_or(TlsError::Closed).and_then(|tls| seal(tls, &plain, cx.reactor.buffers()));
        for (held_bytes, buffer) in plain.take_payloads() {
            self.give_back(cx, held_bytes as usize, buffer);
        }
        plain.shrink_to(if cx.memory.is_pressed() { 0 } else { limits::KEPT_BATCH_BYTES });
        self.transport.outbox = plain;
        let sealed = sealed.ok()?;
        let mut batch = std::mem::take(&mut self.transport.spare);
        let range = 0..sealed.len();
        batch.payload(0, sealed, range);
        Some(batch)
    }
}

/// Opens what was received, and what was fed before. Gives how many bytes that makes, and what
/// ended the connection behind them.
fn open(tls: &mut dyn Tls, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>) {
    let mut filled = 0;
    let mut pieces = sealed.chunks(RECORD_BYTES);
    pieces.next().into_iter().for_each(|piece| tls.feed(piece));
    loop {
        match tls.read(&mut plain[filled..]) {
            Ok(0) => match pieces.next() {
                Some(piece) => tls.feed(piece),
                None => return (filled, None),
            },
            Ok(count) => filled += count,
            Err(error) => return (filled, Some(error)),
        }
    }
}

/// What is to be sent, in records.
fn seal(tls: &mut dyn Tls, plain: &SendBatch, pool: &BufferPool) -> Result<Buffer, TlsError> {
    // One may be begun, and one answer an update.
    let records = plain.len() / RECORD_BYTES + 2;
    let most_bytes = tls.output_bytes() + plain.len() + records * RECORD_EXTRA_BYTES;
    let mut sealed = pool.take(most_bytes);
    let mut length = 0;
    for piece in plain.slices().flat_map(|slice| slice.chunks(RECORD_BYTES)) {
        tls.write(piece)?;
        if tls.output_bytes() > 0 {
            length += tls.output(&mut sealed[length..]);
        }
    }
    tls.flush()?;
    length += tls.output(&mut sealed[length..]);
    sealed.truncate(length);
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cipher that changes nothing and keeps account of what is in it at once.
    #[derive(Default)]
    struct Counting {
        sealed: Vec<u8>,
        plain: Vec<u8>,
        most_bytes: usize,
    }

    impl Tls for Counting {
        fn feed(&mut self, bytes: &[u8]) {
            self.plain.extend_from_slice(bytes);
            self.most_bytes = self.most_bytes.max(self.plain.len());
        }

        fn handshake(&mut self) -> Result<bool, TlsError> {
            Ok(true)
        }

        fn peer(&self) -> Option<&Arc<Named>> {
            None
        }

        fn readable_bytes(&self) -> usize {
            self.plain.len()
        }

        fn read(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
            let count = self.plain.len().min(into.len());
            into[..count].copy_from_slice(&self.plain[..count]);
            self.plain.drain(..count);
            Ok(count)
        }

        fn write(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
            self.sealed.extend_from_slice(bytes);
            self.most_bytes = self.most_bytes.max(self.sealed.len());
            Ok(())
        }

        fn flush(&mut self) -> Result<(), TlsError> {
            Ok(())
        }

        fn output_bytes(&self) -> usize {
            self.sealed.len()
        }

        fn output(&mut self, into: &mut [u8]) -> usize {
            let count = self.sealed.len().min(into.len());
            into[..count].copy_from_slice(&self.sealed[..count]);
            self.sealed.drain(..count);
            count
        }
    }

    #[test]
    fn much_goes_through_the_library_in_pieces() {
        let pool = BufferPool::default();
        let data: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
        let mut payload = pool.take(data.len());
        payload.copy_from_slice(&data);
        let mut batch = SendBatch::new();
        batch.bytes(b"header");
        batch.payload(0, payload, 0..data.len());
        let mut tls = Counting::default();
        let sealed = seal(&mut tls, &batch, &pool).expect("it does not fail");
        assert!(sealed[..] == [&b"header"[..], &data].concat());
        assert!(tls.most_bytes <= RECORD_BYTES, "{} bytes at once", tls.most_bytes);
        let mut plain = vec![0; sealed.len() + 1];
        assert_eq!(open(&mut tls, &sealed, &mut plain), (sealed.len(), None));
        assert!(plain[..sealed.len()] == sealed[..]);
        assert!(tls.most_bytes <= RECORD_BYTES, "{} bytes at once", tls.most_bytes);
    }
}
