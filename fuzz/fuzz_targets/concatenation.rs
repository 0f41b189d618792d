//! Tests secure channel concatenation with corrupted messages, and with hosts that restart the
//! authentication.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::concatenation(data));
