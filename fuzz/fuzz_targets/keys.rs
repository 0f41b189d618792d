//! Texts of keys, and the identities that a client offers for TLS.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::keys(data));
