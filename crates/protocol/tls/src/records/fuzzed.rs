//! The harness for fuzzing. The fuzz input decides which valid or invalid bytes a peer with the
//! keys sends. It also decides how an attacker changes these bytes, and in which pieces they arrive
//! and are read.

use super::{APPLICATION, EXTRA_BYTES, HEADER_BYTES, LINE_BYTES, Records};
use crate::TlsError;
use crate::limits;
use crate::secrets::Secrets;
use farblock_secure::Hash;
use zeroize::Zeroizing;

/// An end may keep at most this many bytes of handshake messages: a part of a message, and one more
/// record.
const MESSAGES_BYTES: usize = limits::HANDSHAKE_BYTES + 4 + limits::RECORD_BYTES;

/// Runs one fuzz input.
///
/// # Panics
/// Panics if an end reads data that was not sent or was changed in transit. Also panics if an end
/// does not read valid data, or keeps more memory than the limit.
pub fn records(data: &[u8]) {
    let mut input = data.iter().copied();
    let mut way = Way::new(input.next().unwrap_or(0));
    while let Some(kind) = input.next() {
        let mut byte = || input.next().unwrap_or(0);
        let [one, two] = [byte(), byte()];
        let size = usize::from(one) * 128 + usize::from(two);
        match kind % 8 {
            0 | 1 => way.says(size, usize::from(kind) * 64 + 1),
            2 => {
                let content: Vec<u8> = (0..one % 32).map(|_| byte()).collect();
                way.says_record([20, 21, 22, APPLICATION, two][usize::from(two % 5)], &content);
            }
            3 => way.updates(one % 2 == 1),
            4 => way.is_changed(size, two, one),
            _ => way.brings(size, usize::from(kind) * 80),
        }
        if way.ended.is_some() {
            return;
        }
    }
    // Continue to the end of the input, including decrypted data that was not read yet.
    while way.ended.is_none() && (way.wire.len() > way.brought || !way.to.held.is_empty()) {
        way.brings(20_000, 20_000);
    }
    let is_all = way.read == way.said.len() && way.ended.is_none();
    assert!(way.is_odd || is_all, "{} of {}: {:?}", way.read, way.said.len(), way.ended);
}

/// One direction of the connection, with its bytes in transit.
struct Way {
    from: Records,
    to: Records,
    /// All data that the sender has sent. The field `wire` has all bytes that were sent on the
    /// wire.
    said: Vec<u8>,
    wire: Vec<u8>,
    /// How many bytes of `wire` have arrived. The field `read` counts the bytes of `said` that the
    /// receiver has read.
    brought: usize,
    read: usize,
    /// The position of the attacker's change. The receiver must not read the bytes from here on.
    changed_at: Option<usize>,
    /// Whether the fuzz input may have ended the connection.
    is_odd: bool,
    ended: Option<TlsError>,
}

impl Way {
    fn new(choice: u8) -> Self {
        let (hash, length) = if choice & 1 == 0 { (Hash::Sha256, 32) } else { (Hash::Sha384, 48) };
        let new = |is_client| {
            let secret = |byte| Some(Zeroizing::new(vec![byte; length]));
            let secrets = Secrets { client: secret(1), server: secret(2) };
            let per_key = (choice & 4 != 0).then_some(u64::from(choice >> 5));
            Records::new(hash, secrets, per_key, is_client).expect("there is a suite")
        };
        let mut from = new(choice & 2 != 0);
        if choice & 8 != 0 {
            from.shorten(512);
        }
        Self {
            from,
            to: new(choice & 2 == 0),
            said: Vec::new(),
            wire: Vec::new(),
            brought: 0,
            read: 0,
            changed_at: None,
            is_odd: false,
            ended: None,
        }
    }

    fn says(&mut self, bytes: usize, piece: usize) {
        let data: Vec<u8> = (self.said.len()..).take(bytes).map(|at| (at / 3) as u8).collect();
        let mut sealed = vec![0xee; self.from.sealed_bytes(data.len())];
        let length =
            self.from.seal(&mut data.chunks(piece), &mut sealed).expect("room in the buffer");
        self.said.extend(data);
        self.wire.extend_from_slice(&sealed[..length]);
    }

    /// Sends a record of any kind.
    fn says_record(&mut self, kind: u8, content: &[u8]) {
        let mut record = vec![0; content.len() + EXTRA_BYTES + LINE_BYTES];
        record[HEADER_BYTES..][..content.len()].copy_from_slice(content);
        let length =
            self.from.finish(kind, content.len(), &mut record).expect("room in the buffer");
        self.wire.extend_from_slice(&record[..length]);
        self.is_odd = true;
        if kind == APPLICATION {
            self.said.extend_from_slice(content);
        }
    }

    fn updates(&mut self, asks: bool) {
        let mut record = [0; LINE_BYTES];
        let length = self.from.update_keys(asks, &mut record).expect("room in the buffer");
        self.wire.extend_from_slice(&record[..length]);
        self.is_odd = true;
    }

    /// Changes or removes a byte that has not arrived yet, or cuts off the remaining bytes.
    fn is_changed(&mut self, place: usize, by: u8, how: u8) {
        let under_way = self.wire.len() - self.brought;
        // Allow only one change, since a second change could undo the first.
        if under_way == 0 || by == 0 || self.changed_at.is_some() {
            return;
        }
        let at = self.brought + place % under_way;
        match how % 3 {
            0 => self.wire[at] ^= by,
            1 => drop(self.wire.remove(at)),
            _ => self.wire.truncate(at),
        }
        self.changed_at = Some(at);
        self.is_odd = true;
    }

    fn brings(&mut self, bytes: usize, room: usize) {
        let end = self.wire.len().min(self.brought + bytes);
        let mut plain = vec![0; room];
        let mut sealed = &self.wire[self.brought..end];
        // Pass some of the bytes to `open_some`, which opens only whole records.
        let (mut filled, mut ended) = self.to.open_some(&mut sealed, &mut plain[..room / 2]);
        if ended.is_none() {
            let (more, end) = self.to.open(sealed, &mut plain[filled..]);
            (filled, ended) = (filled + more, end);
        }
        self.brought = end;
        let expected = self.said.get(self.read..self.read + filled);
        assert!(expected == Some(&plain[..filled]), "the receiver read other data");
        self.read += filled;
        // A record is at least as long as its data, so the receiver reads at most as many bytes as
        // arrived.
        let most = self.changed_at.unwrap_or(self.brought);
        assert!(self.read <= most, "the receiver read past the change");
        self.ended = ended;
        self.answers();
        let (input, messages) = (self.to.input.len(), self.to.messages.len());
        // If the reader has no room, bytes stay in the input.
        let is_kept = self.ended.is_some() || !self.to.held.is_empty();
        let is_bounded = is_kept || input <= limits::SEALED_BYTES;
        assert!(is_bounded, "{input} bytes of a record are kept");
        assert!(messages <= MESSAGES_BYTES, "{messages} bytes of messages are kept");
    }

    /// Sends the receiver's own output, which is valid, to the sender. While the connection lives,
    /// a byte of data follows the output.
    fn answers(&mut self) {
        let data: &[u8] = if self.ended.is_none() { &[7] } else { &[] };
        let mut answer = vec![0; self.to.sealed_bytes(data.len())];
        let length =
            self.to.seal(&mut std::iter::once(data), &mut answer).expect("room in the buffer");
        let mut plain = vec![0; self.from.openable_bytes(length)];
        match (self.from.open(&answer[..length], &mut plain), &self.ended) {
            ((1, None), None) => assert_eq!(plain[0], 7),
            ((0, None), Some(TlsError::Closed | TlsError::Refused(_))) => {}
            ((0, Some(TlsError::Refused(_))), Some(TlsError::Broken(_))) => {}
            // An end that requested too many answers at once fails: all of them are records without
            // data.
            ((0, Some(over)), _) if length / LINE_BYTES > limits::RECORDS_WITHOUT_DATA => {
                self.is_odd = true;
                self.ended = Some(over);
            }
            other => panic!("the answer is {other:?}"),
        }
    }
}
