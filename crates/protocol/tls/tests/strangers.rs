//! Measures the memory that peers without a key occupy in a server.
#![cfg(target_os = "linux")] // The test reads /proc/self/statm.

use farblock_secure::{Hash, TlsKey};
use farblock_tls::{ServerKeys, Tls, limits, server};
use std::sync::Arc;

const STRANGERS: usize = 300;
/// A stranger may cost the server at most this many bytes: the bytes that it has sent, and the
/// memory of OpenSSL.
const MOST_BYTES: usize = limits::HANDSHAKE_BYTES + (24 << 10);

fn resident_bytes() -> usize {
    const PAGE_BYTES: usize = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).expect("the resident pages in the second field");
    pages.parse::<usize>().expect("a number") * PAGE_BYTES
}

#[test]
fn an_incomplete_client_hello_costs_little_more_than_its_size() {
    let mut keys = ServerKeys::default();
    let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(1)).expect("a suite");
    keys.add(key, "nqn.2026-11.h:one");
    let keys = Arc::new(keys);
    // Send a message of 64 KiB in full records, up to the limit.
    let mut record = vec![22, 3, 1, 0x40, 0];
    record.resize(5 + limits::RECORD_BYTES, 0);
    let mut message = [&record[..], &record[..]].concat();
    message[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
    message.truncate(limits::HANDSHAKE_BYTES);
    let begun = || -> Box<dyn Tls> {
        let mut server = server(Arc::clone(&keys)).expect("OpenSSL is installed");
        for piece in message.chunks(5000) {
            server.feed(piece);
            assert_eq!(server.handshake(), Ok(false));
        }
        server
    };
    // Make the library's one-time allocations before the measurement.
    drop(begun());
    let before = resident_bytes();
    let strangers: Vec<_> = (0..STRANGERS).map(|_| begun()).collect();
    let each = (resident_bytes() - before) / strangers.len();
    assert!(each <= MOST_BYTES, "{each} bytes for each connection");
}
