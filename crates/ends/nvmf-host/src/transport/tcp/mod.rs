//! TCP, with or without TLS: commands and data are PDUs of a [`Link`].

mod address;
mod attempts;
mod carrier;
mod concatenation;
mod conversation;
mod handshake;
mod link;
mod moving;
mod place;
mod secured;

pub(crate) use address::TcpAddress;
pub(crate) use carrier::Tcp;
pub(crate) use handshake::{Connected, Handshake};
pub(crate) use link::Link;
