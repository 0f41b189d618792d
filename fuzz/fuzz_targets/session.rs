//! Whole sessions of a target: good and broken PDUs on an admin queue and an I/O queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::session(data));
