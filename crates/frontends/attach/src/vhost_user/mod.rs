//! A vhost-user-blk back end: a namespace as the disk of a virtual machine.
//!
//! **Overview.** [`Server::start`] opens a namespace and listens on a Unix socket. A virtual
//! machine *monitor* connects to this socket: QEMU (`vhost-user-blk-pci`), cloud-hypervisor
//! (`--disk vhost_user=true`) or libblkio. The monitor shares the guest's memory with the server,
//! and sends the addresses of the disk's rings in this memory. Each ring has its own thread, event
//! loop and queue into the namespace. So the guest's processors do not contend when they access the
//! disk.
//!
//! **Contract.** The guest sees the namespace's size, block size and preferred I/O sizes. It also
//! sees whether the namespace is writable, supports deallocation, and has a cache, which the guest
//! may switch off. [`Server::resized`] reports a new size to the guest.
//!
//! The server copies data once, between the guest's memory and the buffers of block operations.
//! While the server has work, the guest does not kick (notify) it, and one interrupt announces all
//! available completions (`VIRTIO_F_EVENT_IDX`). An idle disk uses no processor time.
//!
//! **Restarts.** The server records the guest's unanswered requests in memory that the monitor
//! keeps (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`). If this process dies and another server replaces
//! it, the monitor reconnects (QEMU: `reconnect=1`). The new server then executes these requests
//! again, and the guest notices nothing.
//!
//! If the monitor disconnects, the server waits for its block operations before it serves the next
//! monitor. So an old write never takes effect after a newer write. During this wait the server
//! does not access the guest's memory, because the guest may reuse it.
//!
//! **Trust.** The server does not trust the guest's memory. Requests with invalid or circular
//! descriptors, ranges outside of the disk or excessive lengths get an error status, if the guest
//! left room for a status. After a broken chain, the server takes no more requests from the ring.
//! [`limits`] bound the resources that a guest can hold.
//!
//! The server also checks a monitor's messages, and disconnects a monitor that breaks the protocol.
//! If a monitor truncates memory that it shared, requests that use this memory fail, and the server
//! stops serving the rings. Only the socket's owner can connect (mode 0600).
//!
//! **Not implemented.** Packed rings, live migration (`VHOST_USER_PROTOCOL_F_LOG_SHMFD`, postcopy),
//! rings without kicks, in-band notifications, big-endian legacy guests, secure erase, and zoned
//! disks. Several monitors at a time: the next monitor waits in the socket's queue.

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
