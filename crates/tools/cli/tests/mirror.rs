//! Kills the two targets of a mirror in turn, under load. No acknowledged write may be lost, and
//! both legs must be identical in the end.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Url};
use std::io::{Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Reserved, Scratch, Server, until};

const LEG_BYTES: usize = 9 << 20;
const RESERVED_BYTES: usize = 1 << 20;
const BLOCKS: u64 = 64;

/// Returns the states of both legs in the newest record on a leg: 1 is in sync, 2 is behind.
fn standings(image: &str) -> [u8; 2] {
    let bytes = support::read(image);
    let reserved = &bytes[bytes.len() - RESERVED_BYTES..];
    let records = [&reserved[..4096], &reserved[65536..65536 + 4096]];
    let generation = |record: &&&[u8]| u64::from_le_bytes(record[48..56].try_into().unwrap());
    let newest = records.iter().max_by_key(generation).unwrap();
    [newest[72], newest[73]]
}

/// Writes versions of blocks and reads them back until `stop`.
fn load(disk: &Disk, stop: &AtomicBool, count: &AtomicU64) {
    let mut blocks = Blocking::new(disk).expect("the queue opens");
    let size = blocks.geometry().block_size as usize;
    let (mut data, mut versions) = (vec![0; size], [0_u8; BLOCKS as usize]);
    let mut turn: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        // Use blocks that are far apart, so that the writes hit several regions.
        let (at, lba) = ((turn * 7 % BLOCKS) as usize, turn * 7 % BLOCKS * 200);
        blocks.read(lba, &mut data).expect("the read succeeds");
        assert!(data.iter().all(|&byte| byte == versions[at]), "block {lba} has old data");
        versions[at] = turn as u8;
        data.fill(versions[at]);
        blocks.write(lba, &data).expect("the write succeeds");
        if turn.is_multiple_of(16) {
            blocks.flush().expect("the flush succeeds");
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// Checks that each leg uses the key in its URL. farblock reports a refused key with its leg, at
/// the start and later.
#[test]
fn each_mirror_leg_uses_its_own_key() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, LEG_BYTES as u64));
    let key = |name: &str, more: &[&str]| {
        let path = scratch.text(name);
        scratch.run([&["keys", "new", "--output", &path], more].concat()).ok();
        path
    };
    let (secret, other_secret) = (key("host.key", &[]), key("other.key", &[]));
    let (tls, other_tls) = (key("tls.key", &["--tls"]), key("other-tls.key", &["--tls"]));
    let start = |leg: usize, address: &str, option: &str, key: &str| {
        let given = format!("{HOST}={key}");
        let image = images[leg].as_str();
        Server::start(scratch.command(["serve", "--listen", address, image, option, &given]))
    };
    let reserved = Reserved::at(Ipv4Addr::LOCALHOST);
    let one = start(0, "127.0.0.1:0", "--host-key", &secret);
    let two = start(1, &reserved.address.to_string(), "--tls-key", &tls);
    let leg = |server: &Server, name: &str, key: &str| {
        format!("{}&hostnqn={HOST}&{name}={key}", server.url(1))
    };
    let create = |secret: &str, tls: &str| {
        let (one, two) = (leg(&one, "dhchap-secret", secret), leg(&two, "tls-key", tls));
        format!("mirror:{one},{two}?create")
    };
    let refused = |mirror: &str, parts: &[&str]| {
        scratch.run(["serve", "--listen", "127.0.0.1:0", mirror]).fails(1, parts);
    };
    refused(&create(&other_secret, &tls), &[&one.address, "refused this host's proof"]);
    refused(&create(&secret, &other_tls), &[&two.address, "refuses TLS"]);
    refused(&create("nowhere.key", &tls), &[&one.address, "cannot read the key file"]);

    let control = scratch.text("control");
    let server = scratch.serve([create(&secret, &tls).as_str(), "--control", control.as_str()]);
    until("the second leg is filled", || standings(&images[0]) == [1, 1]);
    let status = || scratch.run(["status", "--control", &control]).ok().out();
    let address = two.address.clone();
    two.signal("KILL");
    let _ = two.wait();
    let two = start(1, &address, "--tls-key", &other_tls);
    until("the leg's key is refused", || status().contains("refuses TLS"));
    two.signal("KILL");
    let _ = two.wait();
    let two = start(1, &address, "--tls-key", &tls);
    until("the leg is in sync again", || standings(&images[0]) == [1, 1]);
    server.stop().ok();
    drop((one, two));
}

/// Compares the legs during writes, and again after an idle block of one leg was changed.
fn compares(scratch: &Scratch, nqn: &str, image: &str, more: impl Fn()) {
    let control = scratch.text("control");
    let ctl = |words: &[&str]| scratch.run(["ctl", "--control", &control].iter().chain(words));
    let slow = ctl(&["copy-speed", nqn, "1", "1"]).ok().out();
    assert!(slow.contains("at most at 1 MiB/s"), "{slow}");
    ctl(&["verify", nqn, "1", "--no-wait"]).ok();
    more();
    // The new speed must apply to the running comparison.
    ctl(&["copy-speed", nqn, "1", "0"]).ok();
    let same = ctl(&["verify", nqn, "1"]).ok().out();
    assert!(same.contains("all legs in sync are identical"), "{same}");
    ctl(&["verify", nqn, "2"]).fails(1, &["is not a shared mirror"]);
    let mut file = std::fs::File::options().write(true).open(image).expect("the file opens");
    file.seek(SeekFrom::Start(7 << 20)).expect("the file is seekable");
    file.write_all(&[0xee; 4096]).expect("the file can be written");
    ctl(&["verify", nqn, "1"]).fails(1, &["legs in sync differ", "at 14336"]);
    let status = scratch.run(["status", "--control", &control]).ok().out();
    assert!(status.contains("legs differ within 64 KiB"), "{status}");
    file.seek(SeekFrom::Start(7 << 20)).expect("the file is seekable");
    file.write_all(&[0; 4096]).expect("the file can be written");
}

/// Checks that a comparison does not count the lost half of a leg's file as identical.
#[test]
fn verify_names_an_unreadable_leg() {
    let scratch = Scratch::new();
    let one = scratch.disk("one.img", LEG_BYTES as u64);
    let data = scratch.disk("data.img", (LEG_BYTES - RESERVED_BYTES) as u64);
    let records = scratch.disk("records.img", RESERVED_BYTES as u64);
    let leg = scratch.serve([format!("concat:{data},{records}").as_str()]);
    let control = scratch.text("control");
    let mirror = format!("mirror:{one},{}?create", leg.url(1));
    let server = scratch.serve([mirror.as_str(), "--control", control.as_str()]);
    until("the second leg is filled", || standings(&one) == [1, 1]);
    let nqn = server.subsystem_url().rsplit('/').next().expect("the text has a name").to_owned();
    let verify = || scratch.run(["ctl", "--control", &control, "verify", &nqn, "1"]);
    verify().ok();
    let file = std::fs::File::options().write(true).open(&data).expect("the file opens");
    file.set_len(4 << 20).expect("the file is resized");
    let parts = ["4 MiB are identical", "4 MiB could not be", "reads failed on"];
    verify().fails(1, &parts);
    let status = scratch.run(["status", "--control", &control]).ok().out();
    let line = status.lines().find(|line| line.contains("mirror 1: ")).expect(&status);
    assert!(line.contains("could not be compared (reads failed on nvme+tcp"), "{status}");
    server.stop().ok();
    leg.stop().ok();
}

/// Checks that a shrunken leg is out of sync: it has lost its record, and perhaps data.
#[test]
fn a_shrunken_leg_is_out_of_sync() {
    let scratch = Scratch::new();
    let one = scratch.disk("one.img", LEG_BYTES as u64);
    let two = scratch.disk("two.img", LEG_BYTES as u64);
    let (far, control) = (scratch.text("far"), scratch.text("control"));
    let leg = scratch.serve([two.as_str(), "--control", far.as_str()]);
    let mirror = format!("mirror:{one},{}?create", leg.url(1));
    let server = scratch.serve([mirror.as_str(), "--control", control.as_str()]);
    until("the second leg is filled", || standings(&one) == [1, 1]);
    let resized = |bytes: usize| {
        let bytes = bytes.to_string();
        scratch.run(["ctl", "--control", &far, "resize", &leg.nqn, "1", &bytes]).ok();
    };
    let status = || scratch.run(["status", "--control", &control]).ok().out();
    // Wait until the mirror writes no more, because a failed write would also reveal the shrunken
    // leg.
    until("the bitmap is empty", || {
        let status = scratch.run(["status", "--control", &control, "--json"]).ok().json();
        status["subsystems"][0]["namespaces"][0]["mirror"]["dirty_bytes"] == 0
    });
    resized(LEG_BYTES / 2);
    until("the leg is out", || standings(&one) == [1, 2]);
    assert!(
        status().contains("has shrunk") || status().contains("use a larger leg"),
        "{}",
        status()
    );
    resized(LEG_BYTES);
    until("no leg is out", || !status().contains(", out"));
    server.stop().ok();
    leg.stop().ok();
}

/// Reads the mebibyte at offset 2 MiB so often that the mirror reads it from every leg in sync.
/// Expects the data that was written last.
fn reads_are(scratch: &Scratch, url: &str, byte: u8) {
    for _ in 0..6 {
        let read = scratch.run(["read", url, "--offset", "2MiB", "--length", "1MiB"]).ok();
        assert!(read.stdout.iter().all(|found| *found == byte), "the read returns another block");
    }
}

fn write_mib(scratch: &Scratch, url: &str, at: &str, byte: u8) {
    scratch.run_with(["write", url, "--offset", at], &[byte; 1 << 20]).ok();
}

/// Another program truncates a leg's file. The next write would extend the file again, and leave
/// zeroes in between.
#[test]
fn a_leg_with_a_truncated_file_is_not_read() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, LEG_BYTES as u64));
    let control = scratch.text("control");
    let mirror = format!("mirror:{},{}?create", images[0], images[1]);
    let server = scratch.serve([mirror.as_str(), "--control", control.as_str()]);
    until("the second leg is filled", || standings(&images[0]) == [1, 1]);
    let url = server.url(1);
    write_mib(&scratch, &url, "2MiB", 7);
    let file = std::fs::File::options().write(true).open(&images[1]).expect("the file opens");
    file.set_len(1 << 20).expect("the file is resized");
    write_mib(&scratch, &url, "6MiB", 8);
    reads_are(&scratch, &url, 7);
    assert_eq!(standings(&images[0]), [1, 2], "the write was acknowledged before the record");
    let status = scratch.run(["status", "--control", &control]).ok().out();
    assert!(status.contains("two.img, out: "), "{status}");
    server.stop().ok();
}

/// Kills a leg's target and replaces its file by an older copy. The target restarts before the
/// mirror notices.
#[test]
fn a_leg_with_an_older_copy_after_a_restart_is_not_read() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, LEG_BYTES as u64));
    let start = |address: &str| {
        Server::start(scratch.command(["serve", "--listen", address, images[1].as_str()]))
    };
    let reserved = Reserved::at(Ipv4Addr::LOCALHOST);
    let leg = start(&reserved.address.to_string());
    let control = scratch.text("control");
    let mirror = format!("mirror:{},{}?create", images[0], leg.url(1));
    let server = scratch.serve([mirror.as_str(), "--control", control.as_str()]);
    until("the second leg is filled", || standings(&images[0]) == [1, 1]);
    let url = server.url(1);
    let settled = || {
        let status = scratch.run(["status", "--control", &control, "--json"]).ok().json();
        status["subsystems"][0]["namespaces"][0]["mirror"]["dirty_bytes"] == 0
    };
    write_mib(&scratch, &url, "2MiB", 7);
    until("both legs have the record", settled);
    let older = support::read(&images[1]);
    write_mib(&scratch, &url, "2MiB", 8);
    until("both legs have the record", settled);
    let address = leg.address.clone();
    leg.signal("KILL");
    let _ = leg.wait();
    let mut file = std::fs::File::options().write(true).open(&images[1]).expect("the file opens");
    file.write_all(&older).expect("the old bytes are written");
    drop(file);
    let leg = start(&address);
    reads_are(&scratch, &url, 8);
    until("the leg is out", || standings(&images[0]) == [1, 2]);
    until("the reason is known", || {
        let status = scratch.run(["status", "--control", &control]).ok().out();
        status.contains("an older copy of itself")
    });
    server.stop().ok();
    leg.stop().ok();
}

#[test]
fn a_mirror_survives_the_loss_of_each_leg_in_turn() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, LEG_BYTES as u64));
    let start = |leg: usize, address: &str| {
        Server::start(scratch.command(["serve", "--listen", address, images[leg].as_str()]))
    };
    let reserved = [(); 2].map(|()| Reserved::at(Ipv4Addr::LOCALHOST));
    let addresses = reserved.each_ref().map(|it| it.address.to_string());
    let mut legs = [0, 1].map(|leg| Some(start(leg, &addresses[leg])));
    let servers = legs.each_ref().map(|leg| leg.as_ref().expect("the process runs"));
    let [one, two] = servers.map(|leg| leg.url(1));
    let refused = scratch.run(["serve", "--listen", "127.0.0.1:0", &format!("mirror:{one},{two}")]);
    refused.fails(1, &["has no mirror record", "?create"]);
    let mirror = format!("mirror:{one},{two}?create");
    let control = scratch.text("control");
    let server = scratch.serve([mirror.as_str(), "--control", control.as_str()]);
    let url: Url = server.url(1).parse().expect("the URL is valid");
    until("the second leg is filled", || standings(&images[0]) == [1, 1]);
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let more = |what: &str| {
        let before = count.load(Ordering::Relaxed);
        until(what, || count.load(Ordering::Relaxed) > before + 100);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&disk, &stop, &count));
        for (leg, alone) in [(1, [1, 2]), (0, [2, 1])] {
            more("writes are done");
            let killed = legs[leg].take().expect("the process runs");
            killed.signal("KILL");
            let _ = killed.wait();
            until("the leg is recorded as behind", || standings(&images[1 - leg]) == alone);
            more("writes continue without the leg");
            legs[leg] = Some(start(leg, &addresses[leg]));
            until("the leg is in sync again", || standings(&images[1 - leg]) == [1, 1]);
        }
        more("writes are done");
        let nqn =
            server.subsystem_url().rsplit('/').next().expect("the text has a name").to_owned();
        compares(&scratch, &nqn, &images[1], || more("writes continue"));
        stop.store(true, Ordering::Relaxed);
    });
    drop(disk);
    server.stop().ok();
    let [one, two] = images.each_ref().map(support::read);
    let data = LEG_BYTES - RESERVED_BYTES;
    assert!(one[..data] == two[..data], "the legs differ");
}
