//! A vhost-user-blk back end: a namespace as the disk of a virtual machine.
//!
//! **Overview.** [`Server::start`] opens a namespace and listens on a Unix socket, to which a
//! virtual machine monitor connects (QEMU's `vhost-user-blk-pci`, cloud-hypervisor's `--disk
//! vhost_user=true`, libblkio). The monitor lends the guest's memory and names the disk's rings in
//! it. Each ring has its own thread, reactor and queue into the namespace, so a guest's processors
//! share no state when they access the disk.
//!
//! **Contract.** The guest sees the namespace: its size, block size and preferred I/O sizes,
//! whether it can be written and deallocated, and whether it has a cache, which the guest may
//! switch off. [`Server::resized`] reports a new size to the guest.
//!
//! The server copies data once, between the guest's memory and the buffers of block operations.
//! Kicks are off while there is work, and one interrupt announces all available completions
//! (`VIRTIO_F_EVENT_IDX`). An idle disk costs nothing.
//!
//! **Restarts.** The server notes the guest's unanswered requests in memory that the monitor keeps
//! (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`). If this process dies and another server replaces it,
//! the monitor connects again (QEMU: `reconnect=1`), and the new server executes the requests
//! again; the guest notices nothing. If the monitor disconnects, the server waits for its block
//! operations before it serves the next monitor, so that an old write never lands after a newer
//! one. Meanwhile it does not access the guest's memory.
//!
//! **Trust.** The server does not trust the guest's memory. Requests with invalid or circular
//! descriptors, ranges outside of the disk or excessive lengths get an error status, if they have
//! room for one. The server stops taking requests from a broken ring. [`limits`] bound the
//! resources that a guest can hold. The server also checks a monitor's messages, and disconnects a
//! monitor that breaks the protocol. If a monitor truncates memory that it lent, requests on this
//! memory fail, and the server stops serving its rings. Only the socket's owner can connect (mode
//! 0600).
//!
//! **Not implemented.** Packed rings, live migration (`VHOST_USER_PROTOCOL_F_LOG_SHMFD`,
//! postcopy), rings that are polled instead of kicked, in-band
//! notifications, big-endian legacy guests, secure erase, zoned disks, and more than one monitor at
//! a time: the next one waits in the socket.

mod blk;
mod chain;
mod device;
pub mod front_end;
mod inflight;
mod lent;
pub mod limits;
mod memory;
mod ring;
mod server;
mod session;
mod wire;
mod worker;

pub use server::{Config, Server, StartError, THREAD_NAME_PREFIX};
