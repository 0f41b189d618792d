//! A client and a server that hand each other bytes, and strangers.
#![cfg(unix)]

use farblock_secure::{Derivation, Hash, IdentityForm, TlsKey, TlsPsk};
use farblock_tls::{ServerKeys, Tls, TlsError, client, client_with, limits, server};
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
    let _ = from.flush();
    let mut bytes = vec![0; from.output_bytes()];
    assert_eq!(from.output(&mut bytes), bytes.len());
    bytes
}

/// Moves what one has to say to the other, in pieces of `piece` bytes.
fn carry(from: &mut dyn Tls, to: &mut dyn Tls, piece: usize) -> usize {
    let bytes = output(from);
    bytes.chunks(piece).for_each(|bytes| to.feed(bytes));
    bytes.len()
}

/// The handshake, and how it ends at the client and the server.
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

fn read_all(tls: &mut dyn Tls) -> Vec<u8> {
    let mut all = vec![0; tls.readable_bytes()];
    let mut filled = 0;
    while let count @ 1.. = tls.read(&mut all[filled..]).unwrap() {
        filled += count;
    }
    all.truncate(filled);
    all
}

#[test]
fn both_suites_forms_and_derivations() {
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
                let peer = server.peer().expect("it has a key");
                assert_eq!((peer.host.as_str(), peer.subsystem.as_str()), (HOST, SUBSYSTEM));
                assert_eq!(peer.psk.derivation, derivation);
                assert_eq!(peer.psk.identity, identity);
            }
        }
    }
}

#[test]
fn two_keys_while_one_takes_the_others_place() {
    let both = [key(Hash::Sha256, 1), key(Hash::Sha256, 2)];
    for configured in &both {
        for form in [IdentityForm::Names, IdentityForm::Digest] {
            let offered = psk(configured, form, Derivation::Compatible);
            let (mut client, mut server) = pair(offered, keys(&both));
            assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
        }
    }
}

#[test]
fn data_in_full_records_both_ways() {
    let configured = key(Hash::Sha384, 3);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1 << 20), (Ok(true), Ok(true)));
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7) as u8).collect();
    for (from, to) in [(&mut client, &mut server)] {
        // In odd pieces, of which some are larger than a record.
        let (mut left, mut sizes) =
            (&data[..], [24, 4096, 1, 100_000, 16_384, 40_000].iter().cycle());
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(*sizes.next().unwrap()));
            from.write(piece).unwrap();
            left = rest;
        }
        let sent = output(&mut **from);
        let records = data.len().div_ceil(limits::RECORD_BYTES);
        assert_eq!(sent.len(), data.len() + records * 22, "every record but the last is full");
        let mut received = Vec::new();
        for piece in sent.chunks(10_007) {
            to.feed(piece);
            received.extend(read_all(&mut **to));
        }
        assert!(received == data);
    }
    server.write(b"back").unwrap();
    carry(&mut *server, &mut *client, 3);
    assert_eq!(read_all(&mut *client), b"back");
}

/// Bytes of a record besides its content, and of the content of an update.
const RECORD_BYTES: usize = 22;
const UPDATE_BYTES: usize = 5;

#[test]
fn keys_are_updated_in_time_and_nothing_is_lost() {
    const PER_KEY: usize = 5;
    let configured = key(Hash::Sha384, 1);
    let mut client = client_with(by_digest(&configured), PER_KEY as u64).unwrap();
    let mut server = server(keys(&[configured])).unwrap();
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    let mut updates = [0, 0];
    let mut sent = 0;
    // Every direction by itself, and both at once.
    for round in 0..120usize {
        let (there, back) = (round % 3 != 0, round % 3 != 1);
        let data: Vec<u8> = (0..round + 1).map(|at| (at * 7 + round) as u8).collect();
        if there {
            client.write(&data).unwrap();
            sent += 1;
        }
        let bytes = carry(&mut *client, &mut *server, 11);
        let plain = if there { data.len() + RECORD_BYTES } else { 0 };
        updates[0] += (bytes - plain) / (RECORD_BYTES + UPDATE_BYTES);
        assert_eq!(read_all(&mut *server), if there { &data[..] } else { &[] });
        if back {
            server.write(&data).unwrap();
        }
        let bytes = carry(&mut *server, &mut *client, 13);
        let plain = if back { data.len() + RECORD_BYTES } else { 0 };
        updates[1] += (bytes - plain) / (RECORD_BYTES + UPDATE_BYTES);
        assert_eq!(read_all(&mut *client), if back { &data[..] } else { &[] });
    }
    assert!(updates[0] >= (sent - 1) / PER_KEY, "{updates:?}");
    assert_eq!(updates[0], updates[1], "the server answers each");
}

#[test]
fn a_server_does_not_begin_updates() {
    let configured = key(Hash::Sha256, 1);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    for _ in 0..100 {
        server.write(b"data").unwrap();
        assert_eq!(carry(&mut *server, &mut *client, 1000), 4 + RECORD_BYTES);
        assert_eq!(read_all(&mut *client), b"data");
    }
}

#[test]
fn who_asks_for_updates_and_takes_no_answers_is_done_with() {
    let configured = key(Hash::Sha256, 1);
    // Each of its records comes with an update.
    let mut client = client_with(by_digest(&configured), 0).unwrap();
    let mut server = server(keys(&[configured])).unwrap();
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    let mut most_bytes = 0;
    for _ in 0..10_000 {
        client.write(b"x").unwrap();
        let sealed = output(&mut *client);
        server.feed(&sealed);
        let mut plain = [0; 8];
        match server.read(&mut plain) {
            Ok(count) => assert_eq!(count, 1),
            Err(error) => {
                assert!(error.to_string().contains("takes no answers"), "{error}");
                break;
            }
        }
        most_bytes = most_bytes.max(server.output_bytes());
    }
    assert!(most_bytes <= limits::UNASKED_BYTES, "{most_bytes} bytes");
}

#[test]
fn who_has_another_key_learns_so() {
    let offered = psk(&key(Hash::Sha256, 1), IdentityForm::Names, Derivation::Specified);
    let (mut client, mut server) = pair(offered, keys(&[key(Hash::Sha256, 2)]));
    let (at_client, at_server) = shake(&mut *client, &mut *server, 1000);
    assert!(matches!(at_server, Err(TlsError::WrongKey(_))), "{at_server:?}");
    let text = at_client.unwrap_err().to_string();
    assert!(text.contains("another key"), "{text}");
    assert!(server.peer().is_none());
}

#[test]
fn who_has_another_name_learns_so() {
    let configured = key(Hash::Sha256, 1);
    let (form, derivation) = (IdentityForm::Digest, Derivation::Specified);
    let offered = configured.psk("nqn.2026-11.h:two", SUBSYSTEM, form, derivation).unwrap();
    let identity = offered.identity.clone();
    let (mut client, mut server) = pair(offered, keys(&[configured]));
    let (at_client, at_server) = shake(&mut *client, &mut *server, 1000);
    assert_eq!(at_server, Err(TlsError::UnknownIdentity(vec![identity])));
    let text = at_client.unwrap_err().to_string();
    assert!(text.contains("does not know the identity"), "{text}");
}

/// A stranger chooses the subsystem in an identity, and what is said of it gets into logs.
#[test]
fn nothing_of_an_identity_reaches_a_terminal() {
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
fn no_tls_is_told_from_tls() {
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
fn a_stranger_makes_a_server_hold_little() {
    let mut server = server(keys(&[key(Hash::Sha256, 1)])).unwrap();
    // The beginning of a message of 64 KiB, in records.
    let mut record = vec![22, 3, 1, 0x40, 0];
    record.resize(5 + 0x4000, 0);
    record[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
    server.feed(&record);
    assert_eq!(server.handshake(), Ok(false));
    server.feed(&record);
    assert!(matches!(server.handshake(), Err(TlsError::Broken(_))));
}

#[test]
fn what_is_changed_or_cut_is_noticed() {
    let configured = key(Hash::Sha256, 1);
    let (mut client, mut server) = pair(by_digest(&configured), keys(&[configured]));
    assert_eq!(shake(&mut *client, &mut *server, 1000), (Ok(true), Ok(true)));
    client.write(&[5; 100]).unwrap();
    let sent = output(&mut *client);
    server.feed(&sent[..sent.len() - 1]);
    assert_eq!(server.read(&mut [0; 200]), Ok(0), "half a record is nothing yet");
    server.feed(&[sent[sent.len() - 1] ^ 1]);
    assert!(matches!(server.read(&mut [0; 200]), Err(TlsError::Broken(_))));
    // It stays so.
    assert!(server.read(&mut [0; 200]).is_err() && server.write(b"a").is_err());
}

#[test]
fn every_cut_and_change_of_a_first_message_is_no_panic() {
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
    assert_eq!(run(&first), Ok(false), "it waits for the client's end");
    for at in 0..first.len() {
        assert_eq!(run(&first[..at]), Ok(false), "cut at {at}");
        let mut changed = first.clone();
        changed[at] ^= 0x41;
        // The binder covers all but itself and what frames the message.
        assert_ne!(run(&changed), Ok(true), "changed at {at}");
    }
}
