//! Three members over real etcd processes, and a disk that detects the writes of an earlier leader.
#![cfg(target_os = "linux")]

mod support;

use farblock_group_service::{
    Duty, EtcdConfig, FenceKind, GroupStatus, Phase, Reason, Service, ServiceConfig, Timing, start,
    watchdog,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::disk::{SharedDisk, TestDisks};
use support::etcd::Etcd;
use support::{proxy, wait_for};

const NAMES: [&str; 3] = ["a", "b", "c"];
const LIMIT: Duration = Duration::from_secs(30);

fn timing() -> Timing {
    Timing {
        hold: Duration::from_secs(2),
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(200),
        settle: Duration::from_secs(600),
        rank_step: Duration::from_millis(100),
        resume: Duration::from_secs(5),
        restart: Duration::from_secs(1),
    }
}

fn config(name: &str, endpoints: Vec<String>, fence: FenceKind) -> ServiceConfig {
    ServiceConfig {
        etcd: EtcdConfig { endpoints, ..EtcdConfig::default() },
        group: "gold".to_owned(),
        name: name.to_owned(),
        addresses: vec![format!("{name}.example:4420")],
        weight: 100,
        program: "1".to_owned(),
        state_folder: None,
        ana_groups: BTreeMap::from([(1, vec![fence])]),
        namespaces: BTreeMap::new(),
        watchdog: None,
        timing: timing(),
    }
}

fn member(config: ServiceConfig, disk: &SharedDisk) -> Service {
    let (name, disk) = (config.name.clone(), disk.clone());
    start(config, move |events| Box::new(TestDisks::new(&name, &disk, events)))
        .expect("the member starts")
}

fn hard_disk() -> SharedDisk {
    let disk = SharedDisk::default();
    disk.lock().is_hard = true;
    disk
}

/// The member that leads ANA group 1 and may do I/O, according to all members that see the store.
fn leader(status: &GroupStatus) -> Option<String> {
    let group = status.ana_groups.first().filter(|group| group.phase == Phase::Serving)?;
    group.leader.clone()
}

fn wait_for_leader(service: &Service) -> String {
    wait_for("leader", || leader(&service.snapshot()).is_some());
    leader(&service.snapshot()).expect("ANA group 1 has a leader")
}

fn wait_for_writes(disk: &SharedDisk, name: &str) {
    let before = disk.writes(name);
    wait_for("writes", || disk.writes(name) > before + 5);
}

fn check(disk: &SharedDisk) {
    assert_eq!(disk.lock().wrong, None);
}

#[test]
fn pins_drains_and_leaving_members_move_an_ana_group() {
    let etcd = Etcd::start(1);
    let disk = hard_disk();
    let services =
        NAMES.map(|name| member(config(name, etcd.endpoints(), FenceKind::BlockList), &disk));
    wait_for("members", || services[0].snapshot().members.len() == 3);
    let first = wait_for_leader(&services[0]);
    wait_for_writes(&disk, &first);
    let other = *NAMES.iter().find(|name| **name != first).expect("three members");
    services[1].pin(1, other).expect("the member exists");
    wait_for_writes(&disk, other);
    let error = services[1].pin(1, "z").expect_err("a pin to an unknown member");
    assert_eq!(error, "the group has no member z; its members are a, b, c");
    services[2].unpin(1).expect("an unpin succeeds");
    services[2].order(other, Duty::Drain).expect("the member exists");
    wait_for("move", || leader(&services[0].snapshot()).is_some_and(|name| name != other));
    let last = wait_for_leader(&services[0]);
    wait_for_writes(&disk, &last);
    for (name, service) in NAMES.into_iter().zip(services) {
        if name == last {
            assert!(service.leave(LIMIT), "the member hands over in time");
        } else {
            std::mem::forget(service);
        }
    }
    let next = NAMES
        .into_iter()
        .find(|name| *name != last && *name != other)
        .expect("a third member exists");
    wait_for_writes(&disk, next);
    check(&disk);
}

#[test]
fn a_leader_whose_requests_or_replies_are_lost_is_replaced() {
    for is_request in [true, false] {
        let etcd = Etcd::start(1);
        let disk = hard_disk();
        let proxies = NAMES.map(|_| proxy::start(etcd.port(0)));
        let mut number = 0;
        let services = NAMES.map(|name| {
            let endpoint = format!("http://127.0.0.1:{}", proxies[number].0);
            number += 1;
            member(config(name, vec![endpoint], FenceKind::BlockList), &disk)
        });
        wait_for("members", || services[0].snapshot().members.len() == 3);
        let first = wait_for_leader(&services[0]);
        wait_for_writes(&disk, &first);
        let lost = NAMES.iter().position(|name| *name == first).expect("a member");
        let cut = &proxies[lost].1;
        let switch = if is_request { &cut.requests } else { &cut.replies };
        switch.store(true, Ordering::Relaxed);
        let seen = (lost + 1) % 3;
        wait_for("takeover", || leader(&services[seen].snapshot()).is_some_and(|it| it != first));
        let next = wait_for_leader(&services[seen]);
        wait_for_writes(&disk, &next);
        switch.store(false, Ordering::Relaxed);
        wait_for("return", || {
            let status = services[lost].snapshot();
            status.joined && leader(&status).as_ref() == Some(&next)
        });
        check(&disk);
    }
}

#[test]
fn a_group_continues_after_members_of_etcd_die_and_return() {
    let mut etcd = Etcd::start(3);
    let disk = hard_disk();
    let services =
        NAMES.map(|name| member(config(name, etcd.endpoints(), FenceKind::BlockList), &disk));
    wait_for("members", || services.iter().all(|it| it.snapshot().members.len() == 3));
    let first = wait_for_leader(&services[0]);
    wait_for_writes(&disk, &first);
    etcd.kill(0);
    wait_for("store", || services.iter().all(|service| service.snapshot().store.reachable));
    wait_for("operator's order", || services[1].order("a", Duty::Serve).is_ok());
    etcd.kill(1);
    wait_for("lost quorum", || services.iter().all(|it| !it.snapshot().store.reachable));
    let error = services[2].order("a", Duty::Serve).expect_err("an order without a quorum");
    assert!(error.contains("no quorum") || error.contains("not joined"), "{error}");
    check(&disk);
    etcd.revive(0);
    wait_for("store", || services.iter().all(|service| service.snapshot().joined));
    wait_for("store", || services.iter().all(|service| service.snapshot().store.reachable));
    let next = wait_for_leader(&services[0]);
    wait_for_writes(&disk, &next);
    check(&disk);
}

/// Runs the watchdog in a process that [`member_process`] starts. Does nothing in other processes.
#[test]
fn watchdog_process() {
    if std::env::var_os("FARBLOCK_TEST_WATCHDOG").is_some() {
        let _ = watchdog::run();
        std::process::exit(0);
    }
}

/// Runs a member in a process that the next test starts. Does nothing in other processes.
#[test]
fn member_process() {
    let Some(endpoint) = std::env::var_os("FARBLOCK_TEST_MEMBER") else { return };
    let folder = PathBuf::from(std::env::var_os("FARBLOCK_TEST_FOLDER").expect("a folder"));
    let program = std::env::current_exe().expect("a program");
    let command = [
        "env".into(),
        "FARBLOCK_TEST_WATCHDOG=1".into(),
        program.into_os_string(),
        "watchdog_process".into(),
        "--exact".into(),
        "--nocapture".into(),
    ];
    let endpoint = endpoint.into_string().expect("text");
    let mut config = config("a", vec![endpoint], FenceKind::None { flight_ms: 100 });
    config.watchdog = Some(watchdog::spawn(&command).expect("the watchdog starts"));
    config.state_folder = Some(folder);
    let _service = member(config, &SharedDisk::default());
    loop {
        std::thread::sleep(LIMIT);
    }
}

#[test]
fn a_leader_without_a_watchdog_hands_its_group_over() {
    let etcd = Etcd::start(1);
    let endpoint = etcd.endpoints().remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let mut leader = child(&endpoint, folder.path());
    let mut settings = config("b", vec![endpoint], FenceKind::None { flight_ms: 100 });
    settings.ana_groups.clear();
    settings.weight = 0;
    let observer = member(settings, &SharedDisk::default());
    let first = || observer.snapshot().ana_groups.into_iter().next();
    wait_for("leader", || first().is_some_and(|group| group.phase == Phase::Serving));
    let all = std::fs::read_dir(format!("/proc/{}/task", leader.id())).expect("its threads");
    let watchdogs: String = all
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let number: u32 = watchdogs.trim().parse().expect("one child");
    assert!(Command::new("kill").args(["-KILL", &number.to_string()]).status().is_ok());
    wait_for("release", || first().is_some_and(|group| group.phase == Phase::Vacant));
    assert_eq!(first().and_then(|group| group.reason), Some(Reason::Leave));
    wait_for("end of the lease", || {
        observer.snapshot().members.iter().any(|member| member.name == "a" && !member.alive)
    });
    leader.kill().expect("it runs");
    let _ = leader.wait();
}

fn child(endpoint: &str, folder: &std::path::Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args(["member_process", "--exact", "--nocapture"]);
    command.env("FARBLOCK_TEST_MEMBER", endpoint).env("FARBLOCK_TEST_FOLDER", folder);
    command.stdout(Stdio::null()).spawn().expect("the member starts")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn the_watchdog_kills_a_stopped_leader_and_a_restart_keeps_the_group() {
    let etcd = Etcd::start(1);
    let endpoint = etcd.endpoints().remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = child(&endpoint, folder.path());
    let disk = SharedDisk::default();
    let mut settings = config("b", vec![endpoint.clone()], FenceKind::None { flight_ms: 100 });
    settings.ana_groups.clear();
    settings.weight = 0;
    let observer = member(settings, &disk);
    let leads = |epoch: u64| {
        let status = observer.snapshot();
        leader(&status).as_deref() == Some("a") && status.ana_groups[0].epoch == epoch
    };
    wait_for("leader", || leads(1));
    // The successor continues although the lease of the killed process still exists.
    signal(&first, "-KILL");
    let _ = first.wait();
    let mut second = child(&endpoint, folder.path());
    wait_for("restarted leader", || leads(2));
    signal(&second, "-STOP");
    use std::os::unix::process::ExitStatusExt;
    let ended = second.wait().expect("the watchdog kills the stopped leader");
    assert_eq!(ended.signal(), Some(9));
}
