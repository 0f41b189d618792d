//! Secure channel concatenation: corrupted messages, and hosts that restart the authentication.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::concatenation(data));
