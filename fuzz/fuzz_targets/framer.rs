//! Passes arbitrary bytes to the framer, at once and byte by byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::framer(data));
