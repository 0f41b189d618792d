//! Corrupts authentication messages between a host and a controller.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::authentication(data));
