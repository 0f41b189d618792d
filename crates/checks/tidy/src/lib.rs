//! House rules that a program can check: dependency arrows, places of `unsafe`, and the lengths of
//! lines, functions, structs and files.
//!
//! Only `tests/tidy.rs` and its neighbours have code. They read the sources of the whole workspace
//! and depend on none of its crates, so `make lint` builds and runs them in seconds.
