//! A vhost-user-blk back end: a namespace as the disk of a virtual machine.
//!
//! **What it is.** [`Server::start`] opens a namespace and listens on a Unix socket, to which a
//! virtual machine monitor connects (QEMU's `vhost-user-blk-pci`, cloud-hypervisor's
//! `--disk vhost_user=true`, libblkio). It lends the guest's memory and names the rings of the
//! disk in it. Each ring has a thread of its own, with a reactor and a queue into the namespace, so
//! nothing is shared between a guest's processors on the way to the disk.
//!
//! **Contract.** The guest sees the namespace as it is: size, block size, what is best for it,
//! whether it can be written, given back, and whether it has a cache, which the guest may switch
//! off. [`Server::resized`] tells the guest of another size.
//!
//! Data is copied once, between the guest's memory and the buffers of block operations. Kicks are
//! switched off while there is work, and completions are announced once for all that are there
//! (`VIRTIO_F_EVENT_IDX`). An idle disk costs nothing.
//!
//! **Restarts.** What the guest has asked for and not been answered is noted in memory that the
//! monitor keeps (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`). When this process dies and another one
//! takes its place, the monitor connects again (QEMU: `reconnect=1`), and the requests that were
//! under way are carried out again before the guest notices. When it is the monitor that goes
//! away, block operations under way are waited for before the next one is served, so that an old
//! write never lands after a newer one. The guest's memory is not touched meanwhile.
//!
//! **Who is trusted with what.** Whatever is in the guest's memory is the guest's to choose:
//! descriptors that lead nowhere or in circles, ranges out of the disk, lengths without measure get
//! an error status, or none where there is no place for it, and a ring that is broken is left
//! alone. What it can make us hold is bounded ([`limits`]). Whatever a monitor sends is checked as
//! well, and one that talks nonsense is disconnected; but memory that it lends and then cuts short
//! ends the process, as it would its own. Only the socket's owner can connect (mode 0600).
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
