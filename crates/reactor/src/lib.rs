//! Event loops: io_uring on Linux, a portable readiness loop everywhere
