//! A key for TLS out of an authentication: messages on their way, and hosts that begin anew.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::concatenation(data));
