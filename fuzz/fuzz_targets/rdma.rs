//! Parses private data and data pointers of an RDMA peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| farblock_sim::fuzz::rdma(data));
