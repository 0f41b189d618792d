//! Sends valid and invalid PDUs to a target, on an admin queue and an I/O queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::session(data));
