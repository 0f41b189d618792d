//! Tests of more changes by `farblock ctl`: the disk of a namespace, identifiers of namespaces and
//! subsystems, authentication settings, and referrals.
#![cfg(unix)]

mod support;

#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;

use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Url};
use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::property::offset;
use farblock_wire::{SglDescriptor, Sqe, Status};
use scripted::{HOST_NQN, Queue};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use support::{Scratch, until};

const NQN: &str = "nqn.2026-11.org.farblock:steered";
const HOST: &str = "nqn.2026-11.org.farblock:host";
const UUID: &str = "2d6f12ca-6c90-538f-a383-5ab39f554825";
const NGUID: &str = "0123456789abcdef0123456789abcdef";

impl Scratch {
    fn id(&self, url: &str) -> Value {
        self.run(["id", url, "--json"]).ok().json()
    }

    fn state(&self) -> Value {
        self.run(["config", "show"]).ok().json()
    }
}

#[test]
fn add_namespace_accepts_every_option() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let disk = scratch.disk("disk.img", 1 << 20);
    let named = ["--uuid", UUID, "--nguid", NGUID, "--size", "2MiB", "--ana-group", "7"];
    scratch.ctl(&[&["add-namespace", NQN, &disk], &named[..]].concat()).ok();
    assert_eq!(std::fs::metadata(&disk).expect("the file exists").len(), 2 << 20);
    let seen = &scratch.id(&server.url(2))["namespaces"][0];
    assert_eq!((&seen["uuid"], &seen["nguid"]), (&json!(UUID), &json!(NGUID)), "{seen}");
    assert_eq!(seen["bytes"], 2 << 20, "{seen}");
    let kept = &scratch.state()["subsystems"][NQN]["namespaces"]["2"];
    assert_eq!(kept["ana_group"], 7, "{kept}");
    let again = scratch.ctl(&["add-namespace", NQN, "mem:1MiB", "--uuid", UUID]);
    again.fails(1, &["namespace 2", NQN]);
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB", "--uuid", "x"]).fails(2, &["not a UUID"]);
    let (other, names) = ("nqn.2026-11.org.farblock:named", ["--serial", "S1", "--model", "M 2"]);
    scratch.ctl(&[&["add-subsystem", other, "--allow-any-host"], &names[..]].concat()).ok();
    let seen = scratch.id(&format!("nvme+tcp://{}/{other}", server.address));
    let seen = &seen["controller"];
    assert_eq!((&seen["serial"], &seen["model"]), (&json!("S1"), &json!("M 2")), "{seen}");
    scratch
        .ctl(&["add-subsystem", "nqn.2026-11.h:x", "--serial", &"9".repeat(21)])
        .fails(1, &["serial", "20"]);
    server.stop();
}

/// Checks that a connected host sees the new disk. A disk that requires the old identity must not
/// get data of the new disk.
#[test]
fn replacing_the_disk_of_a_namespace_keeps_old_and_new_data_apart() {
    let scratch = Scratch::new();
    let (old, new) = (scratch.disk("old.img", 1 << 20), scratch.disk("new.img", 2 << 20));
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", &old]);
    let disk = |nsid| {
        let url: Url = server.url(nsid).parse().expect("the URL is valid");
        let options = DiskOptions {
            // Limit how long this disk waits for the old namespace.
            ctrl_loss_timeout: Some(Duration::from_secs(1)),
            ..DiskOptions::default()
        };
        Disk::connect(&[url], &options).expect("the disk connects")
    };
    let (stays, goes) = (disk(1), disk(2));
    let mut blocks = [
        Blocking::new(&stays).expect("the queue opens"),
        Blocking::new(&goes).expect("the queue opens"),
    ];
    blocks.iter_mut().for_each(|one| one.write(0, &[7; 512]).expect("the write succeeds"));
    scratch.ctl(&["limit", NQN, "2", "--iops", "100000"]).ok();
    let before = scratch.id(&server.url(2))["namespaces"][0]["uuid"].clone();
    let said = scratch.ctl(&["replace-namespace", NQN, "2", &new]).ok().out();
    assert!(said.contains("namespace 2") && said.contains("new.img"), "{said}");
    until("the removed disk returns errors", || blocks[1].write(0, &[8; 512]).is_err());
    blocks[0].write(1, &[9; 512]).expect("the other disk stays");
    assert_eq!(stays.geometry().blocks, 2048);
    let after = &scratch.id(&server.url(2))["namespaces"][0];
    assert!(after["uuid"] != before && after["bytes"] == 2 << 20, "{after}");
    let kept = &scratch.state()["subsystems"][NQN]["namespaces"]["2"];
    assert_eq!(kept["limits"]["iops"], 100_000, "{kept}");
    let mut back = [1; 512];
    Blocking::new(&disk(2))
        .expect("the queue opens")
        .read(0, &mut back)
        .expect("the read succeeds");
    assert!(
        back == [0; 512]
            && support::read(&old)[..512] == [7; 512]
            && !support::read(&old).contains(&8)
    );
    let same = scratch.ctl(&["replace-namespace", NQN, "2", &new]).ok().out();
    assert!(same.contains("nothing to change"), "{same}");
    scratch.ctl(&["replace-namespace", NQN, "3", &old]).fails(1, &["no namespace 3"]);
    scratch.ctl(&["replace-namespace", NQN, "2", "none.img"]).fails(1, &["none.img"]);
    assert_eq!(scratch.id(&server.url(2))["namespaces"][0]["bytes"], 2 << 20);
    let twice = scratch.ctl(&["add-namespace", NQN, &old, "--nsid", "2"]);
    twice.fails(1, &["has a namespace 2 already", "replace-namespace"]);
    server.stop();
}

/// Moves another file to a disk's path. Checks that the target uses this file only after the
/// operator runs `replace-namespace`.
#[test]
fn a_file_moved_to_the_path_of_a_disk_is_used_only_after_replace_namespace() {
    let scratch = Scratch::new();
    let (path, next) = (scratch.disk("disk.img", 1 << 20), scratch.disk("next.img", 2 << 20));
    std::fs::write(&next, vec![5; 2 << 20]).expect("the write succeeds");
    let server = scratch.serve(["--nqn", NQN, &path]);
    let url: Url = server.url(1).parse().expect("the URL is valid");
    let options =
        DiskOptions { ctrl_loss_timeout: Some(Duration::from_secs(1)), ..DiskOptions::default() };
    let old = Disk::connect(&[url], &options).expect("the disk connects");
    let mut blocks = Blocking::new(&old).expect("the queue opens");
    blocks.write(0, &[7; 512]).expect("the write succeeds");
    let uuid = || scratch.id(&server.url(1))["namespaces"][0]["uuid"].clone();
    let before = uuid();
    let replace = || scratch.ctl(&["replace-namespace", NQN, "1", &path]);
    assert!(replace().ok().out().contains("nothing to change"));
    blocks.write(1, &[7; 512]).expect("the unchanged disk stays");
    // The path has no file, so the old disk stays shared, and the error gives the reason.
    std::fs::rename(&path, scratch.path("old.img")).expect("the file is renamed");
    replace().fails_in_a_line(1, &["namespace 1 is unchanged", "disk.img"]);
    blocks.write(2, &[7; 512]).expect("the old disk stays");
    std::fs::rename(&next, &path).expect("the file is renamed");
    let said = replace().ok().out();
    assert!(said.contains("namespace 1 added, stored in") && said.contains("disk.img"), "{said}");
    until("the removed disk returns errors", || blocks.write(3, &[8; 512]).is_err());
    assert_ne!(uuid(), before);
    let seen = &scratch.id(&server.url(1))["namespaces"][0];
    assert_eq!(seen["bytes"], 2 << 20, "{seen}");
    let read = scratch.run(["read", &server.url(1), "--length", "512", "-o", "block"]);
    read.ok();
    assert!(support::read(scratch.path("block")) == [5; 512], "the new disk has other data");
    assert!(!support::read(scratch.path("old.img")).contains(&8), "the old file was written");
    assert!(replace().ok().out().contains("nothing to change"));
    server.stop();
}

#[test]
fn a_replacing_disk_keeps_the_block_size_and_only_a_mirror_keeps_the_copy_rate() {
    let scratch = Scratch::new();
    let legs = [scratch.disk("a.img", 4 << 20), scratch.disk("b.img", 4 << 20)];
    let config = format!(
        "[[subsystems]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystems.namespaces]]\npath = \"mirror:{}?create\"\nblock_size = 4096\n\
         copy_bytes_per_second = 1048576\n",
        legs.join(",")
    );
    let config = scratch.file("farblock.toml", config.as_bytes());
    let server = scratch.serve(["--config", &config]);
    let entry = || scratch.state()["subsystems"][NQN]["namespaces"]["1"].clone();
    assert_eq!(entry()["copy_bytes_per_second"], 1 << 20, "{}", entry());
    // The mirror must have the speed, and follow its changes.
    let paced = || {
        let status = scratch.run(["status", "--json"]).ok().json();
        status["subsystems"][0]["namespaces"][0]["mirror"]["copy_bytes_per_second"].clone()
    };
    assert_eq!(paced(), 1 << 20);
    scratch.ctl(&["copy-speed", NQN, "1", "3"]).ok();
    assert_eq!(paced(), 3 << 20);
    let replace = |more: &[&str]| {
        scratch.ctl(&[&["replace-namespace", NQN, "1", "mem:1MiB"], more].concat()).ok();
        scratch.id(&server.url(1))["namespaces"][0].clone()
    };
    let seen = replace(&[]);
    assert_eq!((&seen["block_size"], &seen["bytes"]), (&json!(4096), &json!(1 << 20)), "{seen}");
    assert!(entry()["copy_bytes_per_second"].is_null(), "{}", entry());
    assert_eq!(replace(&["--block-size", "512"])["block_size"], 512);
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB"]).ok();
    assert_eq!(scratch.id(&server.url(2))["namespaces"][0]["block_size"], 512);
    server.stop();
}

#[test]
fn allow_host_sets_the_hashes_and_groups_of_a_host() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--allow-host", "nqn.2026-11.h:other"]);
    let [key] = scratch.keys(["host.key"], &[]);
    let entry = || scratch.state()["subsystems"][NQN]["hosts"][HOST].clone();
    let allow = |more: &[&str]| scratch.ctl(&[&["allow-host", NQN, HOST], more].concat());
    allow(&["--hashes", "sha512"]).fails(1, &["dhchap_key"]);
    allow(&["--key", &key, "--hashes", "sha512,sha256", "--dhgroups", "ffdhe3072"]).ok();
    assert_eq!(entry()["dhchap_hashes"], json!(["sha512", "sha256"]));
    assert_eq!(entry()["dhchap_dhgroups"], json!(["ffdhe3072"]));
    let url = format!("{}&hostnqn={HOST}&dhchap-secret={key}", server.url(1));
    scratch.run(["id", &url]).ok();
    // Settings that the command does not name stay, until `all` resets them.
    allow(&["--dhgroups", "all"]).ok();
    assert_eq!(entry()["dhchap_hashes"], json!(["sha512", "sha256"]));
    assert!(entry()["dhchap_dhgroups"].is_null(), "{}", entry());
    allow(&["--hashes", "md5"]).fails(2, &["md5", "sha256"]);
    server.stop();
}

/// The persistent connection of a host to the discovery subsystem.
struct Watcher(Queue);

impl Watcher {
    fn new(address: &str) -> Watcher {
        const KEEP_ALIVE_MS: u32 = 120_000;
        let mut queue = Queue::new(address.parse().expect("the address is valid"), Digests::NONE);
        let discovery = "nqn.2014-08.org.nvmexpress.discovery";
        let data = ConnectData::new([3; 16], 0xffff, discovery, HOST_NQN);
        let answer = queue.connect(ConnectCommand::new(0, 0, 31, KEEP_ALIVE_MS), data);
        assert_eq!(answer.status, Status::SUCCESS);
        let enable = PropertySetCommand::new(0, offset::CC, PropertySize::Four, 1 | 6 << 16);
        assert_eq!(queue.run(enable.to_sqe(), Transfer::None, &[]).status, Status::SUCCESS);
        // Send Set Features, Asynchronous Event Configuration: changes of the discovery log page.
        let mut sqe = Sqe::new(0x09, 0, 0);
        (sqe.cdw10, sqe.cdw11) = (0x0b.into(), (1_u32 << 31).into());
        assert_eq!(queue.run(sqe, Transfer::None, &[]).status, Status::SUCCESS);
        Watcher(queue)
    }

    /// Whether the log page contains this address.
    fn lists(&mut self, text: &str) -> bool {
        const BYTES: u32 = 8192;
        let mut sqe = Sqe { dptr: SglDescriptor::transport(BYTES), ..Sqe::new(0x02, 0, 0) };
        sqe.cdw10 = (0x70 | (BYTES / 4 - 1) << 16).into();
        let answer = self.0.run(sqe, Transfer::FromController(BYTES), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.data.windows(text.len()).any(|part| part == text.as_bytes())
    }

    /// Sends an Asynchronous Event Request.
    fn ask(&mut self) {
        let (queue, mut out) = (&mut self.0, Vec::new());
        queue.end.submit(SlotId(0), &Sqe::new(0x0c, 0, 0), Transfer::None, &mut out);
        queue.stream.write_all(&out).expect("the bytes are sent");
    }

    /// Waits for the event, and returns its result.
    fn told(&mut self) -> u64 {
        loop {
            let pending = std::mem::take(&mut self.0.pending);
            let mut input = &pending[..];
            if let Some(Event::Completed { cqe, .. }) =
                self.0.end.next(&mut input).expect("the PDU is valid")
            {
                assert_eq!(cqe.status(), Status::SUCCESS);
                return cqe.result();
            }
            assert!(self.0.receive(), "closed before the event");
        }
    }
}

#[test]
fn hosts_are_notified_of_a_new_referral() {
    /// A notice (2h) that the discovery log page (70h) has changed (F0h).
    const CHANGED: u64 = 0x70_f002;
    const ELSEWHERE: &str = "192.0.2.77:8009";
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let mut host = Watcher::new(&server.address);
    let is_discovered = || {
        let found = scratch.run(["discover", &server.address, "--json"]).ok().json();
        let entries = found["entries"].as_array().expect("the JSON contains the list");
        entries.iter().any(|one| one["address"] == "192.0.2.77" && one["service"] == "8009")
    };
    assert!(!host.lists("192.0.2.77") && !is_discovered());
    host.ask();
    let said = scratch.ctl(&["add-referral", "192.0.2.77"]).ok().out();
    assert_eq!(said, format!("refers hosts to {ELSEWHERE}\n"));
    assert_eq!(host.told() & 0xff_ffff, CHANGED);
    assert!(host.lists("192.0.2.77") && is_discovered());
    let again = scratch.ctl(&["add-referral", ELSEWHERE]).ok().out();
    assert_eq!(again, "nothing to change\n");
    host.ask();
    scratch.ctl(&["remove-referral", ELSEWHERE]).ok();
    assert_eq!(host.told() & 0xff_ffff, CHANGED);
    assert!(!host.lists("192.0.2.77") && !is_discovered());
    scratch.ctl(&["remove-referral", ELSEWHERE]).fails(1, &[ELSEWHERE]);
    scratch.ctl(&["add-referral", "0.0.0.0"]).fails(2, &["hosts cannot connect to 0.0.0.0"]);
    scratch.ctl(&["add-referral", "example.org"]).fails(2, &[]);
    server.stop();
}
