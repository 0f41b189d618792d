use super::*;
use zeroize::Zeroizing;

fn secrets() -> Secrets {
    let secret = |byte| Some(Zeroizing::new(vec![byte; 32]));
    Secrets { client: secret(1), server: secret(2) }
}

/// Returns the records of a client and a server.
fn pair() -> (Records, Records) {
    let end = |is_client| Records::new(Hash::Sha256, secrets(), None, is_client);
    (end(true).expect("a supported suite"), end(false).expect("a supported suite"))
}

/// Encrypts `content` into a record of the type `kind`.
fn record(from: &mut Records, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; content.len() + 2 * LINE_BYTES];
    bytes[HEADER_BYTES..][..content.len()].copy_from_slice(content);
    let length = from.finish(kind, content.len(), &mut bytes).expect("room in the buffer");
    bytes.truncate(length);
    bytes
}

fn open(to: &mut Records, sealed: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = vec![0; to.openable_bytes(sealed.len())];
    let (filled, ended) = to.open(sealed, &mut plain);
    plain.truncate(filled);
    ended.map_or(Ok(plain), |error| Err(error.to_string()))
}

#[test]
fn the_number_of_consecutive_records_without_data_is_limited() {
    let (mut client, mut server) = pair();
    for round in 0..3 {
        for _ in 0..limits::RECORDS_WITHOUT_DATA {
            let mut update = [0; LINE_BYTES];
            client.update_keys(false, &mut update).expect("room in the buffer");
            assert_eq!(open(&mut server, &update), Ok(vec![]));
        }
        if round < 2 {
            let data = record(&mut client, APPLICATION, b"data");
            assert_eq!(open(&mut server, &data), Ok(b"data".to_vec()));
        }
    }
    let empty = record(&mut client, APPLICATION, b"");
    let error = open(&mut server, &empty).expect_err("one empty record too many");
    assert!(error.contains("records without data"), "{error}");
}

#[test]
fn a_client_ignores_session_tickets_and_a_server_refuses_them() {
    let (mut client, mut server) = pair();
    let ticket = [&[NEW_SESSION_TICKET, 0, 0, 200][..], &[7; 200]].concat();
    let twice = [&ticket[..], &ticket].concat();
    // Use pieces of several sizes, so that some also split the four header bytes.
    for piece in [1000, 204, 203, 150, 100, 51] {
        for part in twice.chunks(piece) {
            let sealed = record(&mut server, HANDSHAKE, part);
            assert_eq!(open(&mut client, &sealed), Ok(vec![]));
        }
        let data = record(&mut server, APPLICATION, b"data");
        assert_eq!(open(&mut client, &data), Ok(b"data".to_vec()));
        assert!(client.messages.is_empty());
    }
    let sealed = record(&mut client, HANDSHAKE, &ticket);
    assert!(open(&mut server, &sealed).is_err());
}

#[test]
fn data_inside_a_handshake_message_are_refused() {
    for data in [&b"data"[..], b""] {
        for part in [&[NEW_SESSION_TICKET, 0, 0, 9, 1][..], &[KEY_UPDATE]] {
            let (mut client, mut server) = pair();
            let begun = record(&mut server, HANDSHAKE, part);
            assert_eq!(open(&mut client, &begun), Ok(vec![]));
            let between = record(&mut server, APPLICATION, data);
            let error = open(&mut client, &between).expect_err("the connection ends");
            assert!(error.contains("middle of a message"), "{data:?}: {error}");
            assert!(client.output_bytes() > 0, "the peer is not notified");
        }
    }
}

#[test]
fn invalid_records_end_the_connection() {
    let kinds: [(u8, &[u8]); 10] = [
        (20, &[1]),
        (0, b""),
        (HANDSHAKE, b""),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2]),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0]),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE]),
        (HANDSHAKE, &[1, 0, 0, 0]),
        (HANDSHAKE, &[NEW_SESSION_TICKET, 1, 0, 0]),
        (ALERT, &[1]),
        (ALERT, &[3, 0]),
    ];
    for (kind, content) in kinds {
        let (mut client, mut server) = pair();
        let sealed = record(&mut server, kind, content);
        let error = open(&mut client, &sealed).expect_err("the connection ends");
        assert!(error.starts_with("TLS failed"), "{kind} {content:?}: {error}");
        let mut alert = vec![0; client.output_bytes()];
        client.take_output(&mut alert);
        let told = open(&mut server, &alert).expect_err("the peer's alert is reported");
        assert!(told.contains("the alert"), "{kind} {content:?}: {told}");
    }
    let (mut client, mut server) = pair();
    let sealed = record(&mut server, ALERT, &[WARNING, CLOSE_NOTIFY]);
    assert_eq!(open(&mut client, &sealed), Err(TlsError::Closed.to_string()));
    assert_eq!(client.output_bytes(), 0);
}

/// An attacker may have inserted these headers.
#[test]
fn invalid_record_headers_are_refused_at_once() {
    for header in [[23, 3, 3, 0, 0], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1], [22, 3, 3, 0, 64]] {
        let (mut client, _) = pair();
        assert!(open(&mut client, &header).is_err(), "{header:?}");
    }
}

/// An idle connection keeps only the start of an incomplete record.
#[test]
fn an_idle_connection_releases_its_buffers() {
    let (mut client, mut server) = pair();
    let data = vec![5; 300_000];
    let mut sealed = vec![0; client.sealed_bytes(data.len())];
    let plain = &mut std::iter::once(&data[..]);
    let length = client.seal(plain, &mut sealed).expect("room in the buffer");
    sealed.truncate(length);
    for piece in sealed.chunks(10_000) {
        open(&mut server, piece).expect("a valid record");
        assert!(
            server.input.capacity() <= limits::SEALED_BYTES,
            "the input has room for more than one record"
        );
    }
    assert_eq!(server.input.capacity(), 0);
    assert_eq!(client.output.capacity() + server.held.capacity(), 0);
}

/// Whole records that fit are decrypted directly into their destination. Other records stay
/// unchanged.
#[test]
fn a_record_that_does_not_fit_stays_sealed() {
    let (mut client, mut server) = pair();
    let first = record(&mut client, APPLICATION, &[1; 100]);
    let second = record(&mut client, APPLICATION, &[2; 9000]);
    let both = [&first[..], &second].concat();
    let mut plain = vec![0; limits::OPENED_BYTES];
    let mut sealed = &both[..first.len() - 1];
    assert_eq!(server.open_some(&mut sealed, &mut plain), (0, None));
    assert!(sealed.is_empty(), "the start of a record is not kept");
    sealed = &both[first.len() - 1..];
    let room = &mut plain[..second.len() - HEADER_BYTES - 1];
    assert_eq!(server.open_some(&mut sealed, room), (100, None));
    assert_eq!(sealed, second, "a record without room for its body was taken");
    assert_eq!(server.open_some(&mut sealed, &mut plain), (9000, None));
    assert!(sealed.is_empty() && plain[..9000] == [2; 9000]);
}

/// Pseudorandom numbers, which are equal in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// The sender sends data in batches of any size, with key updates and short records. The bytes
/// arrive in pieces of any size, and the receiver reads them in pieces of other sizes. A change in
/// transit ends the connection before the receiver reads changed data.
#[test]
fn received_bytes_equal_the_sent_bytes() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let is_changed = seed % 2 == 1;
        let per_key = Some(numbers.below(4) as u64);
        let hash = if seed % 5 == 0 { Hash::Sha384 } else { Hash::Sha256 };
        let new = |is_client| Records::new(hash, secrets(), per_key, is_client);
        let mut from = new(seed % 3 != 0).expect("a supported suite");
        let mut to = new(seed % 3 == 0).expect("a supported suite");
        from.shorten([512, 1024, limits::SEALED_BYTES][numbers.below(3)]);
        let (mut said, mut wire) = (Vec::new(), Vec::new());
        for _ in 0..1 + numbers.below(5) {
            let data: Vec<u8> = (0..numbers.below(40_000)).map(|at| (at / 3) as u8).collect();
            let mut sealed = vec![0xee; from.sealed_bytes(data.len())];
            let mut pieces = data.chunks(1 + numbers.below(20_000));
            let length = from.seal(&mut pieces, &mut sealed).expect("room in the buffer");
            assert_eq!(length % LINE_BYTES, 0);
            said.extend(data);
            wire.extend_from_slice(&sealed[..length]);
        }
        let mut changed_at = wire.len();
        if is_changed && !wire.is_empty() {
            changed_at = numbers.below(wire.len());
            wire[changed_at] ^= 1 << numbers.below(8);
        }
        let (mut read, mut ended) = (Vec::new(), None);
        let mut left = &wire[..];
        while ended.is_none() && (!left.is_empty() || to.openable_bytes(0) > 0) {
            let (piece, rest) = left.split_at(left.len().min(1 + numbers.below(30_000)));
            let mut plain = vec![0; numbers.below(30_000)];
            // Pass some of the bytes to `open_some`, which opens only whole records.
            let (mut piece, room) = (piece, numbers.below(2) * numbers.below(plain.len() + 1));
            let (straight, mut end) = to.open_some(&mut piece, &mut plain[..room]);
            let mut filled = straight;
            if end.is_none() {
                let more;
                (more, end) = to.open(piece, &mut plain[straight..]);
                filled += more;
            }
            read.extend_from_slice(&plain[..filled]);
            to.take_output(&mut vec![0; to.output_bytes()]);
            if left.is_empty() && filled == 0 && to.held.is_empty() {
                break;
            }
            (left, ended) = (rest, end);
        }
        assert!(said.starts_with(&read), "{seed}: wrong data was read");
        assert!(read.len() <= changed_at, "{seed}: data after the changed byte was read");
        assert!(is_changed || (read.len() == said.len() && ended.is_none()), "{seed}: {ended:?}");
    }
}
