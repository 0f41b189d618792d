//! Tests guests and virtual machine monitors that break the protocol.
#![cfg(target_os = "linux")]

mod vhost_support;

use farblock_random::Random;
use farblock_testkit::eventually;
use std::io::{Read, Write};
use std::time::Duration;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost_support::*;

const NOWHERE: u64 = MEMORY_BYTES + 4096;
/// The time for which the test checks that no answer arrives.
const SILENCE: Duration = Duration::from_millis(100);

fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = code.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// The chains have no valid place for a status byte. The device returns each with 0 bytes written,
/// and continues to serve the ring.
#[test]
fn invalid_descriptor_chains_are_returned_without_execution() {
    for engine in ENGINES {
        let served = serve(engine, disk("mem:1MiB", 512));
        let mut vm = served.boot();
        let (header, status) = vm.frame(0, IN, 0);
        let (header, status) = (header.0, status.0);
        let table = 1 << 20;
        // The first table points to itself, and the second table points to the first one.
        vm.descriptor(table, (header, 16, NEXT, 0));
        vm.descriptor(table + 32, (table, 32, INDIRECT, 0));
        let chains: &[&[Descriptor]] = &[
            &[(header, 16, 0, 0)],
            &[(header, 15, NEXT, 0), (status, 1, WRITE, 0)],
            &[(status, 1, WRITE, 0)],
            &[(header, 16, NEXT, 0), (status, 0, WRITE, 0)],
            &[(header, 16, NEXT, 0), (status, 1, WRITE | NEXT, 0), (header, 16, 0, 0)],
            &[(NOWHERE, 16, NEXT, 0), (status, 1, WRITE, 0)],
            &[(header, 16, NEXT, 0), (NOWHERE, 512, WRITE | NEXT, 0), (status, 1, WRITE, 0)],
            &[(header, 16, NEXT, 0), (NOWHERE, 1, WRITE, 0)],
            &[(header, 16, NEXT, 0), (u64::MAX - 3, 8, WRITE, 0)],
            &[(header, 16, NEXT, 0), (MEMORY_BYTES - 1, u32::MAX, WRITE, 0)],
            &[(header, 16, NEXT, 60000)],
            &[(table, 16, INDIRECT, 0)],
            &[(table, 0, INDIRECT, 0)],
            &[(table, 17, INDIRECT, 0)],
            &[(table, 16, INDIRECT | NEXT, 0), (status, 1, WRITE, 0)],
            &[(table + 32, 16, INDIRECT, 0)],
            &[(NOWHERE, 160, INDIRECT, 0)],
            &[(table, 0xffff_fff0, INDIRECT, 0)],
        ];
        for chain in chains {
            let head = vm.offer(0, chain);
            vm.kick(0);
            assert_eq!(vm.used(0), Some((u32::from(head), 0)), "{chain:?}");
            assert_eq!(vm.read(status, 1), [UNTOUCHED], "{chain:?}");
        }
        served.stop();
    }
}

#[test]
fn circular_and_oversized_chains_are_returned_without_execution() {
    let served = serve_with(disk("mem:32MiB", 512), |_| {});
    let mut vm = served.boot();
    let (header, status) = vm.frame(0, IN, 0);
    vm.offer(0, &[(header.0, 16, NEXT, 1), (header.0, 16, NEXT, 1)]);
    vm.kick(0);
    assert_eq!(vm.used(0), Some((0, 0)), "the circular chain is returned without execution");
    // The total length exceeds 32 bits, because the chain uses the same 60 MiB many times.
    let mut chain = vec![header];
    chain.extend((0..100).map(|_| (DATA, 60 << 20, WRITE | NEXT, 0)));
    chain.push(status);
    vm.offer(0, &chain);
    vm.kick(0);
    assert_eq!(vm.used(0).map(|used| used.1), Some(1));
    assert_eq!(vm.read(status.0, 1), [IOERR]);
    assert_eq!(vm.load(0, 512), [0; 512]);
    served.stop();
}

/// The server stops serving a ring after an invalid descriptor, and reports the error. The other
/// ring and the next guest still work.
#[test]
fn a_broken_ring_stops_and_the_other_ring_continues() {
    for engine in ENGINES {
        let served = serve(engine, disk("delay:20ms,mem:1MiB", 512));
        let breaks: [fn(&mut Vm); 3] = [
            |vm| vm.set_avail(0, 5000),
            |vm| vm.offer_head(0, SIZE),
            |vm| {
                let (head, _) = vm.submit(0, IN, 0, &[(DATA, 512)]);
                vm.offer_head(0, head);
            },
        ];
        for (index, break_it) in breaks.iter().enumerate() {
            let mut vm = served.boot();
            break_it(&mut vm);
            vm.kick(0);
            eventually("the monitor is notified", || vm.rings[0].error.read().is_ok());
            if index == 2 {
                assert!(vm.used(0).is_some(), "a request that was taken earlier never ends");
            }
            vm.submit(0, IN, 0, &[(DATA, 512)]);
            assert_eq!(vm.used_within(0, SILENCE), None);
            assert_eq!(vm.call(1, IN, 0, &[(DATA, 512)]), (OK, 513));
        }
        served.stop();
    }
}

/// A request waits for others if together they need more buffers than a ring may hold.
#[test]
fn requests_above_the_buffer_limit_wait_for_each_other() {
    for engine in ENGINES {
        let served = serve(engine, disk("delay:5ms,mem:64MiB", 512));
        let mut vm = served.boot();
        for _ in 0..10 {
            // All requests use the same address, because the test does not check the data.
            vm.submit(0, OUT, 0, &[(DATA, 30 << 20)]);
        }
        for _ in 0..10 {
            let (_, written) = vm.used(0).expect("an answer");
            assert_eq!(written, 1);
        }
        assert_eq!(vm.call(0, FLUSH, 0, &[]), (OK, 1));
        served.stop();
    }
}

#[test]
fn random_descriptors_do_not_stop_the_device() {
    for engine in ENGINES {
        let served = serve(engine, disk("mem:1MiB", 512));
        let mut numbers = Random::new(1);
        let mut random = move || numbers.bits();
        for _ in 0..30 {
            let mut vm = served.boot();
            for index in 0..u64::from(SIZE) {
                let address = match random() % 4 {
                    0 => random(),
                    1 => ring_at(0) + random() % 4096,
                    _ => DATA + random() % (1 << 20),
                };
                let length = if random() % 3 == 0 { random() as u32 } else { random() as u32 % 64 };
                let next = (random() % 130) as u16;
                let flags = (random() % 8) as u16;
                vm.descriptor(ring_at(0) + index * 16, (address, length, flags, next));
            }
            for _ in 0..SIZE {
                let head = (random() % u64::from(SIZE)) as u16;
                vm.offer_head(0, head);
                vm.kick(0);
            }
            assert_eq!(vm.call(1, GET_ID, 0, &[(DATA, 20)]), (OK, 21));
        }
        served.stop();
    }
}

/// The server disconnects a monitor that breaks the protocol, and serves the next monitor.
#[test]
fn a_monitor_that_breaks_the_protocol_is_disconnected() {
    let served = serve_with(disk("mem:1MiB", 512), |_| {});
    let state = |index: u32, value: u32| [index.to_le_bytes(), value.to_le_bytes()].concat();
    for bytes in [
        vec![0xff; 64],
        message(99, 1, &[]),
        message(1, 0, &[]),
        message(1, 5, &[]),
        message(2, 1, &[1, 2, 3]),
        message(2, 1, &u64::MAX.to_le_bytes()),
        message(8, 1, &state(9, 128)),
        message(8, 1, &state(0, 0)),
        message(8, 1, &state(0, 100)),
        message(8, 1, &state(0, 65536)),
        message(12, 1, &0_u64.to_le_bytes()),
        message(12, 1, &0x100_u64.to_le_bytes()),
        message(13, 1, &77_u64.to_le_bytes()),
        message(5, 1, &state(1, 0)),
        message(5, 1, &state(u32::MAX, 0)),
        message(21, 1, &[]),
        message(24, 1, &[0xff; 12]),
        message(24, 1, &[[0_u8; 4], 257_u32.to_le_bytes(), [0; 4]].concat()),
        message(31, 1, &[0xff; 20]),
        message(32, 1, &[0; 20]),
        message(37, 1, &[0; 40]),
        message(38, 1, &[0; 40]),
        message(38, 1, &[0; 7]),
        [&[1, 0, 0, 0, 1, 0, 0, 0][..], &u32::MAX.to_le_bytes()[..]].concat(),
    ] {
        let mut stream = served.connect();
        // The server may close the connection before the test has sent all bytes.
        let _ = stream.write_all(&bytes);
        let ended = stream.read(&mut [0; 64]);
        assert!(matches!(ended, Ok(0) | Err(_)), "{bytes:?}");
        let error = ended.err().map(|error| error.kind());
        assert_ne!(error, Some(std::io::ErrorKind::WouldBlock), "{bytes:?}");
    }
    // The monitor sends half a message, and then disconnects.
    let mut stream = served.connect();
    stream.write_all(&[1, 0, 0]).expect("the server reads the bytes");
    drop(stream);
    let mut vm = served.boot();
    assert_eq!(vm.load(0, 512), [0; 512]);
    served.stop();
}

/// The server refuses these requests, with an answer if the monitor requests one. The session
/// continues.
#[test]
fn invalid_monitor_requests_are_refused() {
    let served = serve_with(disk("mem:1MiB", 512), |_| {});
    let mut vm = served.boot();
    assert!(vm.frontend().set_vring_num(0, 64).is_err(), "a running ring was resized");
    assert!(vm.frontend().set_vring_base(0, 0).is_err(), "a running ring got a new index");
    let pipe = rustix::pipe::pipe().expect("a pipe");
    let region = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: 4096,
        userspace_addr: 0,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&pipe.0),
    };
    assert!(vm.frontend().set_mem_table(&[region]).is_err(), "a pipe was accepted as memory");
    assert!(vm.frontend().add_mem_region(&region).is_err(), "a pipe was accepted as memory");
    let file = std::fs::File::from(
        rustix::fs::memfd_create("slot", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"),
    );
    file.set_len(1 << 20).expect("a length");
    let slot = |guest: u64, length: u64| vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: length,
        userspace_addr: guest,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file),
    };
    let far = 1_u64 << 40;
    assert!(
        vm.frontend().add_mem_region(&slot(0, 4096)).is_err(),
        "a region that overlaps another was added"
    );
    assert!(
        vm.frontend().add_mem_region(&slot(far, 2 << 20)).is_err(),
        "a region longer than its file was added"
    );
    assert!(
        vm.frontend().add_mem_region(&slot(u64::MAX - 1, 4096)).is_err(),
        "a region whose end overflows was added"
    );
    assert!(
        vm.frontend().remove_mem_region(&slot(far, 4096)).is_err(),
        "an unknown region was removed"
    );
    let slots = vm.frontend().get_max_mem_slots().expect("a number");
    for index in 1..slots {
        vm.frontend().add_mem_region(&slot(far * index, 4096)).expect("a free slot");
    }
    assert!(
        vm.frontend().add_mem_region(&slot(far * slots, 4096)).is_err(),
        "a region was added without a free slot"
    );
    assert!(
        vm.frontend().remove_mem_region(&slot(far, 512)).is_err(),
        "a part of a region was removed"
    );
    vm.frontend().remove_mem_region(&slot(far, 4096)).expect("the region was added");
    vm.frontend().add_mem_region(&slot(far * slots, 4096)).expect("a free slot");
    assert_eq!(vm.load(0, 512), [0; 512], "the guest's first memory no longer works");
    served.stop();
}

/// A stop does not wait for a monitor that has sent half a message.
#[test]
fn a_stop_does_not_wait_for_half_a_message() {
    let served = serve_with(disk("mem:1MiB", 512), |_| {});
    let mut stream = served.connect();
    stream.write_all(&[1, 0, 0]).expect("the server reads the bytes");
    eventually("the monitor is connected", || {
        served.server.as_ref().expect("the server runs").is_connected()
    });
    let start = std::time::Instant::now();
    served.stop();
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// A monitor that truncates its memory neither ends the process nor damages the disk.
#[test]
fn truncated_guest_memory_damages_neither_process_nor_disk() {
    for engine in ENGINES {
        let served = serve(engine, disk("mem:1MiB", 512));
        for kind in [OUT, IN] {
            let mut vm = served.boot();
            assert_eq!(vm.store(8, &[0x77; 4096]), OK);
            vm.take_data_away();
            vm.submit(0, kind, 8, &[(DATA, 4096)]);
            eventually("the monitor is notified", || {
                vm.kick(0);
                vm.rings[0].error.read().is_ok()
            });
            drop(vm);
            let mut vm = served.boot();
            assert!(
                vm.load(8, 4096).iter().all(|&byte| byte == 0x77),
                "the lost memory reached the disk"
            );
        }
        served.stop();
    }
}
