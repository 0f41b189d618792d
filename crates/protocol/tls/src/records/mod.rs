//! TLS after the handshake (RFC 8446, sections 4.6, 5 and 6). Encrypts each byte from its source
//! directly into the send buffer. Decrypts each byte from the receive buffer directly into its
//! destination. The faster of the two [`cipher`] libraries needs a single pass for this.
//!
//! ```text
//!   network -> [part of a record] -> record -> data ---------------------------> plain
//!                                      |-> alert: the end
//!                                      '-> message: a ticket (ignored),
//!                                            or new keys --> an answer
//!   network <------------------- [answers, and sealed data] <------------------- plain
//! ```
//!
//! The length of a record is a multiple of the cache line's size, so that the next record in the
//! socket's memory is also aligned. Some processors are several times slower when they copy to
//! unaligned memory.

mod cipher;
mod copy;
mod direction;
#[cfg(unix)]
mod fuzzed;
mod input;
#[cfg(test)]
mod tests;

use crate::secrets::Secrets;
use crate::{TlsError, limits};
use copy::copy;
use direction::Direction;
use farblock_secure::Hash;
#[cfg(unix)]
pub use fuzzed::records as fuzzed;
use input::Input;

pub(crate) const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// The bytes of a record besides its content and padding.
const EXTRA_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// The length of a record is a multiple of this, in bytes.
const LINE_BYTES: usize = 64;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION: u8 = 23;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const WARNING: u8 = 1;
const FATAL: u8 = 2;
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;

/// The record layer of one connection.
pub(crate) struct Records {
    outgoing: Direction,
    incoming: Direction,
    is_client: bool,
    /// The size of a full record, in bytes.
    record_bytes: usize,
    /// The number of records with one key after which this end asks for a key update.
    per_key: Option<u64>,
    /// Whether this end has asked for a key update that the other end has not answered.
    has_asked: bool,
    input: Input,
    /// Decrypted data that was not read yet.
    held: Vec<u8>,
    /// An incomplete handshake message.
    messages: Vec<u8>,
    /// The number of consecutive records without data.
    without_data: usize,
    /// Encrypted bytes that were not output yet.
    output: Vec<u8>,
}

/// The content of a decrypted record.
enum Opened {
    Data(usize),
    /// Data for which `plain` had no room. The data is now in `held`.
    Held,
    Other,
}

/// The reason to end the connection: the alert to send, and a text.
struct Fatal(u8, &'static str);

impl Records {
    /// Returns the records after a handshake with these secrets. `None` if no cipher suite has the
    /// hash, or if a secret is missing.
    pub(crate) fn new(
        hash: Hash,
        secrets: Secrets,
        per_key: Option<u64>,
        is_client: bool,
    ) -> Option<Self> {
        let client = Direction::new(hash, secrets.client?)?;
        let server = Direction::new(hash, secrets.server?)?;
        let (outgoing, incoming) = if is_client { (client, server) } else { (server, client) };
        Some(Self {
            outgoing,
            incoming,
            is_client,
            record_bytes: limits::SEALED_BYTES,
            per_key,
            has_asked: false,
            input: Input::default(),
            held: Vec::new(),
            messages: Vec::new(),
            without_data: 0,
            output: Vec::new(),
        })
    }

    /// Limits a record to `most_bytes`, which must be a multiple of the cache line's size (RFC
    /// 6066, section 4; RFC 8446, section 5.4).
    pub(crate) fn shorten(&mut self, most_bytes: usize) {
        self.record_bytes = self.record_bytes.min(most_bytes);
    }

    /// Returns the number of content bytes of a full record.
    fn content_bytes(&self) -> usize {
        self.record_bytes - EXTRA_BYTES
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.input.add(bytes);
    }

    /// Returns an upper bound of the room that `open` needs for the fed bytes and `more` further
    /// bytes.
    pub(crate) fn openable_bytes(&self, more: usize) -> usize {
        self.held.len() + self.input.len() + more
    }

    /// Decrypts the fed bytes, and then `sealed`. Returns the number of bytes in `plain`, and the
    /// error that ended the connection after these bytes, if any.
    pub(crate) fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> (usize, Option<TlsError>) {
        let mut filled = self.take_held(plain);
        let mut sealed = sealed;
        while self.held.is_empty() {
            match self.open_next(&mut sealed, &mut plain[filled..]) {
                Ok(Some(Opened::Data(count))) => filled += count,
                Ok(Some(Opened::Held)) => filled += self.take_held(&mut plain[filled..]),
                Ok(Some(Opened::Other)) => {}
                Ok(None) => break,
                Err(error) => return (filled, Some(error)),
            }
        }
        // Store the remaining bytes: they are an incomplete record, or `plain` has no room for it.
        self.input.add(sealed);
        (filled, None)
    }

    /// Like [`open`](Self::open), but opens only whole records that fit in `plain`. Removes the
    /// parsed bytes from the front of `sealed`. If there was room and no record was opened, stores
    /// all bytes of `sealed` and removes them.
    pub(crate) fn open_some(
        &mut self,
        sealed: &mut &[u8],
        plain: &mut [u8],
    ) -> (usize, Option<TlsError>) {
        let mut filled = self.take_held(plain);
        while self.held.is_empty() && self.input.next_fits(sealed, plain.len() - filled) {
            match self.open_next(sealed, &mut plain[filled..]) {
                Ok(Some(Opened::Data(count))) => filled += count,
                Ok(Some(Opened::Held)) => unreachable!("there is room"),
                Ok(Some(Opened::Other)) => {}
                Ok(None) => break,
                Err(error) => return (filled, Some(error)),
            }
        }
        (filled, None)
    }

    fn open_next(
        &mut self,
        sealed: &mut &[u8],
        plain: &mut [u8],
    ) -> Result<Option<Opened>, TlsError> {
        let mut input = std::mem::take(&mut self.input);
        let step = match input.next(sealed) {
            Ok(Some(record)) => self.open_record(record, plain).map(Some),
            Ok(None) => Ok(None),
            Err(fatal) => Err(self.fail(fatal)),
        };
        input.tidy();
        self.input = input;
        step
    }

    fn take_held(&mut self, plain: &mut [u8]) -> usize {
        take_from(&mut self.held, plain)
    }

    fn open_record(&mut self, record: &[u8], plain: &mut [u8]) -> Result<Opened, TlsError> {
        let (header, body) = record.split_at(HEADER_BYTES);
        if body.len() > plain.len() {
            let mut opened = vec![0; body.len()];
            let what = self.open_into(header, body, &mut opened)?;
            let Opened::Data(count) = what else { return Ok(what) };
            opened.truncate(count);
            self.held = opened;
            return Ok(Opened::Held);
        }
        self.open_into(header, body, &mut plain[..body.len()])
    }

    fn open_into(
        &mut self,
        header: &[u8],
        body: &[u8],
        plain: &mut [u8],
    ) -> Result<Opened, TlsError> {
        let Some(length) = self.incoming.open(header, body, plain) else {
            return Err(self.fail(Fatal(BAD_RECORD_MAC, "a record is damaged or forged")));
        };
        if length > limits::RECORD_BYTES + 1 {
            return Err(
                self.fail(Fatal(RECORD_OVERFLOW, "the peer sent a record that is too long"))
            );
        }
        let Some(end) = plain[..length].iter().rposition(|&byte| byte != 0) else {
            return Err(
                self.fail(Fatal(UNEXPECTED_MESSAGE, "the peer sent a record without a type"))
            );
        };
        let (content, kind) = (&plain[..end], plain[end]);
        self.without_data = if kind == APPLICATION && end > 0 { 0 } else { self.without_data + 1 };
        if self.without_data > limits::RECORDS_WITHOUT_DATA {
            let words = "the peer sent too many records without data";
            return Err(self.fail(Fatal(UNEXPECTED_MESSAGE, words)));
        }
        match kind {
            APPLICATION if !self.messages.is_empty() => Err(self
                .fail(Fatal(UNEXPECTED_MESSAGE, "the peer sent data in the middle of a message"))),
            APPLICATION => Ok(Opened::Data(end)),
            ALERT => Err(self.ended(content)),
            HANDSHAKE if end > 0 => match self.messages(content) {
                Ok(()) => Ok(Opened::Other),
                Err(fatal) => Err(self.fail(fatal)),
            },
            _ => {
                Err(self.fail(Fatal(UNEXPECTED_MESSAGE, "the peer sent a record of unknown type")))
            }
        }
    }

    /// Handles an alert, which ends the connection. Returns the error for the caller.
    fn ended(&mut self, alert: &[u8]) -> TlsError {
        match *alert {
            [WARNING | FATAL, CLOSE_NOTIFY] => TlsError::Closed,
            [WARNING | FATAL, number] => TlsError::Refused(format!("it sent the alert {number}")),
            _ => self.fail(Fatal(DECODE_ERROR, "the peer sent a malformed alert")),
        }
    }

    /// Handles handshake messages that arrive after the handshake.
    fn messages(&mut self, content: &[u8]) -> Result<(), Fatal> {
        if !self.messages.is_empty() || content.len() < 4 {
            self.messages.extend_from_slice(content);
            let all = std::mem::take(&mut self.messages);
            return self.take_messages(&all);
        }
        self.take_messages(content)
    }

    fn take_messages(&mut self, mut bytes: &[u8]) -> Result<(), Fatal> {
        while let [kind, high, middle, low, rest @ ..] = bytes {
            let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            if length > limits::HANDSHAKE_BYTES {
                return Err(Fatal(DECODE_ERROR, "the peer sent a message that is too long"));
            }
            let Some((body, rest)) = rest.split_at_checked(length) else { break };
            match (*kind, body) {
                (NEW_SESSION_TICKET, _) if self.is_client => {}
                // The next record uses the new key, so no message may follow in this record.
                (KEY_UPDATE, [asked @ (0 | 1)]) if rest.is_empty() => self.follow(*asked == 1)?,
                _ => return Err(Fatal(UNEXPECTED_MESSAGE, "the peer sent an unexpected message")),
            }
            bytes = rest;
        }
        self.messages = bytes.to_vec();
        Ok(())
    }

    /// Handles a key update of the peer. The peer may ask for a key update in return.
    fn follow(&mut self, is_asked: bool) -> Result<(), Fatal> {
        let none = || Fatal(INTERNAL_ERROR, "cannot derive the next keys");
        self.incoming = self.incoming.updated().ok_or_else(none)?;
        self.has_asked = false;
        if is_asked {
            let mut answer = [0; LINE_BYTES];
            let length = self.update_keys(false, &mut answer).ok_or_else(none)?;
            self.output.extend_from_slice(&answer[..length]);
        }
        if self.output.len() > limits::UNASKED_BYTES {
            return Err(Fatal(
                INTERNAL_ERROR,
                "the peer requests key updates without reading the answers",
            ));
        }
        Ok(())
    }

    /// Writes a key update, and switches to the new sending keys.
    fn update_keys(&mut self, asks: bool, into: &mut [u8]) -> Option<usize> {
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(asks)];
        into[HEADER_BYTES..][..message.len()].copy_from_slice(&message);
        let length = self.finish(HANDSHAKE, message.len(), into)?;
        self.outgoing = self.outgoing.updated()?;
        Some(length)
    }

    /// Encrypts a record whose content already follows the header. Returns the length of the
    /// record.
    fn finish(&mut self, kind: u8, content_bytes: usize, into: &mut [u8]) -> Option<usize> {
        let length = (content_bytes + EXTRA_BYTES).next_multiple_of(LINE_BYTES);
        let record = &mut into[..length];
        let inner = &mut record[HEADER_BYTES + content_bytes..length - TAG_BYTES];
        inner.fill(0);
        inner[0] = kind;
        self.outgoing.seal(record)?;
        Some(length)
    }

    /// Fails the connection, and queues the alert for the peer.
    fn fail(&mut self, Fatal(alert, words): Fatal) -> TlsError {
        let mut record = [0; LINE_BYTES];
        record[HEADER_BYTES..][..2].copy_from_slice(&[FATAL, alert]);
        if let Some(length) = self.finish(ALERT, 2, &mut record) {
            self.output.extend_from_slice(&record[..length]);
        }
        TlsError::Broken(words.to_owned())
    }

    /// Returns an upper bound of the bytes that `seal` writes for `plain_bytes` of data, including
    /// pending output.
    pub(crate) fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        let records = plain_bytes.div_ceil(self.content_bytes());
        // A key update may precede each record.
        self.output.len() + plain_bytes + records * (EXTRA_BYTES + LINE_BYTES + LINE_BYTES)
    }

    /// Writes the pending output into `into`, and then all of `plain` in encrypted records. Returns
    /// the number of written bytes, which is at most [`sealed_bytes`](Self::sealed_bytes).
    pub(crate) fn seal(
        &mut self,
        plain: &mut dyn Iterator<Item = &[u8]>,
        into: &mut [u8],
    ) -> Result<usize, TlsError> {
        let mut end = self.take_output(into);
        let (most_bytes, mut content_bytes) = (self.content_bytes(), 0);
        for mut slice in plain {
            while !slice.is_empty() {
                if content_bytes == 0 {
                    end += self.begin(&mut into[end..])?;
                }
                if content_bytes == 0 && slice.len() >= most_bytes {
                    let (content, rest) = slice.split_at(most_bytes);
                    end += self.whole(content, &mut into[end..])?;
                    slice = rest;
                    continue;
                }
                let room = most_bytes - content_bytes;
                let (part, rest) = slice.split_at(room.min(slice.len()));
                copy(&mut into[end + HEADER_BYTES + content_bytes..][..part.len()], part);
                content_bytes += part.len();
                slice = rest;
                if content_bytes == most_bytes {
                    end += self.end(content_bytes, &mut into[end..])?;
                    content_bytes = 0;
                }
            }
        }
        if content_bytes > 0 {
            end += self.end(content_bytes, &mut into[end..])?;
        }
        Ok(end)
    }

    /// Writes a key update if one is due. Returns its length.
    fn begin(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        let Some(per_key) = self.per_key else { return Ok(0) };
        let is_due = self.outgoing.records() >= per_key;
        // If this end has already asked, do not ask again: the other end answers together with its
        // next data.
        if !is_due && (self.has_asked || self.incoming.records() < per_key) {
            return Ok(0);
        }
        self.has_asked = true;
        let updated = self.update_keys(true, into);
        updated.ok_or_else(|| TlsError::Broken("cannot derive the next keys".to_owned()))
    }

    /// Encrypts a full record of contiguous content. Returns the length of the record.
    fn whole(&mut self, content: &[u8], into: &mut [u8]) -> Result<usize, TlsError> {
        let record = &mut into[..content.len() + EXTRA_BYTES];
        let is_sealed = self.outgoing.seal_from(APPLICATION, content, record).is_some();
        is_sealed.then_some(record.len()).ok_or_else(not_taken)
    }

    fn end(&mut self, content_bytes: usize, into: &mut [u8]) -> Result<usize, TlsError> {
        let finished = self.finish(APPLICATION, content_bytes, into);
        finished.ok_or_else(not_taken)
    }

    /// Returns whether this end has asked for a key update that the other end has not answered.
    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked
    }

    pub(crate) fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// Moves as much pending output into `into` as fits. Returns the number of bytes.
    pub(crate) fn take_output(&mut self, into: &mut [u8]) -> usize {
        take_from(&mut self.output, into)
    }

    /// Queues the last output of the handshake, before any other output.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }
}

fn not_taken() -> TlsError {
    TlsError::Broken("cannot encrypt a record".to_owned())
}

/// Moves as many bytes as fit from the front of `kept` into `into`. Frees the memory of `kept` when
/// it is empty.
fn take_from(kept: &mut Vec<u8>, into: &mut [u8]) -> usize {
    let count = kept.len().min(into.len());
    into[..count].copy_from_slice(&kept[..count]);
    kept.drain(..count);
    if kept.is_empty() {
        *kept = Vec::new();
    }
    count
}
