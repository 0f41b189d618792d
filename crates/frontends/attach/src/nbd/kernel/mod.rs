//! The kernel's NBD client: serves a server's disk as `/dev/nbdN`.
//!
//! This module creates, changes and removes devices over generic netlink. Each socket of a device
//! is one end of a socket pair, and the [`Server`] of this process has the other end. Making
//! devices needs root and the kernel module `nbd`. A server without these rights passes its
//! [`Connections`] to a process that makes the device.
//!
//! If this process dies, reads and writes wait for a new server until
//! [`Options::dead_connection_timeout`] has passed. [`reconnect`] passes sockets of the new server
//! to the device. Never swap to such a device: the kernel would wait for the server to free memory,
//! while the server waits for memory to send the pages. If the device has a file system, call
//! [`stay_resident`](farblock_frontend::stay_resident) for the same reason: it locks the server's
//! process in memory.

mod client;
mod netlink;

use super::Server;
use super::wire::flag;
use netlink::{Attributes, Family};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

/// The commands `NBD_CMD_…` of the kernel's netlink family.
mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
}

/// The attributes `NBD_ATTR_…`, and the attributes inside `SOCKETS`.
mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    pub(super) const SOCKET_ITEM: u16 = 1;
    pub(super) const SOCKET_FD: u16 = 1;
}

/// Options of a device's connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The number of the device: `Some(3)` selects `/dev/nbd3`; `None` selects any free number.
    pub index: Option<u32>,
    /// The number of connections. The kernel makes a hardware queue for each connection.
    pub connections: usize,
    /// If the server does not answer a request within this time, the kernel sends the request on
    /// another connection, or fails it. With zero, the kernel waits forever.
    pub timeout: Duration,
    /// If every connection is dead, requests wait this long for [`reconnect`] before they fail.
    /// With zero, they fail at once.
    pub dead_connection_timeout: Duration,
    /// A name for the disk, which the kernel shows in `/sys/block/nbdN/backend`. [`reconnect`] must
    /// pass the same name, or the kernel refuses. Kernels before 5.14 ignore it.
    pub identifier: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            index: None,
            connections: 1,
            timeout: Duration::ZERO,
            dead_connection_timeout: Duration::ZERO,
            identifier: None,
        }
    }
}

/// A device of the kernel. Dropping this value keeps the device; [`disconnect`] removes the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The number of the device.
    pub index: u32,
}

impl Device {
    /// The device's path: `/dev/nbdN`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/dev/nbd{}", self.index).into()
    }
}

/// The reason why an operation on a device failed. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no NBD client, or its module is not loaded.
    NoModule,
    /// Only root may make or change a device.
    NotAllowed,
    /// A device with this number is already in use.
    InUse(u32),
    /// The device does not exist, is not connected, or has another identifier.
    NoDevice(u32),
    /// The NBD server does not answer.
    Server(io::Error),
    /// Another error of the kernel.
    System(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoModule => f.write_str(
                "the kernel's NBD client is not loaded: run 'modprobe nbd' as root, or choose \
                 another --as if the module does not exist",
            ),
            Error::NotAllowed => f.write_str("only root may create and change NBD devices"),
            Error::InUse(index) => write!(
                f,
                "/dev/nbd{index} is in use: choose another device, or disconnect it with \
                 'nbd-client -d'"
            ),
            Error::NoDevice(index) => {
                write!(f, "/dev/nbd{index} is not connected, or belongs to another disk")
            }
            Error::Server(error) => write!(f, "the NBD server does not answer: {error}"),
            Error::System(error) => {
                write!(f, "the kernel's NBD client refused the request: {error}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Negotiated connections to a server, and the disk's properties. A process needs nothing else to
/// make a device.
#[derive(Debug)]
pub struct Connections {
    /// The kernel's ends of the connections.
    pub sockets: Vec<OwnedFd>,
    /// The disk's size, in bytes.
    pub bytes: u64,
    /// The disk's block size, in bytes.
    pub block_size: u32,
    /// The transmission flags (`NBD_FLAG_…`) to pass to the kernel.
    pub flags: u16,
}

impl Connections {
    /// Makes `count` connections, or one if `count` is 0.
    ///
    /// # Errors
    /// Fails if the server does not answer.
    pub fn new(server: &Server, count: usize) -> Result<Connections, Error> {
        let (first, disk) = client::connect(server)?;
        let mut sockets = vec![first.into()];
        for _ in 1..count {
            sockets.push(client::connect(server)?.0.into());
        }
        // From these flags, the kernel concludes that the disk has a volatile cache, and tells
        // programs. So omit them for a disk without a volatile cache.
        let unneeded = flag::SEND_FLUSH | flag::SEND_FUA;
        let unneeded = if server.has_volatile_cache() { 0 } else { unneeded };
        let client::Disk { bytes, block_size, flags } = disk;
        Ok(Connections { sockets, bytes, block_size, flags: flags & !unneeded })
    }
}

/// Makes a device from the server's disk.
///
/// # Errors
/// Fails if the kernel refuses or the server does not answer. Then no new device remains.
pub fn connect(server: &Server, options: &Options) -> Result<Device, Error> {
    family()?;
    connect_to(&Connections::new(server, options.connections)?, options)
}

/// Like [`connect`], but with existing connections, which another process may have made.
///
/// # Errors
/// Returns the errors of [`connect`].
pub fn connect_to(connections: &Connections, options: &Options) -> Result<Device, Error> {
    let mut family = family()?;
    let mut attributes = Attributes::default()
        .u64(attribute::SIZE_BYTES, connections.bytes)
        .u64(attribute::BLOCK_SIZE_BYTES, u64::from(connections.block_size))
        .u64(attribute::SERVER_FLAGS, u64::from(connections.flags));
    if let Some(index) = options.index {
        attributes = attributes.u32(attribute::INDEX, index);
    }
    attributes = with_sockets(attributes, options, &connections.sockets);
    // The kernel now holds references to the sockets, so they stay open when this process closes
    // its descriptors.
    let answer = family.call(command::CONNECT, &attributes).map_err(|error| {
        match (error.kind(), options.index) {
            (io::ErrorKind::ResourceBusy, Some(index)) => Error::InUse(index),
            _ => refused(error),
        }
    })?;
    let index = answer.find_u32(attribute::INDEX);
    let index = index.ok_or_else(|| Error::System(io::ErrorKind::InvalidData.into()))?;
    let device = Device { index };
    if connections.flags & flag::READ_ONLY == 0 {
        clear_read_only(device);
    }
    Ok(device)
}

/// Clears the read-only flag that `blockdev --setro` set on an earlier device with this number. The
/// driver keeps this flag when a device is removed.
fn clear_read_only(device: Device) {
    let opened = std::fs::File::open(device.path());
    let set_writable = crate::fuse::loop_device::ioctl::set_writable;
    if let Err(error) = opened.and_then(|device| Ok(set_writable(&device)?)) {
        tracing::debug!("cannot make {} writable again: {error}", device.path().display());
    }
}

/// Replaces the dead connections of a device with connections to this server, which must have the
/// same disk. Waiting requests then continue.
///
/// # Errors
/// Fails if the kernel refuses, for example because the device's timeout has passed, or the device
/// has another [`Options::identifier`].
pub fn reconnect(server: &Server, device: Device, options: &Options) -> Result<(), Error> {
    family()?;
    reconnect_to(&Connections::new(server, options.connections)?.sockets, device, options)
}

/// Like [`reconnect`], but with existing connections, which another process may have made.
///
/// # Errors
/// Returns the errors of [`reconnect`].
pub fn reconnect_to(sockets: &[OwnedFd], device: Device, options: &Options) -> Result<(), Error> {
    let attributes = Attributes::default().u32(attribute::INDEX, device.index);
    let attributes = with_sockets(attributes, options, sockets);
    change(&mut family()?, device, &attributes)
}

/// Sets a device's size to `bytes` after its disk has changed. `identifier` must be the device's
/// [`Options::identifier`], if it has one.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn resize(device: Device, bytes: u64, identifier: Option<&str>) -> Result<(), Error> {
    let mut attributes =
        Attributes::default().u32(attribute::INDEX, device.index).u64(attribute::SIZE_BYTES, bytes);
    if let Some(text) = identifier {
        attributes = attributes.text(attribute::BACKEND_IDENTIFIER, text);
    }
    change(&mut family()?, device, &attributes)
}

/// Disconnects a device. Requests in flight fail, and programs that have the device open get
/// errors. The caller should check for users first.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn disconnect(device: Device) -> Result<(), Error> {
    let attributes = Attributes::default().u32(attribute::INDEX, device.index);
    let done = family()?.call(command::DISCONNECT, &attributes);
    done.map(drop).map_err(|error| not_there(device, error))
}

fn change(family: &mut Family, device: Device, attributes: &Attributes) -> Result<(), Error> {
    let done = family.call(command::RECONFIGURE, attributes);
    done.map(drop).map_err(|error| not_there(device, error))
}

fn family() -> Result<Family, Error> {
    Family::find(FAMILY, VERSION).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoModule,
        _ => refused(error),
    })
}

fn refused(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        _ => Error::System(error),
    }
}

/// Maps an error of the kernel to [`Error`]. The kernel returns "invalid argument" if the device
/// does not exist or is not connected.
fn not_there(device: Device, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::NotFound => Error::NoDevice(device.index),
        _ => refused(error),
    }
}

fn with_sockets(attributes: Attributes, options: &Options, sockets: &[OwnedFd]) -> Attributes {
    let list = sockets.iter().fold(Attributes::default(), |list, socket| {
        let number = socket.as_raw_fd().unsigned_abs();
        let item = Attributes::default().u32(attribute::SOCKET_FD, number);
        list.nested(attribute::SOCKET_ITEM, &item)
    });
    let attributes = attributes.nested(attribute::SOCKETS, &list);
    // Round up: zero seconds would mean no timeout.
    let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let attributes = attributes
        .u64(attribute::TIMEOUT, seconds(options.timeout))
        .u64(attribute::DEAD_CONN_TIMEOUT, seconds(options.dead_connection_timeout));
    match &options.identifier {
        Some(text) => attributes.text(attribute::BACKEND_IDENTIFIER, text),
        None => attributes,
    }
}
