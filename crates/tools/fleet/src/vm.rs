//! A client that acts like a virtual machine, without a guest. A vhost-user server exports the
//! client's namespace, and a front end uses this disk through rings, like the driver of a guest.
//! Both are threads of the agent, whose processor time includes them.
//!
//! For a real virtual machine, this module only creates the disk, with a socket for the guest's
//! QEMU.

use crate::message::{Client, Vm};
use farblock_block::Namespace;
use std::sync::Arc;

/// The memory that a client's disk needs for its rings and their requests, in bytes.
pub(crate) fn memory_bytes(client: &Client) -> u64 {
    let Some(Vm { depth, request_bytes }) = client.vm else { return 0 };
    // Each request also needs a page for its header and status, and each ring 16 KiB.
    let request = u64::from(request_bytes.max(64 << 10)) + 4096;
    u64::from(client.queues) * (u64::from(depth) * request + (16 << 10))
}

/// The namespace as the disk of a virtual machine.
#[cfg(not(target_os = "linux"))]
pub(crate) fn disk(_: Arc<dyn Namespace>, _: Vm, _: u16) -> Result<Arc<dyn Namespace>, String> {
    Err("disks of virtual machines (vhost-user) need Linux".to_owned())
}

#[cfg(not(target_os = "linux"))]
pub(crate) enum Offered {}

#[cfg(not(target_os = "linux"))]
impl Offered {
    pub(crate) fn new(_: Arc<dyn Namespace>, _: u16) -> Result<Offered, String> {
        Err("disks of virtual machines (vhost-user) need Linux".to_owned())
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        match *self {}
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{Offered, disk};

#[cfg(target_os = "linux")]
mod linux {
    use super::{Arc, Namespace, Vm};
    use farblock_attach::vhost_user::front_end::{self, FrontEnd};
    use farblock_attach::vhost_user::{Config, Server};
    use farblock_block::Backed;
    use std::fs::{self, DirBuilder};
    use std::io;
    use std::os::unix::fs::DirBuilderExt;
    use std::path::PathBuf;
    use std::process;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) fn disk(
        namespace: Arc<dyn Namespace>,
        vm: Vm,
        rings: u16,
    ) -> Result<Arc<dyn Namespace>, String> {
        let cannot =
            |error: io::Error| format!("cannot serve the disk of a virtual machine: {error}");
        let folder = Folder::new().map_err(cannot)?;
        let queues = usize::from(rings);
        let Vm { depth, request_bytes } = vm;
        let driven =
            front_end::Config { socket: folder.0.join("disk"), queues, depth, request_bytes };
        let mut config = Config::new(&driven.socket);
        config.queues = queues;
        let server = Server::start(&config, namespace).map_err(|error| error.to_string())?;
        let disk = FrontEnd::connect(&driven).map_err(cannot)?;
        // The only client is connected. This drops `Folder`, which removes the socket.
        Ok(Arc::new(Backed { namespace: disk, backing: server }))
    }

    /// A disk that waits for a virtual machine.
    pub(crate) struct Offered {
        _server: Server,
        folder: Folder,
    }

    impl Offered {
        pub(crate) fn new(namespace: Arc<dyn Namespace>, rings: u16) -> Result<Offered, String> {
            let cannot =
                |error: io::Error| format!("cannot serve the disk of a virtual machine: {error}");
            let folder = Folder::new().map_err(cannot)?;
            let mut config = Config::new(folder.0.join("disk"));
            config.queues = usize::from(rings);
            let server = Server::start(&config, namespace).map_err(|error| error.to_string())?;
            Ok(Offered { _server: server, folder })
        }

        pub(crate) fn socket(&self) -> PathBuf {
            self.folder.0.join("disk")
        }
    }

    /// The folder of a socket. Dropping it removes both.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> io::Result<Folder> {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("farblock-vm-{}-{number}", process::id());
            let path = std::env::temp_dir().join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            Ok(Folder(path))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
