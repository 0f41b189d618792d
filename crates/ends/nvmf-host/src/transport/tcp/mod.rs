//! TCP, with TLS over it or without: commands and data are PDUs of a [`Link`].

mod link;
mod moving;
mod place;

pub(crate) use link::Link;
