//! Tests of remote disks in a set. Kills the target of each disk in turn, under load: no operation
//! may fail, and no data may be lost.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Url};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Reserved, Scratch, Server, until};

const PART_BYTES: u64 = 8 << 20;
/// The number of locations that the test writes, in all parts together.
const PLACES: u64 = 64;

/// Writes versions of blocks and reads them back until `stop`.
fn load(disk: &Disk, step: u64, stop: &AtomicBool, count: &AtomicU64) {
    let mut blocks = Blocking::new(disk).expect("the queue opens");
    // Each location has two blocks. Some locations cross the boundary between two parts.
    let size = 2 * blocks.geometry().block_size as usize;
    let (mut data, mut versions) = (vec![0; size], [0_u8; PLACES as usize]);
    let mut turn: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let at = turn * 7 % PLACES;
        let (lba, version) = (at * step, &mut versions[at as usize]);
        blocks.read(lba, &mut data).expect("the read succeeds");
        assert!(data.iter().all(|byte| byte == version), "block {lba} has old data");
        *version = turn as u8;
        data.fill(*version);
        blocks.write(lba, &data).expect("the write succeeds");
        if turn.is_multiple_of(16) {
            blocks.flush().expect("the flush succeeds");
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills the target of each part in turn under load. Locations are `step` blocks apart.
fn each_is_killed_in_turn(kind: &str, step: u64, order: [usize; 2]) {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, PART_BYTES));
    let start = |part: usize, address: &str| {
        Server::start(scratch.command(["serve", "--listen", address, images[part].as_str()]))
    };
    let reserved = [(); 2].map(|()| Reserved::at(Ipv4Addr::LOCALHOST));
    let addresses = reserved.each_ref().map(|it| it.address.to_string());
    let mut parts = [0, 1].map(|part| Some(start(part, &addresses[part])));
    let servers = parts.each_ref().map(|part| part.as_ref().expect("the process runs"));
    let [one, two] = servers.map(|part| part.url(1));
    let control = scratch.text("control");
    let local = scratch.disk("local.img", PART_BYTES);
    let size = if kind == "concat:" { "8MiB@" } else { "" };
    let whole = format!("{kind}{size}{one},{size}{local},{two}");
    let server = scratch.serve([whole.as_str(), "--control", control.as_str()]);
    let status = || scratch.run(["status", "--control", &control]).ok().out();
    let url: Url = server.url(1).parse().expect("the URL is valid");
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let more = |what: &str| {
        let before = count.load(Ordering::Relaxed);
        until(what, || count.load(Ordering::Relaxed) > before + 100);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&disk, step, &stop, &count));
        for part in order {
            more("writes are done");
            assert!(!status().contains(", away"), "{}", status());
            let killed = parts[part].take().expect("the process runs");
            killed.signal("KILL");
            let _ = killed.wait();
            until("the status shows that the leg is away", || status().contains(", away"));
            parts[part] = Some(start(part, &addresses[part]));
            more("writes continue");
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(disk);
    server.stop().ok();
    // Every part must have been written.
    for image in images.iter().chain([&local]) {
        assert!(support::read(image).iter().any(|byte| *byte != 0), "{image} is empty");
    }
}

#[test]
fn a_stripe_set_continues_when_its_first_part_returns() {
    each_is_killed_in_turn("stripe:4KiB,", 127, [0, 1]);
}

#[test]
fn a_concatenation_continues_when_its_last_part_returns() {
    // Locations 21 and 42 cross the boundaries between parts.
    each_is_killed_in_turn("concat:", (PART_BYTES / 512 - 1) / 21, [1, 0]);
}

/// Kills the targets of two parts at once. Then kills the target of one part together with the
/// target of the set. The host retries, and all written data must survive.
#[test]
fn a_stripe_set_survives_the_simultaneous_death_of_two_targets() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, PART_BYTES));
    let serve = |what: &str, address: &str, nqn: &str| {
        Server::start(scratch.command(["serve", "--listen", address, "--nqn", nqn, what]))
    };
    let names = ["one", "two", "whole"].map(|name| format!("nqn.2026-11.org.example:{name}"));
    let reserved = [(); 3].map(|()| Reserved::at(Ipv4Addr::LOCALHOST));
    let addresses = reserved.each_ref().map(|it| it.address.to_string());
    let [one, two] = [0, 1].map(|part| serve(&images[part], &addresses[part], &names[part]));
    let whole = format!("stripe:4KiB,{},{}", one.url(1), two.url(1));
    let front = serve(&whole, &addresses[2], &names[2]);
    let url: Url = front.url(1).parse().expect("the URL is valid");
    let all = [&images[0], &images[1], &whole];
    let mut servers = [one, two, front].map(Some);
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let more = |what: &str| {
        let before = count.load(Ordering::Relaxed);
        until(what, || count.load(Ordering::Relaxed) > before + 100);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&disk, 127, &stop, &count));
        for pair in [[0, 1], [0, 2], [2, 1], [1, 0]] {
            more("writes are done");
            for index in pair {
                servers[index].as_ref().expect("the process runs").signal("KILL");
            }
            for index in pair {
                let _ = servers[index].take().expect("the process runs").wait();
            }
            let mut back = pair;
            // The set opens only when all its parts are available, so start its target last.
            back.sort_unstable();
            for index in back {
                servers[index] = Some(serve(all[index], &addresses[index], &names[index]));
            }
            more("writes continue");
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(disk);
    servers.into_iter().rev().flatten().for_each(|server| drop(server.stop()));
}

/// A killed target leaves a record of its controllers on remote targets. The next target must
/// cancel these controllers before it writes, and then remove the record. A damaged record is an
/// error.
#[test]
fn a_new_target_cancels_the_controllers_of_its_dead_predecessor() {
    let scratch = Scratch::new();
    let part = scratch.serve([scratch.disk("one.img", PART_BYTES)]);
    let whole = format!("concat:{}", part.url(1));
    let start = || scratch.serve(["--state-dir", "kept", &whole]);
    let written = |server: &Server| {
        let url: Url = server.url(1).parse().expect("the URL is valid");
        let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
        Blocking::new(&disk)
            .expect("the queue opens")
            .write(0, &[1; 512])
            .expect("the write succeeds");
    };
    let file = || {
        let files =
            std::fs::read_dir(scratch.path("kept/controllers")).expect("the folder is readable");
        let mut paths = files.map(|it| it.expect("the entry is readable").path());
        // Skip a temporary file, which may also exist.
        paths
            .find(|path| path.extension().is_some_and(|it| it == "json"))
            .expect("the folder has the file")
    };
    let lives = || {
        let lives: serde_json::Value =
            serde_json::from_slice(&support::read(file())).expect("the text is JSON");
        lives.as_array().expect("the JSON contains the list").clone()
    };
    let mut names = Vec::new();
    for _ in 0..3 {
        let server = start();
        written(&server);
        // The target removes the old controller's record once the new controller has written.
        until("one record remains", || lives().len() == 1);
        names.push(lives()[0]["name"].to_string());
        server.signal("KILL");
        let _ = server.wait();
        assert_eq!(lives().len(), 1);
    }
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
    std::fs::write(file(), "[{").expect("the file is written");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--state-dir", "kept", &whole];
    scratch.run(serve).fails(1, &["cannot be used", "remove the file"]);
}

#[test]
fn errors_and_status_name_remote_parts_without_their_keys() {
    let scratch = Scratch::new();
    let key = scratch.keys(["tls.key"], &["--tls"]).concat();
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    let image = scratch.disk("one.img", PART_BYTES);
    let given = format!("{host}={key}");
    let locked = scratch.serve([image.as_str(), "--tls-key", given.as_str()]);
    let open = scratch.serve([scratch.disk("two.img", PART_BYTES)]);
    let (locked_url, open_url) = (locked.url(1), open.url(1));
    let refused = |spec: &str, parts: &[&str]| {
        scratch.run(["serve", "--listen", "127.0.0.1:0", spec]).fails(1, parts);
    };
    refused(&format!("concat:{locked_url},{open_url}"), &["TLS"]);
    // This URL names the same disk at another address.
    let again = open_url.replace("127.0.0.1", "localhost");
    refused(&format!("stripe:{open_url},{again}"), &["same disk", "once"]);
    let gone = scratch.serve([scratch.disk("three.img", PART_BYTES)]);
    let gone_url = gone.url(1);
    gone.stop().ok();
    refused(&format!("stripe:{open_url},{gone_url}"), &["is the target running"]);

    let with_key = format!("{locked_url}&hostnqn={host}&tls-key={key}");
    let control = scratch.text("control");
    let parts = [
        format!("stripe:{with_key},{open_url}"),
        format!("range:1MiB+2MiB,{image}.more"),
        format!("range:3MiB+1MiB,{image}.more"),
    ];
    scratch.disk("one.img.more", PART_BYTES);
    let whole = scratch.serve([&parts[0], &parts[1], &parts[2], "--control", &control]);
    let status = scratch.run(["status", "--control", &control]).ok().out();
    assert!(!status.contains("tls.key") && status.contains("ready"), "{status}");
    assert_eq!(status.matches("leg of namespace 1").count(), 2, "{status}");
    // Of the URL's parameters, a part's name contains only the namespace.
    assert_eq!(status.matches("?ns=1, ready").count(), 2, "{status}");
    let nqn = whole.nqn.clone();
    scratch
        .run(["ctl", "--control", &control, "verify", &nqn, "1"])
        .fails(1, &["is not a shared mirror"]);
    whole.stop().ok();
    // The set keeps its identity if a key changes, and if the set is read-only.
    let whole = scratch.serve([&parts[0], "--read-only", "--control", &control]);
    let url: Url = whole.url(1).parse().expect("the URL is valid");
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let mut blocks = Blocking::new(&disk).expect("the queue opens");
    blocks.write(0, &[1; 512]).expect_err("the disk is read-only");
    drop((blocks, disk));
    whole.stop().ok();
}

/// Checks that the data of later parts stay in place after a part has grown or shrunk.
#[test]
fn a_part_that_changed_its_size_moves_no_data_of_other_parts() {
    let scratch = Scratch::new();
    let images = ["one.img", "two.img"].map(|name| scratch.disk(name, PART_BYTES));
    let control = scratch.text("behind");
    let behind = scratch.serve([&images[0], &images[1], "--control", &control]);
    let [one, two] = [1, 2].map(|nsid| behind.url(nsid));
    let serve =
        |spec: &str| scratch.run(["serve", "--listen", "127.0.0.1:0", "--control", "own", spec]);
    let named = format!("concat:8MiB@{one},{two}");
    serve(&format!("concat:{one},{two}")).fails(1, &["does not fix the size", &named]);
    serve(&format!("stripe:8MiB@{one},{two}")).fails(1, &["does not exist"]);
    let own = scratch.text("own");
    let start = || scratch.serve([&named, "--control", &own]);
    let status = || scratch.run(["status", "--control", &own]).ok().out();
    let connected = |server: &Server| {
        let url: Url = server.url(1).parse().expect("the URL is valid");
        Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects")
    };
    let behind_one = PART_BYTES / 512;
    let resized = |bytes: u64| {
        let bytes = bytes.to_string();
        scratch.run(["ctl", "--control", &control, "resize", &behind.nqn, "1", &bytes]).ok();
    };
    let server = start();
    let disk = connected(&server);
    let mut blocks = Blocking::new(&disk).expect("the queue opens");
    blocks.write(behind_one, &[7; 512]).expect("the write succeeds");
    blocks.flush().expect("the flush succeeds");
    drop((blocks, disk));
    server.stop().ok();
    resized(2 * PART_BYTES);
    let server = start();
    let disk = connected(&server);
    let mut blocks = Blocking::new(&disk).expect("the queue opens");
    assert_eq!(blocks.geometry().capacity_bytes(), 2 * PART_BYTES);
    let mut data = [0; 512];
    blocks.read(behind_one, &mut data).expect("the read succeeds");
    assert_eq!(data, [7; 512]);
    // The part shrinks in use. The status must report this, and reads of the missing blocks must
    // fail.
    resized(PART_BYTES / 2);
    until("the status shows the new size", || status().contains("has shrunk from 16 MiB"));
    assert!(status().contains(", away"), "{}", status());
    blocks.read(behind_one - 1, &mut data).expect_err("the block does not exist");
    blocks.read(behind_one, &mut data).expect("the read succeeds");
    assert_eq!(data, [7; 512]);
    drop((blocks, disk));
    server.stop().ok();
    serve(&named).fails(1, &["is shorter than its part of the concatenation, 8 MiB"]);
}

/// Checks that two sets cannot contain the same remote disk, because they would overwrite each
/// other.
#[test]
fn a_remote_disk_cannot_be_part_of_two_sets() {
    let scratch = Scratch::new();
    let part = scratch.serve([scratch.disk("one.img", PART_BYTES)]);
    let url = part.url(1);
    let again = url.replace("127.0.0.1", "localhost");
    let refused = |specs: [String; 2], words: &str| {
        let [one, other] = &specs;
        let serve = ["serve", "--listen", "127.0.0.1:0", one.as_str(), other.as_str()];
        scratch.run(serve).fails(1, &[words]);
    };
    refused([format!("concat:{url}"), format!("concat:{url}")], "same disk");
    refused([format!("concat:{url}"), format!("stripe:4KiB,{again}")], "same disk");
    refused([format!("concat:{url}"), format!("range:0+1MiB,{url}")], "same disk");
    let ranges =
        |offset: &str| [format!("range:0+1MiB,{url}"), format!("range:{offset}+1MiB,{url}")];
    refused(ranges("512KiB"), "overlaps");
    scratch.serve(ranges("1MiB")).stop().ok();
    let nested = format!("concat:stripe:{url},{again}");
    scratch.run(["serve", nested.as_str()]).fails(2, &["cannot contain", "separately"]);
}
