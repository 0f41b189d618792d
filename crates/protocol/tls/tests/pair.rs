//! Tests a client and a server that pass bytes to each other, and strangers without a key.

use farblock_secure::{Derivation, Hash, IdentityForm, TlsKey, TlsPsk};
use farblock_tls::{ServerKeys, Tls, TlsError, client, client_with, limits, server, server_with};
use std::sync::Arc;

const HOST: &str = "nqn.2026-11.h:one";
const SUBSYSTEM: &str = "nqn.2026-11.s:one";

fn key(hash: Hash, seed: u8) -> TlsKey {
    TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(seed)).unwrap()
}

fn psk(key: &TlsKey, form: IdentityForm, derivation: Derivation) -> TlsPsk {
    key.psk(HOST, SUBSYSTEM, form, derivation).unwrap()
}

fn by_digest(key: &TlsKey) -> TlsPsk {
    psk(key, IdentityForm::Digest, Derivation::Specified)
}

fn keys(keys: &[TlsKey]) -> Arc<ServerKeys> {
    let mut known = ServerKeys::default();
    keys.iter().for_each(|key| known.add(key.clone(), HOST));
    Arc::new(known)
}

fn output(from: &mut dyn Tls) -> Vec<u8> {
    let mut bytes = vec![0; from.output_bytes()];
    assert_eq!(from.output(&mut bytes), bytes.len());
    bytes
}

/// Encrypts data of one end into records.
fn sealed(from: &mut dyn Tls, plain: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; from.sealed_bytes(plain.len())];
    let length = from.seal(&mut std::iter::once(plain), &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

/// Moves one end's handshake output to the other end, in pieces of `piece` bytes.
fn carry(from: &mut dyn Tls, to: &mut dyn Tls, piece: usize) -> usize {
    let bytes = output(from);
    bytes.chunks(piece).for_each(|bytes| to.feed(bytes));
    bytes.len()
}

/// Runs the handshake. Returns the results of the client and the server.
fn shake(
    client: &mut dyn Tls,
    server: &mut dyn Tls,
    piece: usize,
) -> (Result<bool, TlsError>, Result<bool, TlsError>) {
    loop {
        let at_client = client.handshake();
        let there = carry(client, server, piece);
        let at_server = server.handshake();
        let back = carry(server, client, piece);
        if there + back == 0 || (at_client.is_err() && at_server.is_err()) {
            return (at_client, at_server);
        }
    }
}

fn pair(psk: TlsPsk, known: Arc<ServerKeys>) -> (Box<dyn Tls>, Box<dyn Tls>) {
    (client(psk).unwrap(), server(known).unwrap())
}

/// Decrypts these bytes. Returns the plain bytes, and the error after these bytes, if any.
fn opened(tls: &mut dyn Tls, sealed: &[u8]) -> (Vec<u8>, Option<TlsError>) {
    let mut plain = vec![0; tls.openable_bytes(sealed.len())];
    let (filled, ended) = tls.open(sealed, &mut plain);
    plain.truncate(filled);
    (plain, ended)
}

fn read(tls: &mut dyn Tls, sealed: &[u8], piece: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in sealed.chunks(piece) {
        let (plain, ended) = opened(tls, piece);
        assert_eq!(ended, None);
        all.extend(plain);
    }
    all
}

/// Returns the length of a final record with this many content bytes.
fn record_bytes(content_bytes: usize) -> usize {
    (content_bytes + RECORD_EXTRA_BYTES).next_multiple_of(64)
}

#[test]
fn handshakes_succeed_with_every_suite_form_and_derivation() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let configured = key(hash, 7);
        for form in [IdentityForm::Names, IdentityForm::Digest] {
            for derivation in [Derivation::Specified, Derivation::Compatible] {
                let offered = psk(&configured, form, derivation);
                let identity = offered.identity.clone();
                let (mut client, mut server) =
                    pair(offered, keys(std::slice::from_ref(&configured)));
                let done = shake(&mut *client, &mut *server, 7);
                assert_eq!(done, (Ok(true), Ok(true)), "{identity} {derivation}");
                let peer = server.peer().expect("the peer's key");
                assert_eq!((peer.host.as_str(), peer.subsystem.as_str()), (HOST, SUBSYSTEM));
                assert_eq!(peer.psk.derivation, derivation);
                assert_eq!(peer.psk.identity, identity);
            }
        }
    }
}

#[test]
fn both_keys_are_accepted_during_a_change() {
    let both = [key(Hash::Sha256, 1), key(Hash::Sha256, 2)];
    for configured in &both {
        for form in [IdentityForm::Names, IdentityForm::Digest] {
            let offered = psk(configured, form, Derivation::Compatible);
            let (mut client, mut server) = pair(offered, keys(&both));
            assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        }
    }
}

/// A host with keys for many subsystems may use any of these keys for discovery. A key whose
/// identity has a digest works at once. For an identity without a digest, the server tries some of
/// the keys at each connection.
#[test]
fn every_key_of_a_host_is_accepted_for_discovery() {
    const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
    let mut known = ServerKeys::default();
    let all: Vec<_> = (0..20).map(|seed| key(Hash::Sha256, seed)).collect();
    for (number, key) in all.iter().enumerate() {
        known.set(HOST, &format!("{SUBSYSTEM}{number}"), std::slice::from_ref(key));
    }
    let known = Arc::new(known);
    let comes = |key: &TlsKey, form, derivation| {
        let offered = key.psk(HOST, DISCOVERY, form, derivation).unwrap();
        let (mut client, mut server) = pair(offered, Arc::clone(&known));
        shake(&mut *client, &mut *server, 1000)
    };
    let other = key(Hash::Sha256, 99);
    for derivation in [Derivation::Specified, Derivation::Compatible] {
        for key in &all {
            assert_eq!(comes(key, IdentityForm::Digest, derivation), (Ok(true), Ok(true)));
            let is_in = || comes(key, IdentityForm::Names, derivation) == (Ok(true), Ok(true));
            let turns = all.len().div_ceil(limits::DISCOVERY_KEYS);
            // Connect until the present round is over, and then for one whole round.
            assert!(
                (1..2 * turns).any(|_| is_in()),
                "the server tries the host's key within two rounds"
            );
            for _ in 0..turns {
                let (_, at_server) = comes(&other, IdentityForm::Names, derivation);
                let error = at_server.expect_err("a stranger");
                assert!(matches!(error, TlsError::OtherKeys { keys: 20, .. }), "{error:?}");
                assert!(is_in(), "the server tries the key of a known host first");
            }
        }
    }
}

#[test]
fn data_pass_in_full_records_in_both_directions() {
    let configured = key(Hash::Sha384, 3);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1 << 20), (Ok(true), Ok(true)));
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7) as u8).collect();
    // Pass the data in pieces of different sizes, some larger than a record.
    let mut pieces = Vec::new();
    let (mut left, mut sizes) = (&data[..], [24, 4096, 1, 100_000, 16_384, 40_000].iter().cycle());
    while !left.is_empty() {
        let (piece, rest) = left.split_at(left.len().min(*sizes.next().unwrap()));
        pieces.push(piece);
        left = rest;
    }
    let mut sent = vec![0; client.sealed_bytes(data.len())];
    let length = client.seal(&mut pieces.into_iter(), &mut sent).unwrap();
    sent.truncate(length);
    let content_bytes = limits::SEALED_BYTES - RECORD_EXTRA_BYTES;
    let (full, rest) = (data.len() / content_bytes, data.len() % content_bytes);
    let wanted = full * limits::SEALED_BYTES + record_bytes(rest);
    assert_eq!(sent.len(), wanted, "all records except the last are full");
    assert!(read(&mut *server, &sent, 10_007) == data);
    let back = sealed(&mut *server, b"back");
    assert_eq!(read(&mut *client, &back, 3), b"back");
}

#[test]
fn data_pass_through_small_buffers() {
    let configured = key(Hash::Sha256, 3);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1 << 20), (Ok(true), Ok(true)));
    let data: Vec<u8> = (0..100_000u32).map(|n| (n / 7) as u8).collect();
    server.feed(&sealed(&mut *client, &data));
    let (mut all, mut small) = (Vec::new(), [0; 333]);
    while let (count @ 1.., None) = server.open(&[], &mut small) {
        all.extend_from_slice(&small[..count]);
    }
    assert!(all == data);
}

/// The bytes of a record besides its content and padding.
const RECORD_EXTRA_BYTES: usize = 22;
const UPDATE_BYTES: usize = 64;

#[test]
fn keys_are_updated_before_their_limit_without_data_loss() {
    const PER_KEY: usize = 5;
    let configured = key(Hash::Sha384, 1);
    let mut client = client_with(by_digest(&configured), PER_KEY as u64).unwrap();
    let mut server = server(keys(&[configured])).unwrap();
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    let mut updates = [0, 0];
    let mut sent = 0;
    // Send data in each direction alone, and then in both directions at once.
    for round in 0..120usize {
        let (there, back) = (round % 3 != 0, round % 3 != 1);
        let data: Vec<u8> = (0..round + 1).map(|at| (at * 7 + round) as u8).collect();
        let none = &data[..0];
        for (at, is_used) in [(0, there), (1, back)] {
            let (from, to) = match at {
                0 => (&mut client, &mut server),
                _ => (&mut server, &mut client),
            };
            let (data, plain) =
                if is_used { (&data[..], record_bytes(data.len())) } else { (none, 0) };
            let bytes = sealed(&mut **from, data);
            updates[at] += (bytes.len() - plain) / UPDATE_BYTES;
            assert_eq!(read(&mut **to, &bytes, 11 + 2 * at), data);
        }
        sent += usize::from(there);
    }
    assert!(updates[0] >= (sent - 1) / PER_KEY, "{updates:?}");
    assert_eq!(updates[0], updates[1], "the server answers each update");
}

/// A server asks a client for a key update if the client does not ask, whichever end sends more.
#[test]
fn a_server_requests_key_updates_from_clients_that_do_not_update() {
    const PER_KEY: u64 = 5;
    let configured = key(Hash::Sha256, 1);
    for (there, back) in [(1, 1), (20, 1), (1, 20)] {
        let mut client = client_with(by_digest(&configured), u64::MAX).unwrap();
        let known = keys(std::slice::from_ref(&configured));
        let mut server = server_with(known, PER_KEY).unwrap();
        assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        let mut updates = [0, 0];
        for _ in 0..40 {
            for (at, count) in [(0, there), (1, back)] {
                let (from, to) = match at {
                    0 => (&mut client, &mut server),
                    _ => (&mut server, &mut client),
                };
                for _ in 0..count {
                    let bytes = sealed(&mut **from, b"data");
                    updates[at] += (bytes.len() - record_bytes(4)) / UPDATE_BYTES;
                    assert_eq!(read(&mut **to, &bytes, 1000), b"data");
                }
            }
        }
        // The end that sends more data asks for updates more often. The other end answers together
        // with its next data.
        let rounds = (40 * there.max(back) / PER_KEY as usize).min(40);
        assert!(updates[1] + 1 >= rounds, "{there}, {back}: {updates:?}");
        assert!(updates[0] + 1 >= updates[1].min(40), "{there}, {back}: {updates:?}");
    }
}

#[test]
fn a_host_that_disconnects_after_a_key_update_request_gets_no_second_one() {
    let configured = key(Hash::Sha256, 1);
    let known = keys(std::slice::from_ref(&configured));
    // Returns 1 if the server asks the client for a key update, and 0 if it does not. Passes the
    // request to `ends`, which may end the connection.
    let updates = |ends: fn(&mut dyn Tls, &mut dyn Tls, &[u8])| {
        let mut client = client_with(by_digest(&configured), u64::MAX).unwrap();
        // Copies of the server's keys share the list of hosts without support for updates.
        let mut server = server_with(Arc::new((*known).clone()), 5).unwrap();
        assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        for _ in 0..20 {
            let bytes = sealed(&mut *server, b"data");
            if bytes.len() > record_bytes(4) {
                ends(&mut *client, &mut *server, &bytes);
                return 1;
            }
            assert_eq!(read(&mut *client, &bytes, 1000), b"data");
        }
        0
    };
    let answers = |client: &mut dyn Tls, server: &mut dyn Tls, bytes: &[u8]| {
        read(client, bytes, 1000);
        let answer = sealed(client, b"data");
        assert_eq!(read(server, &answer, 1000), b"data");
    };
    assert_eq!((updates(answers), updates(answers)), (1, 1));
    assert_eq!(updates(|_, _, _| {}), 1, "the server still requests an update");
    assert_eq!(updates(answers), 0);
}

#[test]
fn a_client_that_requests_updates_without_reading_is_disconnected() {
    let configured = key(Hash::Sha256, 1);
    // This client sends a key update before each of its records.
    let mut client = client_with(by_digest(&configured), 0).unwrap();
    let mut server = server(keys(&[configured])).unwrap();
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    let (mut most_bytes, mut end) = (0, None);
    for _ in 0..10_000 {
        let (plain, ended) = opened(&mut *server, &sealed(&mut *client, b"x"));
        most_bytes = most_bytes.max(server.output_bytes());
        if ended.is_some() {
            end = ended;
            break;
        }
        assert_eq!(plain, b"x");
    }
    let text = end.expect("the connection ends").to_string();
    assert!(text.contains("without reading the answers"), "{text}");
    assert!(most_bytes <= limits::UNASKED_BYTES + 2 * UPDATE_BYTES, "{most_bytes} bytes");
}

#[test]
fn a_client_with_another_key_gets_the_reason() {
    let offered = psk(&key(Hash::Sha256, 1), IdentityForm::Names, Derivation::Specified);
    let (mut client, mut server) = pair(offered, keys(&[key(Hash::Sha256, 2)]));
    let (at_client, at_server) = shake(&mut *client, &mut *server, 1000);
    assert!(matches!(at_server, Err(TlsError::WrongKey(_))), "{at_server:?}");
    let text = at_client.unwrap_err().to_string();
    assert!(text.contains("another key"), "{text}");
    assert!(server.peer().is_none());
}

#[test]
fn a_client_with_another_name_gets_the_reason() {
    let configured = key(Hash::Sha256, 1);
    let (form, derivation) = (IdentityForm::Digest, Derivation::Specified);
    let offered = configured.psk("nqn.2026-11.h:two", SUBSYSTEM, form, derivation).unwrap();
    let identity = offered.identity.clone();
    let (mut client, mut server) = pair(offered, keys(&[configured]));
    let (at_client, at_server) = shake(&mut *client, &mut *server, 1000);
    let (offered, known) = (vec![identity], Vec::new());
    assert_eq!(at_server, Err(TlsError::UnknownIdentity { offered, known }));
    let text = at_client.unwrap_err().to_string();
    assert!(text.contains("does not know the offered identity"), "{text}");
}

#[test]
fn the_server_distinguishes_another_hash_from_another_name() {
    let (mut client, mut server) =
        pair(by_digest(&key(Hash::Sha384, 1)), keys(&[key(Hash::Sha256, 1)]));
    let (_, at_server) = shake(&mut *client, &mut *server, 1000);
    let text = at_server.unwrap_err().to_string();
    assert!(text.contains("NVMe1R02") && text.ends_with("NVMe0R01, NVMe1R01"), "{text}");
}

/// The test changes a client's first message so that the client seems not to offer what the server
/// needs.
#[test]
fn the_server_names_what_the_client_does_not_offer() {
    // The bytes of the first entry are the length of the list of cipher suites, and the client's
    // suite. The bytes of the second entry are the extension with key exchange modes: its type, its
    // length, the number of modes, and the mode with an exchange.
    let changes: [(&[u8], &[u8], &str); 2] = [
        (
            &[0, 4, 0x13, 1],
            &[0, 4, 0x13, 3],
            "SHA-256, but the peer does not offer the cipher suite TLS_AES_128_GCM_SHA256",
        ),
        (&[0, 45, 0, 2, 1, 1], &[0, 45, 0, 2, 1, 0], "psk_dhe_ke"),
    ];
    for (from, to, words) in changes {
        let configured = key(Hash::Sha256, 1);
        let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
        assert_eq!(client.handshake(), Ok(false));
        let mut first = output(&mut *client);
        let at = first
            .windows(from.len())
            .position(|bytes| bytes == from)
            .expect("the first message contains these bytes");
        first[at..at + to.len()].copy_from_slice(to);
        server.feed(&first);
        let text = server.handshake().unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

/// A stranger chooses the names in an identity, and messages about the identity appear in logs.
#[test]
fn messages_about_an_identity_have_no_control_characters() {
    for odd in ["\x1b[2J", "nqn\nrefused: nobody", "\u{202e}nqn"] {
        let (form, derivation) = (IdentityForm::Names, Derivation::Specified);
        let offered = key(Hash::Sha256, 1).psk(HOST, odd, form, derivation).unwrap();
        let (mut client, mut server) = pair(offered, keys(&[key(Hash::Sha256, 2)]));
        let (_, at_server) = shake(&mut *client, &mut *server, 1000);
        let text = at_server.unwrap_err().to_string();
        assert!(text.contains(HOST) && text.is_ascii(), "{text:?}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn bytes_without_tls_are_recognized() {
    for bytes in [&b"\0\0\x80\0\x80\0\0\0"[..], b"GET / HTTP/1.1\r\n\r\n", b"\xff"] {
        let mut server = server(keys(&[key(Hash::Sha256, 1)])).unwrap();
        server.feed(bytes);
        assert_eq!(server.handshake(), Err(TlsError::NotTls));
        let mut client = client(by_digest(&key(Hash::Sha256, 1))).unwrap();
        assert_eq!(client.handshake(), Ok(false));
        client.feed(bytes);
        assert_eq!(client.handshake(), Err(TlsError::NotTls));
    }
}

#[test]
fn a_server_buffers_little_of_an_oversized_handshake() {
    let mut server = server(keys(&[key(Hash::Sha256, 1)])).unwrap();
    // This is the start of a message of 64 KiB, in records.
    let mut record = vec![22, 3, 1, 0x40, 0];
    record.resize(5 + 0x4000, 0);
    record[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
    server.feed(&record);
    assert_eq!(server.handshake(), Ok(false));
    server.feed(&record);
    assert!(matches!(server.handshake(), Err(TlsError::Broken(_))));
}

#[test]
fn changed_and_truncated_records_are_detected() {
    let configured = key(Hash::Sha256, 1);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    let sent = sealed(&mut *client, &[5; 100]);
    let (cut, last) = sent.split_at(sent.len() - 1);
    assert_eq!(opened(&mut *server, cut), (vec![], None), "half a record yields no data");
    let (plain, ended) = opened(&mut *server, &[last[0] ^ 1]);
    assert!(plain.is_empty() && matches!(ended, Some(TlsError::Broken(_))), "{ended:?}");
    // The error persists, and the other end receives an alert.
    assert!(opened(&mut *server, &sent).1.is_some());
    let told = sealed(&mut *server, b"not this");
    assert_eq!(opened(&mut *client, &told), (vec![], Some(refused(20))));
}

fn refused(alert: u8) -> TlsError {
    TlsError::Refused(format!("it sent the alert {alert}"))
}

/// Changes one bit of each byte of a record in turn, and sends another record after it.
#[test]
fn every_changed_byte_of_a_record_is_detected() {
    let configured = key(Hash::Sha256, 1);
    for at in 0..record_bytes(60) {
        let known = keys(std::slice::from_ref(&configured));
        let (mut client, mut server) = pair(by_digest(&configured), known);
        assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        let mut sent = sealed(&mut *client, &[5; 60]);
        sent[at] ^= 0x40;
        sent.extend(sealed(&mut *client, &[6; 60]));
        let (plain, ended) = opened(&mut *server, &sent);
        // A changed length may make the server wait for the end of a longer record.
        assert!(plain.is_empty() && (ended.is_some() || at == 3), "changed at {at}: {ended:?}");
    }
}

#[test]
fn repeated_and_reordered_records_are_refused() {
    let configured = key(Hash::Sha256, 1);
    for turn in [[0, 0], [1, 0]] {
        let known = keys(std::slice::from_ref(&configured));
        let (mut client, mut server) = pair(by_digest(&configured), known);
        assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        let records = [sealed(&mut *client, b"one"), sealed(&mut *client, b"two")];
        let sent = turn.map(|number: usize| &records[number][..]).concat();
        let (plain, ended) = opened(&mut *server, &sent);
        assert_eq!(plain.len(), if turn[0] == 0 { 3 } else { 0 });
        assert!(matches!(ended, Some(TlsError::Broken(_))), "{ended:?}");
    }
}

/// The identity of a key names its hash, and so determines one cipher suite. A server that answers
/// with another suite gets no data.
#[test]
fn a_server_cannot_choose_another_suite_than_the_key_has() {
    // These bytes precede the length of the session identifier: the headers of record and message,
    // the version, and the random number.
    const SESSION_LENGTH_AT: usize = 5 + 4 + 2 + 32;
    const SUITES: [[u8; 2]; 3] = [[0x13, 1], [0x13, 2], [0x13, 3]];
    for (hash, own) in [(Hash::Sha256, SUITES[0]), (Hash::Sha384, SUITES[1])] {
        for suite in SUITES {
            let configured = key(hash, 1);
            let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
            assert_eq!(client.handshake(), Ok(false));
            let first = output(&mut *client);
            let at = SESSION_LENGTH_AT + 1 + usize::from(first[SESSION_LENGTH_AT]);
            assert_eq!((&first[at..at + 2], &first[at + 2..at + 4]), (&[0, 4][..], &own[..]));
            server.feed(&first);
            assert_eq!(server.handshake(), Ok(false));
            let mut answer = output(&mut *server);
            let at = SESSION_LENGTH_AT + 1 + usize::from(answer[SESSION_LENGTH_AT]);
            assert_eq!(answer[at..at + 2], own);
            answer[at..at + 2].copy_from_slice(&suite);
            client.feed(&answer);
            let done = client.handshake();
            assert_eq!(done == Ok(true), suite == own, "{suite:?}: {done:?}");
        }
    }
}

#[test]
fn truncated_and_changed_client_hellos_do_not_panic() {
    let configured = key(Hash::Sha256, 1);
    let mut client = client(by_digest(&configured)).unwrap();
    client.handshake().unwrap();
    let first = output(&mut *client);
    let known = keys(&[configured]);
    let run = |bytes: &[u8]| {
        let mut server = server(Arc::clone(&known)).unwrap();
        server.feed(bytes);
        server.handshake()
    };
    assert_eq!(run(&first), Ok(false), "the server waits for the client's Finished message");
    for at in 0..first.len() {
        assert_eq!(run(&first[..at]), Ok(false), "cut at {at}");
        let mut changed = first.clone();
        changed[at] ^= 0x41;
        // The binder covers all bytes except itself and the framing of the message.
        assert_ne!(run(&changed), Ok(true), "changed at {at}");
    }
}
