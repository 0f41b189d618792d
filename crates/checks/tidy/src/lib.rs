//! The rules of the house that a program can check: dependency arrows, where `unsafe` may be, and
//! how long lines, functions, structs and files may get.
//!
//! Only `tests/tidy.rs` has code. It reads the sources of the whole workspace and needs none of its
//! crates, so `make lint` builds and runs it in seconds.
