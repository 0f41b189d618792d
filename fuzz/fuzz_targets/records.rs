//! Records of TLS, said in good order or not, and changed on their way.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::records(data));
