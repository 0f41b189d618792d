//! Starts and stops the two members of a group, and their etcd.

use crate::scripted::{BLOCK, NQN};
use crate::support::etcd::{Running, etcd, free};
use crate::support::{Scratch, until};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(crate) struct Group {
    scratch: Scratch,
    places: [SocketAddr; 2],
    pub(crate) etcd: Running,
    pub(crate) members: Vec<Option<Running>>,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Group {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        scratch.disk("disk.img", 1 << 20);
        let places = [free(), free()];
        let etcd = etcd(&scratch, places);
        let addresses = vec![free(), free()];
        let mut group = Self { scratch, places, etcd, members: vec![None, None], addresses };
        (0..2).for_each(|index| group.start(index));
        group
    }

    pub(crate) fn restart_etcd(&mut self) {
        let _ = self.etcd.0.kill();
        let _ = self.etcd.0.wait();
        self.etcd = etcd(&self.scratch, self.places);
    }

    fn name(index: usize) -> String {
        format!("m{index}")
    }

    fn control(&self, index: usize) -> String {
        self.scratch.text(&format!("control-{index}"))
    }

    /// Starts a member, and waits until it serves hosts.
    pub(crate) fn start(&mut self, index: usize) {
        let (address, name) = (self.addresses[index].to_string(), Self::name(index));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.path(&format!("log-{index}")))
            .expect("the log file opens");
        let mut command = self.scratch.command(["serve", "disk.img", "--nqn", NQN]);
        let etcd = format!("http://{}", self.places[0]);
        command.args(["--group", "gold", "--etcd", &etcd, "--member", &name]);
        command.args(["--listen", &address, "--control", &self.control(index)]);
        command.args(["--state-dir", &self.scratch.text(&format!("state-{index}"))]);
        command.args(["--block-size", &BLOCK.to_string(), "--disk-flight", "500ms", "-v"]);
        command.stdout(Stdio::null()).stderr(log);
        self.members[index] = Some(Running(command.spawn().expect("the process starts")));
        until("the member listens", || std::net::TcpStream::connect(&address).is_ok());
    }

    fn leader(&self, seen_by: usize) -> Option<usize> {
        let control = self.control(seen_by);
        let outcome = self.scratch.run(["ctl", "--control", &control, "group", "--json"]);
        if outcome.code != Some(0) {
            return None;
        }
        let seen = outcome.json();
        let group = &seen["ana_groups"][0];
        let name = (group["phase"] == "serving").then(|| group["leader"].as_str()).flatten()?;
        (0..self.members.len()).find(|index| Self::name(*index) == name)
    }

    pub(crate) fn wait_for_leader(&self, seen_by: usize, is_it: impl Fn(usize) -> bool) -> usize {
        let mut found = None;
        until("a member leads", || {
            found = self.leader(seen_by).filter(|index| is_it(*index));
            found.is_some()
        });
        found.expect("the name was found above")
    }

    /// Asks for a move. Returns whether a member accepted the order.
    pub(crate) fn ask_to_move(&self, member: usize) -> bool {
        let name = Self::name(member);
        let order = |seen_by: usize| {
            let control = self.control(seen_by);
            let order = ["ctl", "--control", &control, "group", "move", "1", &name];
            self.scratch.run(order).code == Some(0)
        };
        order(0) || order(1)
    }

    pub(crate) fn move_to(&self, member: usize) {
        assert!(self.ask_to_move(member), "the group refused the order");
        self.wait_for_leader(member, |leader| leader == member);
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.scratch.path("disk.img")
    }
}

/// The contents of a block of the file.
pub(crate) fn block(file: &Path, lba: u64) -> Vec<u8> {
    let file = std::fs::File::open(file).expect("the file opens");
    let mut block = vec![0; BLOCK];
    file.read_exact_at(&mut block, lba * BLOCK as u64).expect("the block is readable");
    block
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for index in 0..self.members.len() {
                let path = self.scratch.path(&format!("log-{index}"));
                let text = std::fs::read_to_string(path).unwrap_or_default();
                eprintln!("--- {}\n{text}", Self::name(index));
            }
        }
    }
}
