//! Parses texts of keys, and TLS identities from a client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::keys(data));
