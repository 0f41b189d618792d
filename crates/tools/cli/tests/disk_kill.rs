//! Kills a target under load and restarts it. No acknowledged write may be lost.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::disk::{DiskOptions, DiskState};
use farblock_host::{Disk, HostId, Options, Url};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Reserved, Scratch, Server, until};

const THREADS: u64 = 4;
const BLOCKS: u64 = 32;

/// Writes versions of blocks and reads them back until `stop`. Counts the rounds.
fn load(disk: &Disk, first: u64, stop: &AtomicBool, count: &AtomicU64) {
    let mut blocks = Blocking::new(disk).expect("the queue opens");
    let size = blocks.geometry().block_size as usize;
    let (mut data, mut versions) = (vec![0; size], [0; BLOCKS as usize]);
    let fill = |data: &mut [u8], version: u64| {
        data.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&version.to_le_bytes()));
    };
    let mut version: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        let at = (version * 7 % BLOCKS) as usize;
        let lba = first + at as u64;
        blocks.read(lba, &mut data).expect("the read succeeds");
        let mut expected = vec![0; size];
        fill(&mut expected, versions[at]);
        assert_eq!(data, expected, "block {lba} has old data");
        fill(&mut data, version);
        blocks.write(lba, &data).expect("the write succeeds");
        versions[at] = version;
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_disk_survives_kills_and_restarts_of_its_target() {
    let scratch = Scratch::new();
    let image = scratch.disk("disk.img", 1 << 20);
    let start = |address: &str| {
        Server::start(scratch.command(["serve", "--listen", address, image.as_str()]))
    };
    let reserved = Reserved::at(Ipv4Addr::LOCALHOST);
    let address = reserved.address.to_string();
    let first = start(&address);
    let url: Url = first.url(1).parse().expect("the URL is valid");
    let mut server = Some(first);
    let connection = Options { hostid: Some(HostId(*b"farblock-testing")), ..Options::default() };
    let options = DiskOptions {
        connection,
        reconnect_delay: Duration::from_millis(100),
        ctrl_loss_timeout: Some(Duration::from_secs(30)),
        ..DiskOptions::default()
    };
    let disk = Disk::connect(&[url], &options).expect("the disk connects");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (disk, stop, count) = (&disk, &stop, &count);
            scope.spawn(move || load(disk, thread * BLOCKS, stop, count));
        }
        for _ in 0..3 {
            let before = count.load(Ordering::Relaxed);
            until("200 more writes are done", || count.load(Ordering::Relaxed) > before + 200);
            let killed = server.take().expect("the process runs");
            killed.signal("KILL");
            let _ = killed.wait();
            until("the host has lost the target", || disk.state() == DiskState::Waiting);
            std::thread::sleep(Duration::from_millis(200));
            server = Some(start(&address));
            until("the disk is live again", || disk.state() == DiskState::Live);
        }
        let before = count.load(Ordering::Relaxed);
        until("200 more writes are done", || count.load(Ordering::Relaxed) > before + 200);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(disk.paths()[0].reconnects >= 3);
    drop(disk);
    server.expect("the process runs").stop();
}
