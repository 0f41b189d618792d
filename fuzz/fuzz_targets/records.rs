//! Decrypts TLS records that were reordered or corrupted on the network.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::records(data));
