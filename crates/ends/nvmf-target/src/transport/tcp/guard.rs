//! The TLS layer between a TCP stream and its PDUs.
//!
//! ```text
//!            no TLS, and the policy allows it
//!  Undecided ----------------------------> (no guard)
//!      | a ClientHello
//!      v            done, with a key
//!  Handshake ----------------------------> Open
//!      | refused, or broken                  | broken
//!      v                                     v
//!    Over: the alert is sent, and the connection closed
//! ```
//!
//! The guard encrypts output into full records when it sends. It sends each portion while the
//! portion is still in the processor's cache.
//!
//! The guard decrypts input into a pooled buffer, and the session then handles it like plain input.
//! If records contain only data of one large payload, the guard decrypts them directly into the
//! payload's destination.

use super::Tcp;
use crate::admissions::Reason;
use crate::config::TlsPolicy;
use crate::context::Context;
use crate::events::Event;
use crate::limits;
use crate::memory::footprint;
use crate::notices::NoticeKind;
use crate::session::Session;
use farblock_reactor::{Buffer, BufferPool, Cursor, SendBatch};
use farblock_tls::limits::{OPENED_BYTES, PORTION_BYTES, SEALED_BYTES};
use farblock_tls::{Named, ServerKeys, Tls, TlsError, portion};
use farblock_wire::nqn;
use std::net::IpAddr;
use std::sync::Arc;

/// The content type of the first TLS record, which is a handshake message.
const HANDSHAKE: u8 = 22;

/// The TLS state of a connection.
pub(crate) struct Guard {
    stage: Stage,
    /// The output that the guard is encrypting and sending in portions.
    plain: SendBatch,
    /// The position in `plain` up to which the output is encrypted.
    sealed: Cursor,
    /// The number of bytes in `plain` that are not encrypted yet.
    left_bytes: usize,
}

enum Stage {
    /// No input has arrived yet.
    Undecided {
        keys: Arc<ServerKeys>,
        policy: TlsPolicy,
    },
    Handshake(Box<dyn Tls>),
    Open(Box<dyn Tls>),
    /// TLS has failed. An alert may remain to be sent.
    Over(Option<Box<dyn Tls>>),
}

impl Guard {
    pub(crate) fn new(keys: Arc<ServerKeys>, policy: TlsPolicy) -> Self {
        let stage = Stage::Undecided { keys, policy };
        Self { stage, plain: SendBatch::new(), sealed: Cursor::default(), left_bytes: 0 }
    }

    /// Returns the owner of the host's TLS key: the host and subsystem that may use it. `None`
    /// while TLS is not established.
    pub(super) fn peer(&self) -> Option<&Named> {
        match &self.stage {
            Stage::Open(tls) => tls.peer().map(|named| &**named),
            _ => None,
        }
    }

    /// Returns whether an output in progress has unsent portions.
    pub(super) fn has_more(&self) -> bool {
        self.left_bytes > 0
    }

    /// Returns whether there is nothing left to send, including TLS messages.
    pub(super) fn is_silent(&self) -> bool {
        !self.has_more() && self.stage.is_silent()
    }

    /// Takes the output batch back, after its data were sent or dropped.
    fn take_plain(&mut self) -> SendBatch {
        (self.sealed, self.left_bytes) = (Cursor::default(), 0);
        std::mem::take(&mut self.plain)
    }

    /// Shrinks the unused output buffer to `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        if self.left_bytes == 0 {
            self.plain.shrink_to(bytes);
        }
    }

    /// Takes the output from `outbox`, if all earlier output is encrypted.
    fn begin(&mut self, outbox: &mut SendBatch) {
        if self.left_bytes == 0 {
            std::mem::swap(&mut self.plain, outbox);
            self.left_bytes = self.plain.len();
        }
    }

    /// Encrypts the next portion of output into a pooled buffer, and adds the buffer to `batch`.
    fn seal(&mut self, pool: &BufferPool, batch: &mut SendBatch) -> Result<(), TlsError> {
        let bytes = self.left_bytes.min(PORTION_BYTES);
        let tls = self.stage.tls().ok_or(TlsError::Closed)?;
        let mut sealed = pool.take(tls.sealed_bytes(bytes));
        let rest = self.plain.slices_from(self.sealed);
        let length = tls.seal(&mut portion(rest, bytes), &mut sealed)?;
        batch.payload(0, sealed, 0..length);
        self.plain.advance(&mut self.sealed, bytes);
        self.left_bytes -= bytes;
        Ok(())
    }
}

impl Stage {
    fn is_silent(&self) -> bool {
        match self {
            Stage::Handshake(tls) | Stage::Open(tls) | Stage::Over(Some(tls)) => {
                tls.output_bytes() == 0
            }
            Stage::Undecided { .. } | Stage::Over(None) => true,
        }
    }

    fn tls(&mut self) -> Option<&mut dyn Tls> {
        match self {
            Stage::Handshake(tls) | Stage::Open(tls) | Stage::Over(Some(tls)) => Some(&mut **tls),
            Stage::Undecided { .. } | Stage::Over(None) => None,
        }
    }

    /// Passes input to the TLS handshake until the handshake is done. Returns true if the host does
    /// not use TLS and the policy allows this.
    fn feed(&mut self, bytes: &[u8]) -> Result<bool, TlsError> {
        if let Stage::Undecided { keys, policy } = self {
            let is_tls = bytes.first() == Some(&HANDSHAKE);
            match policy {
                TlsPolicy::Allowed if !is_tls => return Ok(true),
                TlsPolicy::Plain => return Ok(true),
                TlsPolicy::Required if !is_tls => return Err(TlsError::NotTls),
                _ => *self = Stage::Handshake(farblock_tls::server(Arc::clone(keys))?),
            }
        }
        self.tls().ok_or(TlsError::Closed)?.feed(bytes);
        if let Stage::Handshake(tls) = self
            && tls.handshake()?
            && let Stage::Handshake(tls) = std::mem::replace(self, Stage::Over(None))
        {
            *self = Stage::Open(tls);
        }
        Ok(false)
    }

    /// Changes to [`Stage::Over`] after a failure. Only an alert may remain to be sent.
    fn end(&mut self) {
        let is = std::mem::replace(self, Stage::Over(None));
        if let Stage::Handshake(tls) | Stage::Open(tls) = is {
            *self = Stage::Over(Some(tls));
        }
    }
}

impl Session<Tcp> {
    /// Starts a receive. If a large payload is expected, receives exactly the bytes of the
    /// payload's full records. If the host fills its records, such a receive ends at a record
    /// boundary.
    pub(super) fn receive_sealed(&mut self, cx: &mut Context) {
        let tcp = &mut self.transport;
        let left = tcp.end.data_wanted().map_or(0, |(_, _, left)| left);
        let kept = match tcp.guard.as_deref().map(|guard| &guard.stage) {
            Some(Stage::Open(tls)) => Some(tls.openable_bytes(0)),
            _ => None,
        };
        if cx.memory.is_pressed() {
            return cx.reactor.recv_at_most(tcp.stream, pressed_bytes(left, kept));
        }
        let whole =
            left.min(limits::DIRECT_RECEIVE_MAX_BYTES) as usize / SEALED_BYTES * SEALED_BYTES;
        // Encrypted records are at least as long as their data, so this many bytes certainly belong
        // to the payload.
        match kept.and_then(|kept| whole.checked_sub(kept)).filter(|bytes| *bytes > 0) {
            Some(bytes) => {
                let buffer = cx.reactor.buffers().take(bytes);
                tcp.receiving_bytes = footprint(bytes);
                cx.reactor.recv_into(tcp.stream, buffer, 0..bytes);
                self.hold_besides(cx, footprint(bytes));
            }
            None => cx.reactor.recv(tcp.stream),
        }
    }

    /// Handles received records. A receive returns fewer bytes than requested only at the stream's
    /// end.
    pub(super) fn received_sealed(
        &mut self,
        cx: &mut Context,
        mut buffer: Buffer,
        result: std::io::Result<usize>,
    ) {
        self.transport.receiving = false;
        let bytes = std::mem::take(&mut self.transport.receiving_bytes);
        self.release_besides(cx, bytes);
        match result {
            Ok(count) if count > 0 => {
                buffer.truncate(count);
                self.unseal(cx, buffer);
            }
            _ => {
                cx.reactor.buffers().give(buffer);
                self.close(cx);
            }
        }
    }

    /// Passes input to TLS, and handles the decrypted bytes.
    pub(super) fn unseal(&mut self, cx: &mut Context, buffer: Buffer) {
        let guard = self.transport.guard.as_mut().expect("the connection uses TLS");
        if let Stage::Open(_) = guard.stage {
            self.list(cx);
            return self.open_records(cx, Some(buffer));
        }
        match guard.stage.feed(&buffer) {
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
        // Send the alert, key update response or handshake message, if there is one.
        self.list(cx);
        self.open_records(cx, None);
    }

    fn open_records(&mut self, cx: &mut Context, sealed: Option<Buffer>) {
        let mut bytes = sealed.as_deref().unwrap_or(&[]);
        let (placed, mut ended) = self.open_into_place(cx, &mut bytes);
        let stage = self.transport.guard.as_deref_mut().map(|guard| &mut guard.stage);
        let Some(Stage::Open(tls)) = stage else {
            return self.arm_receive(cx);
        };
        let mut plain = cx.reactor.buffers().take(tls.openable_bytes(bytes.len()));
        let mut filled = 0;
        if ended.is_none() {
            (filled, ended) = tls.open(bytes, &mut plain);
        }
        sealed.into_iter().for_each(|buffer| cx.reactor.buffers().give(buffer));
        if filled > 0 {
            plain.truncate(filled);
            self.transport.unread = Some((plain, 0));
            self.process_unread(cx);
        } else {
            cx.reactor.buffers().give(plain);
            if placed > 0 {
                self.process(cx, &[]);
            }
            if ended.is_none() {
                self.arm_receive(cx);
            }
        }
        match ended {
            None => {}
            Some(TlsError::Closed) => self.close(cx),
            Some(error) => self.refuse_tls(cx, &error),
        }
    }

    /// If records contain only data of one large payload, decrypts them directly into the payload's
    /// destination. Returns the number of data bytes, and the error that follows them, if any.
    fn open_into_place(
        &mut self,
        cx: &mut Context,
        sealed: &mut &[u8],
    ) -> (usize, Option<TlsError>) {
        let Some((slot, offset, left)) = self.transport.end.data_wanted() else {
            return (0, None);
        };
        // Do not decrypt in place in a closed session, or for less than a full record.
        if (left as usize) < OPENED_BYTES || !self.takes_commands() {
            return (0, None);
        }
        let mut buffer = self.take_landing(cx, slot);
        let Tcp { guard, end, .. } = &mut self.transport;
        let Some(Stage::Open(tls)) = guard.as_deref_mut().map(|guard| &mut guard.stage) else {
            self.put_landing(slot, buffer);
            return (0, None);
        };
        let place = &mut buffer[offset as usize..(offset + left) as usize];
        let (count, ended) = tls.open_some(sealed, place);
        end.data_received(&place[..count]);
        self.put_landing(slot, buffer);
        if count > 0 {
            self.note_data(cx, slot);
        }
        (count, ended)
    }

    /// Reports why TLS with this host failed, and closes the connection.
    fn refuse_tls(&mut self, cx: &mut Context, error: &TlsError) {
        cx.shared.admissions.refused(Reason::from(error));
        let was_let_in = !self.is_waiting();
        cx.notice(NoticeKind::Refused, self.peer.ip(), || {
            let peer = self.peer;
            // Report a failed handshake only. If the host was already connected, the target reports
            // its disconnection instead.
            if !was_let_in {
                cx.shared.observed.tell(&not_by_tls(peer.ip(), error));
            }
            match error {
                TlsError::NotTls => tracing::warn!(
                    %peer,
                    "refused a host that connected without TLS, which this listener requires: \
                     give the host --tls-key, or allow hosts without a key with `--tls allowed` \
                     at this target"
                ),
                error => tracing::warn!(%peer, "refused a host: {error}"),
            }
        });
        if let Some(guard) = &mut self.transport.guard {
            guard.stage.end();
        }
        self.close_after_sending(cx);
    }

    /// Returns the next portion of output, encrypted into records. `None` if the encryption fails.
    pub(super) fn seal(&mut self, cx: &mut Context) -> Option<SendBatch> {
        let Tcp { guard, outbox, spare, .. } = &mut self.transport;
        let guard = guard.as_mut().expect("the connection uses TLS");
        guard.begin(outbox);
        let mut batch = std::mem::take(spare);
        let is_sealed = guard.seal(cx.reactor.buffers(), &mut batch).is_ok();
        // After a failure of TLS, the guard drops the output and sends only the alert.
        if guard.left_bytes == 0 || matches!(guard.stage, Stage::Over(_)) {
            self.give_back_sealed(cx);
        }
        is_sealed.then_some(batch)
    }

    /// Takes the output out of the guard after it was sent or dropped, and releases its buffers.
    pub(super) fn give_back_sealed(&mut self, cx: &mut Context) {
        let Some(guard) = &mut self.transport.guard else { return };
        let mut plain = guard.take_plain();
        for (held_bytes, buffer) in plain.take_payloads() {
            self.give_back(cx, held_bytes as usize, buffer);
        }
        plain.shrink_to(if cx.memory.is_pressed() { 0 } else { limits::KEPT_BATCH_BYTES });
        if let Some(guard) = &mut self.transport.guard {
            guard.plain = plain;
        }
    }
}

/// Returns the receive size while memory is short. For a large payload, this is the rest of one
/// record, which the guard decrypts directly into its destination without another buffer. Otherwise
/// it is [`limits::SMALL_RECEIVE_BYTES`].
fn pressed_bytes(left: u32, kept: Option<usize>) -> u32 {
    let of_payload = kept.filter(|_| left >= SEALED_BYTES as u32);
    let record_bytes = of_payload.map_or(0, |kept| SEALED_BYTES.saturating_sub(kept) as u32);
    record_bytes.max(limits::SMALL_RECEIVE_BYTES)
}

/// Returns the event for a host whose TLS handshake failed. The event contains the names that the
/// host offered.
fn not_by_tls(address: IpAddr, error: &TlsError) -> Event {
    let identity = match error {
        TlsError::UnknownIdentity { offered, .. } => offered.first(),
        TlsError::WrongKey(identity) | TlsError::OtherKeys { identity, .. } => Some(identity),
        _ => None,
    };
    let mut names = identity.into_iter().flat_map(|text| text.split(' ')).skip(1);
    let mut name = || {
        let name = names.next().filter(|name| nqn::validate_name(name).is_ok());
        name.unwrap_or_default().to_owned()
    };
    let (host, subsystem) = (name(), name());
    Event::Refused { host, address, subsystem, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_small_or_one_record_while_memory_is_short() {
        let (record, little) = (SEALED_BYTES as u32, limits::SMALL_RECEIVE_BYTES);
        assert_eq!(pressed_bytes(1 << 20, Some(0)), record);
        assert_eq!(pressed_bytes(record, Some(6000)), record - 6000);
        assert_eq!(pressed_bytes(record, Some(SEALED_BYTES + 22)), little);
        assert_eq!(pressed_bytes(record - 1, Some(0)), little, "the payload is less than a record");
        assert_eq!(pressed_bytes(0, Some(0)), little);
        assert_eq!(pressed_bytes(1 << 20, None), little, "the bytes may not be a record");
    }
}
