//! House rules that a program can check: dependency arrows, places of `unsafe`, and the lengths of
//! lines, functions, structs and files.
//!
//! Only `tests/tidy.rs` has code. It reads the sources of the whole workspace and depends on none
//! of its crates, so `make lint` builds and runs it in seconds.
