//! Tests of a disk that another machine uses.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use farblock_backends::mem::Mem;
use farblock_backends::standby::Standby;
use farblock_backends::{OpenError, Spec};
use farblock_block::blocking::Blocking;
use farblock_block::conformance::{self, MIN_BYTES};
use farblock_block::{Availability, BlockError, Change, Geometry, Namespace};
use farblock_reactor::EngineKind;
use support::on_both_engines;

const BLOCK_SIZE: u32 = 512;

fn refused() -> OpenError {
    OpenError::from(Spec::parse("").expect_err("the name was accepted"))
}

/// Waits until the device is open. It polls instead of watching for a change, because a watch that
/// is set too late receives no event.
fn wait_until_ready(disk: &Standby) {
    while disk.availability() != Availability::Ready {
        std::thread::yield_now();
    }
}

on_both_engines! {
    a_standby_with_an_open_device_conforms(engine) {
        let make = |block_size| {
            let mem: Arc<dyn Namespace> = Arc::new(Mem::new(block_size, MIN_BYTES).unwrap());
            let geometry = mem.geometry();
            let disk = Standby::new("a disk".to_owned(), geometry, move || Ok(Arc::clone(&mem)));
            wait_until_ready(&disk);
            Arc::new(disk) as Arc<dyn Namespace>
        };
        conformance::run(&make, engine);
    }

    operations_fail_until_the_device_is_open(engine) {
        let is_here = Arc::new(AtomicBool::new(false));
        let mem: Arc<dyn Namespace> = Arc::new(Mem::new(BLOCK_SIZE, 16 << 10).unwrap());
        let smaller = Geometry { deallocate: true, ..Geometry::new(BLOCK_SIZE, 16) };
        let (wanted, device) = (Arc::clone(&is_here), Arc::clone(&mem));
        let disk = Standby::new("a disk".to_owned(), smaller, move || {
            match wanted.load(Ordering::Acquire) {
                true => Ok(Arc::clone(&device)),
                false => Err(refused()),
            }
        });
        let (tell, told) = mpsc::channel();
        let _watch = disk.changes().unwrap().watch(move |change| tell.send(change).unwrap());
        let mut early = Blocking::with_engine(&disk, engine).unwrap();
        assert_eq!((disk.availability(), disk.geometry().blocks), (Availability::Waiting, 16));
        assert!(disk.describe().contains("secondary on this node"), "{}", disk.describe());
        let data = vec![7; BLOCK_SIZE as usize];
        assert_eq!(early.write(3, &data), Err(BlockError::Disconnected));
        assert_eq!(early.flush(), Err(BlockError::Disconnected));

        is_here.store(true, Ordering::Release);
        assert_eq!(told.recv(), Ok(Change::Availability));
        assert_eq!(told.recv(), Ok(Change::Geometry));
        assert_eq!((disk.availability(), disk.geometry().blocks), (Availability::Ready, 32));
        assert!(disk.geometry().deallocate, "deallocation is no longer reported");
        assert_eq!(disk.describe(), mem.describe());
        // Use a queue that was opened before the device was.
        early.write(3, &data).unwrap();
        let mut late = Blocking::with_engine(&disk, engine).unwrap();
        let mut back = vec![0; BLOCK_SIZE as usize];
        late.read(3, &mut back).unwrap();
        assert_eq!(back, data);
        late.write(31, &data).unwrap();
    }

    a_dropped_standby_stops_opening_its_device(engine) {
        let _ = engine;
        let (tried, tries) = mpsc::channel();
        let disk = Standby::new("a disk".to_owned(), Geometry::new(BLOCK_SIZE, 1), move || {
            tried.send(()).unwrap();
            Err(refused())
        });
        tries.recv().unwrap();
        drop(disk);
        // The thread of the standby exits, and drops the function that opens the device.
        while tries.recv().is_ok() {}
    }
}
