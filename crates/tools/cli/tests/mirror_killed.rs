//! Kills the process of a mirror while the storage of a remote leg delays one of its writes. The
//! remote target must not execute that write after the writes of the next process.
#![cfg(unix)]

mod support;

#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../ends/nvmf-target/tests/rig/gate.rs"]
mod gate;
#[allow(unexpected_cfgs, reason = "this crate lacks the feature `memory` of the module")]
#[path = "../../../ends/nvmf-host/tests/peer/mod.rs"]
mod peer;
#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Url};
use farblock_reactor::EngineKind;
use farblock_target::Target;
use farblock_wire::opcode::NvmOpcode;
use gate::Gate;
use peer::{Handled, Peer, SUBSYSTEM, Script};
use scripted::NQN;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Scratch, Server, until};

const LEG_BYTES: u64 = 9 << 20;
const LBA: u64 = 200;

/// A target whose storage can delay writes.
struct Far {
    store: Arc<Mem>,
    gate: Arc<Gate>,
    target: Target,
}

impl Far {
    fn new() -> Far {
        let store = Arc::new(Mem::new(512, LEG_BYTES).expect("the size is valid"));
        let gate = Arc::new(Gate::new(Arc::clone(&store) as _));
        let disk = Arc::clone(&gate) as Arc<dyn Namespace>;
        let target = scripted::target_of(EngineKind::Portable, [disk], |_| {});
        Far { store, gate, target }
    }

    fn url(&self) -> String {
        format!("nvme+tcp://{}/{NQN}?ns=1", self.target.addresses()[0])
    }

    fn has(&self) -> u8 {
        let mut block = [0; 512];
        Blocking::new(&*self.store)
            .expect("the queue opens")
            .read(LBA, &mut block)
            .expect("the read succeeds");
        assert!(block.iter().all(|byte| *byte == block[0]), "the block has half a write");
        block[0]
    }
}

struct Mirror<'a> {
    scratch: &'a Scratch,
    server: Server,
}

impl Mirror<'_> {
    fn start<'a>(scratch: &'a Scratch, legs: &[String], more: &str) -> Mirror<'a> {
        let spec = format!("mirror:{}{more}", legs.join(","));
        let server = scratch.serve(["--state-dir", "kept", "--control", "control", &spec]);
        Mirror { scratch, server }
    }

    /// Returns the state of each leg, with the reason.
    fn legs(&self) -> Vec<(String, String)> {
        let status = self.scratch.run(["status", "--control", "control", "--json"]).ok().json();
        let legs = &status["subsystems"][0]["namespaces"][0]["legs"];
        let text =
            |leg: &serde_json::Value, name: &str| leg[name].as_str().unwrap_or("").to_owned();
        let legs = legs.as_array().expect("the JSON contains the list").iter();
        legs.map(|leg| (text(leg, "state"), text(leg, "reason"))).collect()
    }

    fn is_whole(&self) -> bool {
        self.legs().iter().all(|(state, _)| state == "in_sync")
    }

    fn write(&self, value: u8) {
        write(&self.server.url(1), value).expect("the write succeeds");
    }

    fn kill(self) {
        self.server.signal("KILL");
        let _ = self.server.wait();
    }

    /// Checks that both legs are identical.
    fn verify(&self) {
        let nqn = &self.server.nqn;
        let verify = ["ctl", "--control", "control", "verify", nqn, "1"];
        let said = self.scratch.run(verify).ok().out();
        assert!(said.contains("all legs in sync are identical"), "{said}");
    }
}

/// Writes from a separate host, which gives up soon after its target dies.
fn write(url: &str, value: u8) -> Result<(), String> {
    let url: Url = url.parse().expect("the URL is valid");
    let soon = Some(Duration::from_secs(1));
    let options = DiskOptions { ctrl_loss_timeout: soon, ..DiskOptions::default() };
    let disk = Disk::connect(&[url], &options).map_err(|error| error.to_string())?;
    let mut blocks = Blocking::new(&disk).map_err(|error| error.to_string())?;
    blocks.write(LBA, &[value; 512]).map_err(|error| error.to_string())
}

/// Kills a mirror whose second write is in flight to `far`.
fn die_writing(mirror: Mirror<'_>, far: &Far) {
    mirror.write(1);
    far.gate.keep_at(LBA);
    let url = mirror.server.url(1);
    let writer = std::thread::spawn(move || write(&url, 2));
    until("a write is held back", || far.gate.kept() == 1);
    mirror.kill();
    writer.join().expect("the thread does not panic").expect_err("no write was acknowledged");
}

#[test]
fn a_delayed_write_of_a_dead_mirror_does_not_overwrite_a_newer_one() {
    let (scratch, far) = (Scratch::new(), Far::new());
    let legs = [scratch.disk("near.img", LEG_BYTES), far.url()];
    let first = Mirror::start(&scratch, &legs, "?create");
    until("the second leg is filled", || first.is_whole());
    die_writing(first, &far);
    let second = Mirror::start(&scratch, &legs, "");
    let far_leg = second.legs()[1].clone();
    second.write(3);
    far.gate.open_up();
    until("the held writes are executed", || far.gate.kept() == 0);
    until("the leg is in sync again", || second.is_whole());
    second.verify();
    assert_eq!(far.has(), 3, "a dead process's write undid a newer one");
    let (state, reason) = far_leg;
    assert!(state == "out" && reason.contains("has not confirmed"), "{state}: {reason}");
    // No write is delayed this time, so the mirror cancels the old controllers and uses the leg at
    // once.
    second.kill();
    let third = Mirror::start(&scratch, &legs, "");
    assert!(third.is_whole(), "{:?}", third.legs());
    third.verify();
    // After a clean stop no write is outstanding, so the mirror does not wait.
    third.server.stop().ok();
    let files =
        std::fs::read_dir(scratch.path("kept/controllers")).expect("the folder is readable");
    let texts: Vec<_> =
        files.map(|file| support::read(file.expect("the entry is readable").path())).collect();
    assert_eq!(texts, [b"[]"]);
}

/// Checks a target, such as the kernel's, that can neither cancel a lost controller nor hold back
/// later writes. The mirror waits three times the keep-alive timeout for the delayed write.
#[test]
fn a_mirror_waits_for_delayed_writes_if_the_target_cannot_cancel_them() {
    let scratch = Scratch::new();
    let holds = Arc::new(AtomicBool::new(false));
    let held = Arc::new(Mutex::new(None));
    let (is_armed, into) = (Arc::clone(&holds), Arc::clone(&held));
    let far = Peer::new(Script {
        blocks: LEG_BYTES / 512,
        hook: Box::new(move |_, qid, capsule| {
            let is_it = qid > 0
                && NvmOpcode(capsule.sqe.opcode) == NvmOpcode::WRITE
                && u64::from(capsule.sqe.cdw10.get()) == LBA
                && is_armed.swap(false, Ordering::SeqCst);
            if !is_it {
                return Ok(Handled::No);
            }
            *into.lock().unwrap() = Some(capsule.data.clone());
            Ok(Handled::Yes)
        }),
        ..Script::default()
    });
    let url = format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", far.address());
    let legs = [scratch.disk("near.img", LEG_BYTES), url];
    let first = Mirror::start(&scratch, &legs, "?create");
    until("the second leg is filled", || first.is_whole());
    first.write(1);
    holds.store(true, Ordering::SeqCst);
    let to = first.server.url(1);
    let writer = std::thread::spawn(move || write(&to, 2));
    until("a write is held back", || held.lock().unwrap().is_some());
    first.kill();
    writer.join().expect("the thread does not panic").expect_err("no write was acknowledged");
    let second = Mirror::start(&scratch, &legs, "");
    second.write(3);
    // The target executes the delayed write now.
    let late = held.lock().unwrap().take().expect("a write is held");
    far.overwrite(LBA as usize * 512, &late);
    until("the leg is in sync again", || second.is_whole());
    second.verify();
    assert_eq!(far.disk()[LBA as usize * 512], 3, "a dead process's write undid a newer one");
    second.server.stop().ok();
}

/// Checks that the mirror waits if the leg that it cannot write to yet is the only leg with all
/// data.
#[test]
fn a_mirror_waits_for_the_only_leg_with_all_data() {
    let (scratch, far) = (Scratch::new(), Far::new());
    let near = scratch.disk("near.img", LEG_BYTES);
    let legs = [near.clone(), far.url()];
    let first = Mirror::start(&scratch, &legs, "?create");
    until("the second leg is filled", || first.is_whole());
    die_writing(first, &far);
    let whole = std::fs::rename(&near, scratch.path("elsewhere.img"));
    whole.expect("the near leg is away");
    let spec = format!("mirror:{}?degraded", legs.join(","));
    let log = scratch.path("log");
    let command = || {
        let words = ["serve", "--listen", "127.0.0.1:0", "--state-dir", "kept", &spec];
        let mut command = scratch.command(words);
        command
            .args(["--control", "control"])
            .stderr(std::fs::File::create(&log).expect("the file is created"));
        command
    };
    let said = || String::from_utf8_lossy(&support::read(&log)).into_owned();
    let waits = || until("the mirror waits", || said().contains("the mirror waits"));
    // A signal must stop the target during the wait.
    let child = command().spawn().expect("the target starts");
    waits();
    support::signal(child.id(), "TERM");
    assert_eq!(support::wait(child).status.code(), Some(1));
    assert!(said().contains("stopped while the mirror waited"), "{}", said());
    std::thread::scope(|scope| {
        let command = command();
        let starting = scope.spawn(|| Server::start(command));
        waits();
        assert!(!starting.is_finished(), "the disk is shared too early");
        assert_eq!(far.gate.kept(), 1);
        far.gate.open_up();
        let server = starting.join().expect("the target starts");
        let second = Mirror { scratch: &scratch, server };
        assert_eq!(far.has(), 2, "a held write was executed too early");
        second.write(3);
        assert_eq!(far.has(), 3);
        second.server.stop().ok();
    });
}
