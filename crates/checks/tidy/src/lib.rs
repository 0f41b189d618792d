//! Rules of this repository that a program can check: dependencies between crates, places of
//! `unsafe`, and the lengths of lines, functions, structs and files.
//!
//! All code is in the tests. They read the sources of the workspace and depend on none of its
//! crates, so `make lint` builds and runs them in seconds.
