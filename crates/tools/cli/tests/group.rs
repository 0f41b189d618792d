//! Two targets form a group with a real etcd and share one file. A host with paths to both writes
//! while leadership moves, the leader is killed, and the leader is stopped for a while. The file
//! shows whether a write was lost or executed late.
//!
//! `cargo test -p farblock --test group -- --nocapture` prints the longest operations.
//! `GROUP_FAULTS=100` makes the last test longer.
#![cfg(target_os = "linux")]

#[path = "../../../manage/group-service/tests/support/proxy.rs"]
mod proxy;
mod support;

use farblock_block::{Namespace, Op};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Options, Url};
use farblock_reactor::{Config, Reactor};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::etcd::{Running, etcd, free};
use support::{Outcome, Scratch, signal, until};

const HOST: &str = "nqn.2014-08.org.example:group";
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
/// The number of writes in flight, each in its own part of the disk.
const DEPTH: u64 = 4;

struct Group {
    scratch: Scratch,
    _etcd: Running,
    members: Vec<Option<Running>>,
    addresses: Vec<SocketAddr>,
    /// The proxies of each member, to etcd and to the hosts.
    proxies: Vec<Proxies>,
}

/// The proxies through which a member speaks to etcd and to hosts.
struct Proxies {
    etcd: (u16, proxy::Cut),
    hosts: (u16, proxy::Cut),
}

impl Proxies {
    fn new(etcd: u16, address: SocketAddr) -> Self {
        Self { etcd: proxy::start(etcd), hosts: proxy::start(address.port()) }
    }

    /// Stops or continues all traffic, without closing a connection.
    fn silence(&self, is_silent: bool) {
        for cut in [&self.etcd.1, &self.hosts.1] {
            cut.requests.store(is_silent, Ordering::Relaxed);
            cut.replies.store(is_silent, Ordering::Relaxed);
        }
    }
}

impl Group {
    fn new(members: usize) -> Self {
        let scratch = Scratch::new();
        scratch.disk("disk.img", BLOCK as u64 * BLOCKS);
        let client = free();
        let etcd = etcd(&scratch, [client, free()]);
        let addresses: Vec<_> = (0..members).map(|_| free()).collect();
        let proxy = |address: &SocketAddr| Proxies::new(client.port(), *address);
        let proxies = addresses.iter().map(proxy).collect();
        let mut group = Self { scratch, _etcd: etcd, members: Vec::new(), addresses, proxies };
        for index in 0..members {
            group.members.push(None);
            group.start(index);
        }
        group
    }

    fn name(index: usize) -> String {
        format!("m{index}")
    }

    fn control(&self, index: usize) -> String {
        self.scratch.text(&format!("control-{index}"))
    }

    /// Starts a member, and waits until it serves hosts.
    fn start(&mut self, index: usize) {
        let address = self.addresses[index].to_string();
        let name = Self::name(index);
        let proxies = &self.proxies[index];
        let etcd = format!("http://127.0.0.1:{}", proxies.etcd.0);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.path(&format!("log-{index}")))
            .expect("the log file opens");
        let mut command = self.scratch.command(["serve", "disk.img", "--block-size", "4096"]);
        command.args(["--group", "gold", "--etcd", &etcd, "--member", &name]);
        command.args(["--advertise", &format!("127.0.0.1:{}", proxies.hosts.0)]);
        command.args(["--listen", &address, "--control", &self.control(index)]);
        command.args(["--state-dir", &self.scratch.text(&format!("state-{index}"))]);
        command.args(["--disk-flight", "500ms", "-v"]);
        command.stdout(Stdio::null()).stderr(log);
        self.members[index] = Some(Running(command.spawn().expect("the process starts")));
        until("the member listens", || std::net::TcpStream::connect(&address).is_ok());
    }

    fn pid(&self, index: usize) -> u32 {
        self.members[index].as_ref().expect("the process runs").0.id()
    }

    fn ask(&self, index: usize) -> Outcome {
        let control = self.control(index);
        self.scratch.run(["ctl", "--control", &control, "group", "--json"])
    }

    /// The group as a member sees it.
    fn seen_by(&self, index: usize) -> serde_json::Value {
        self.ask(index).ok().json()
    }

    /// The leader as a member sees it. `None`: there is no leader, or the member's control socket
    /// does not answer yet.
    fn leader(&self, seen_by: usize) -> Option<usize> {
        let outcome = self.ask(seen_by);
        if outcome.code != Some(0) {
            return None;
        }
        let seen = outcome.json();
        let group = &seen["ana_groups"][0];
        let name = (group["phase"] == "serving").then(|| group["leader"].as_str()).flatten()?;
        (0..self.members.len()).find(|index| Self::name(*index) == name)
    }

    fn wait_for_leader(&self, seen_by: usize, is_it: impl Fn(usize) -> bool) -> usize {
        let mut found = None;
        until("a member leads", || {
            found = self.leader(seen_by).filter(|index| is_it(*index));
            found.is_some()
        });
        found.expect("the name was found above")
    }

    fn incarnations(&self, seen_by: usize) -> Vec<u64> {
        let seen = self.seen_by(seen_by);
        let all = seen["members"].as_array().expect("the JSON contains the list").iter();
        all.map(|member| member["incarnation"].as_u64().expect("the JSON contains the number"))
            .collect()
    }

    /// Starts a rolling upgrade through this member.
    fn upgrade(&self, through: usize) -> Child {
        let control = self.control(through);
        let mut command = self.scratch.command(["ctl", "--control", &control, "group", "upgrade"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the process starts")
    }

    /// Restarts members that exit with code 75, as systemd does, until the upgrade ends.
    fn restart_those_that_end(&mut self, upgrade: &Child) {
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", upgrade.id()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        while is_running() {
            for index in 0..self.members.len() {
                let member = self.members[index].as_mut().expect("the process runs");
                if let Some(status) = member.0.try_wait().expect("the process can be waited for") {
                    assert_eq!(status.code(), Some(75), "m{index} exited");
                    self.start(index);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn urls(&self) -> Vec<Url> {
        let nqn = self.nqn();
        let url = |its: &Proxies| {
            let port = its.hosts.0;
            format!("nvme+tcp://127.0.0.1:{port}/{nqn}?ns=1").parse().expect("the URL is valid")
        };
        self.proxies.iter().map(url).collect()
    }

    fn nqn(&self) -> String {
        let status = self.scratch.run(["status", "--control", &self.control(0), "--json"]);
        let status = status.ok().json();
        status["subsystems"][0]["nqn"].as_str().expect("the JSON contains the name").to_owned()
    }

    fn logs(&self) {
        for index in 0..self.members.len() {
            let path = self.scratch.path(&format!("log-{index}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            eprintln!("--- {}\n{text}", Self::name(index));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.logs();
        }
    }
}

/// The results of a [`Writer`].
struct Written {
    /// The last acknowledged number of each block.
    confirmed: Vec<u64>,
    writes: u64,
    longest: Duration,
}

/// Writes increasing numbers to all blocks, with one write in flight in each part of the disk.
struct Writer {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Written>,
}

impl Writer {
    fn start(urls: Vec<Url>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = std::thread::spawn(move || write(&urls, &until));
        Self { ends, thread }
    }

    fn stop(self) -> Written {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("every write succeeds")
    }
}

fn connect(urls: &[Url]) -> Disk {
    let connection = Options { hostnqn: Some(HOST.to_owned()), ..Options::default() };
    let options = DiskOptions {
        connection,
        reconnect_delay: Duration::from_millis(500),
        ctrl_loss_timeout: None,
        ..DiskOptions::default()
    };
    Disk::connect(urls, &options).expect("the disk connects")
}

fn write(urls: &[Url], ends: &AtomicBool) -> Written {
    let disk = connect(urls);
    let reactor = Reactor::new(&Config::default()).expect("the reactor starts");
    let task = reactor.add_task();
    let mut queue = disk.open(&reactor, task).expect("the queue opens");
    let mut written =
        Written { confirmed: vec![0; BLOCKS as usize], writes: 0, longest: Duration::ZERO };
    let mut under_way = vec![None; DEPTH as usize];
    let (mut done, mut ready, mut number) = (Vec::new(), Vec::new(), 0);
    while !ends.load(Ordering::Relaxed) || under_way.iter().any(Option::is_some) {
        for (part, slot) in under_way.iter_mut().enumerate() {
            if slot.is_none() && !ends.load(Ordering::Relaxed) {
                number += 1;
                let lba = number / DEPTH % (BLOCKS / DEPTH) * DEPTH + part as u64;
                let mut buffer = reactor.buffers().take(BLOCK);
                buffer.chunks_exact_mut(8).for_each(|it| it.copy_from_slice(&number.to_le_bytes()));
                queue.submit(Op::write(lba, 1, buffer, part as u64));
                *slot = Some((lba, number, Instant::now()));
            }
        }
        queue.poll(&mut done);
        for completion in done.drain(..) {
            let slot = under_way[completion.token as usize].take();
            let (lba, number, since) = slot.expect("the slot has a write");
            assert_eq!(completion.result, Ok(()), "a write failed");
            written.confirmed[lba as usize] = number;
            written.writes += 1;
            written.longest = written.longest.max(since.elapsed());
        }
        reactor.poll(Some(Duration::from_millis(5)), &mut ready).expect("the loop continues");
    }
    written
}

/// Checks that every block of the file has the last acknowledged number.
fn verify(group: &Group, written: &Written, what: &str) {
    let file = std::fs::File::open(group.scratch.path("disk.img")).expect("the file opens");
    let mut block = vec![0; BLOCK];
    for (lba, confirmed) in (0..).zip(&written.confirmed) {
        file.read_exact_at(&mut block, lba * BLOCK as u64).expect("the block is readable");
        let mut numbers = block.chunks_exact(8);
        let is_it = numbers.all(|number| number == confirmed.to_le_bytes());
        let found =
            u64::from_le_bytes(block[..8].try_into().expect("the slice has the right length"));
        assert!(is_it, "{what}: block {lba} has {found}, and {confirmed} was confirmed last");
    }
    eprintln!("{what}: {} writes, the longest took {:?}", written.writes, written.longest);
}

#[test]
fn a_planned_move_loses_no_write() {
    let group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    let mut from = leader;
    for _ in 0..3 {
        let to = 1 - from;
        let (control, name) = (group.control(0), Group::name(to));
        group.scratch.run(["ctl", "--control", &control, "group", "move", "1", &name]).ok();
        from = group.wait_for_leader(0, |index| index == to);
        std::thread::sleep(Duration::from_secs(1));
    }
    verify(&group, &writer.stop(), "planned move");
}

#[test]
fn a_killed_leader_loses_no_write() {
    let mut group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    group.members[leader] = None;
    group.wait_for_leader(1 - leader, |index| index == 1 - leader);
    std::thread::sleep(Duration::from_secs(2));
    group.start(leader);
    std::thread::sleep(Duration::from_secs(2));
    verify(&group, &writer.stop(), "kill -9 of the leader");
}

#[test]
fn a_quick_restart_of_the_leader_causes_no_failover() {
    let mut group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    group.members[leader] = None;
    group.start(leader);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(group.leader(1 - leader), Some(leader));
    verify(&group, &writer.stop(), "kill -9 and restart of the leader");
}

#[test]
fn a_stopped_leader_writes_nothing_late() {
    let group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    signal(group.pid(leader), "STOP");
    group.wait_for_leader(1 - leader, |index| index == 1 - leader);
    std::thread::sleep(Duration::from_secs(3));
    signal(group.pid(leader), "CONT");
    std::thread::sleep(Duration::from_secs(1));
    let written = writer.stop();
    std::thread::sleep(Duration::from_secs(2));
    verify(&group, &written, "SIGSTOP and SIGCONT of the leader");
}

/// Both members run on one machine, so the lock of the silent leader keeps the next leader from
/// opening the disk. The longest operation therefore also contains the time until the silence ends.
#[test]
fn a_silent_leader_writes_nothing_late() {
    let group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    group.proxies[leader].silence(true);
    group.wait_for_leader(1 - leader, |index| index == 1 - leader);
    std::thread::sleep(Duration::from_secs(3));
    group.proxies[leader].silence(false);
    std::thread::sleep(Duration::from_secs(2));
    verify(&group, &writer.stop(), "silence and return of the leader's machine");
}

#[test]
fn a_member_that_is_terminated_hands_over_first() {
    let mut group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    signal(group.pid(leader), "TERM");
    let mut member = group.members[leader].take().expect("the process runs");
    assert!(member.0.wait().expect("the member exits").success());
    group.wait_for_leader(1 - leader, |index| index == 1 - leader);
    std::thread::sleep(Duration::from_secs(1));
    verify(&group, &writer.stop(), "SIGTERM of the leader");
}

/// A temporary fault of one member.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Silence,
}

impl Group {
    fn begin(&mut self, fault: Fault, index: usize) {
        match fault {
            Fault::Kill => self.members[index] = None,
            Fault::Stop => signal(self.pid(index), "STOP"),
            Fault::Silence => self.proxies[index].silence(true),
        }
    }

    /// Ends a fault. Starts members again that their watchdogs killed.
    fn end(&mut self, fault: Fault, index: usize) {
        match fault {
            Fault::Kill => self.start(index),
            Fault::Stop => signal(self.pid(index), "CONT"),
            Fault::Silence => self.proxies[index].silence(false),
        }
        self.restart_ended();
    }

    fn restart_ended(&mut self) {
        for index in 0..self.members.len() {
            let member = self.members[index].as_mut();
            let ended =
                member.map(|it| it.0.try_wait().expect("the process can be waited for").is_some());
            if ended == Some(true) {
                self.start(index);
            }
        }
    }
}

#[test]
fn two_faults_at_a_time_lose_no_write() {
    let count = std::env::var("GROUP_FAULTS").ok().and_then(|it| it.parse().ok()).unwrap_or(4_u64);
    let mut group = Group::new(3);
    group.wait_for_leader(0, |_| true);
    let writer = Writer::start(group.urls());
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    for round in 0..count {
        let kind = |number| match number {
            0 => Fault::Kill,
            1 => Fault::Stop,
            _ => Fault::Silence,
        };
        let (first, second) = (kind(below(3)), kind(below(3)));
        let member = below(3) as usize;
        let other = (member + 1 + below(2) as usize) % 3;
        eprintln!("fault {round}: {first:?} of {member}, {second:?} of {other}");
        group.begin(first, member);
        std::thread::sleep(Duration::from_millis(below(1_500)));
        group.begin(second, other);
        std::thread::sleep(Duration::from_millis(below(5_000)));
        group.end(first, member);
        std::thread::sleep(Duration::from_millis(below(1_500)));
        group.end(second, other);
        std::thread::sleep(Duration::from_millis(below(4_000)));
    }
    std::thread::sleep(Duration::from_secs(3));
    group.restart_ended();
    group.wait_for_leader(0, |_| true);
    std::thread::sleep(Duration::from_secs(2));
    verify(&group, &writer.stop(), "two faults at a time");
}

#[test]
fn a_rolling_upgrade_restarts_every_member_without_an_error_at_the_host() {
    let mut group = Group::new(3);
    group.wait_for_leader(0, |_| true);
    let before: Vec<u64> = group.incarnations(0);
    let writer = Writer::start(group.urls());
    std::thread::sleep(Duration::from_secs(2));
    let upgrade = group.upgrade(0);
    group.restart_those_that_end(&upgrade);
    let output = support::wait(upgrade);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{text}");
    assert!(text.contains("all members have restarted"), "{text}");
    let after = group.incarnations(0);
    assert!(
        before.iter().zip(&after).all(|(before, after)| before < after),
        "{before:?} {after:?}"
    );
    let seen = group.seen_by(1);
    assert!(seen["upgrade"].is_null(), "{seen:#}");
    for member in seen["members"].as_array().expect("the JSON contains the list") {
        assert_eq!(member["duty"], "serve", "{seen:#}");
        assert_eq!(member["hosts"][0], HOST, "{seen:#}");
    }
    verify(&group, &writer.stop(), "rolling upgrade");
}

#[test]
fn an_upgrade_that_failed_names_the_reason_and_continues_later() {
    let mut group = Group::new(2);
    let leader = group.wait_for_leader(0, |_| true);
    let other = 1 - leader;
    let (control, from) = (group.control(leader), Group::name(other));
    let upgrade = ["ctl", "--control", &control, "group", "upgrade", "--wait", "2"];
    // No service manager restarts the first member.
    group.scratch.run(upgrade).fails_in_a_line(
        1,
        &["stopped at", &from, "has not started again", "group upgrade again", "--cancel"],
    );
    let mut ended = group.members[other].take().expect("the process ran");
    assert_eq!(ended.0.wait().expect("the process exited").code(), Some(75));
    group
        .scratch
        .run(["ctl", "--control", &control, "group", "forget", &Group::name(leader)])
        .fails_in_a_line(1, &["is alive: stop it first"]);
    group.start(other);
    let upgrade = group.upgrade(leader);
    group.restart_those_that_end(&upgrade);
    let output = support::wait(upgrade);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 of 2 members to restart"), "{text}");
}

#[test]
fn a_dead_member_is_forgotten_with_its_controller_identifiers() {
    let mut group = Group::new(2);
    group.wait_for_leader(0, |_| true);
    let control = group.control(0);
    let forget = ["ctl", "--control", &control, "group", "forget", "m1"];
    group.scratch.run(forget).fails_in_a_line(1, &["m1 is alive: stop it first"]);
    let mut member = group.members[1].take().expect("the process runs");
    signal(member.0.id(), "TERM");
    assert!(member.0.wait().expect("the member exits").success());
    until("m1 has left", || group.seen_by(0)["members"][1]["alive"] == false);
    group.scratch.run(forget).ok();
    let seen = group.seen_by(0);
    assert_eq!(seen["members"].as_array().map(Vec::len), Some(1), "{seen:#}");
    group.scratch.run(forget).fails_in_a_line(1, &["no member m1"]);
    group.start(1);
    until("m1 has joined again", || group.seen_by(0)["members"][1]["alive"] == true);
}
