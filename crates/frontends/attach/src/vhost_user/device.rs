use super::blk::{self, ID_BYTES};
use farblock_block::Geometry;
use farblock_frontend::Disk;
use std::sync::atomic::{AtomicBool, Ordering};

/// A virtual machine's disk. All threads of the vhost-user server share it.
pub(super) struct Device {
    disk: Disk,
    pub(super) queues: usize,
    pub(super) id: [u8; ID_BYTES],
    /// True if the guest wants its writes to be durable when they complete.
    write_through: AtomicBool,
}

impl Device {
    pub(super) fn new(disk: Disk, queues: usize, serial: &str) -> Device {
        let mut id = [0; ID_BYTES];
        id[..serial.len()].copy_from_slice(serial.as_bytes());
        let write_through = AtomicBool::new(false);
        let device = Device { disk, queues, id, write_through };
        device.reset();
        device
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The current geometry of the disk.
    pub(super) fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// Restores the default cache mode: a write cache if the namespace has one. The driver may
    /// change it.
    pub(super) fn reset(&self) {
        self.set_writeback(self.geometry().volatile_cache);
    }

    pub(super) fn set_writeback(&self, writeback: bool) {
        self.write_through.store(!writeback, Ordering::Relaxed);
    }

    pub(super) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(super) fn features(&self) -> u64 {
        blk::features(&self.geometry(), self.queues)
    }

    pub(super) fn config_space(&self) -> Vec<u8> {
        blk::config_space(&self.geometry(), self.queues, !self.write_through())
    }
}
