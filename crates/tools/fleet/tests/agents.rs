//! Small plans with real agents that listen, and what is said when one is wrong, dead or dies.

use farblock_bench::Cancel;
use farblock_fleet::{
    Allowed, FleetError, Launcher, Listener, Place, Plan, Report, Secret, Setting, run,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

const TOKEN: &str = "0123456789abcdef";

fn secret(text: &str) -> Secret {
    Secret::new(text).expect("a token")
}

fn listener() -> SocketAddr {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let allowed = Allowed::Only(Vec::new());
    Listener::start(any, secret(TOKEN), allowed).expect("a port").address()
}

fn place(name: &str, address: SocketAddr, serves: bool) -> Place {
    Place {
        name: name.to_owned(),
        address: address.to_string(),
        token_file: "token".to_owned(),
        serves_at: serves.then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
    }
}

/// Two hosts and a target of two drives.
fn plan(target: SocketAddr) -> Plan {
    let text = "drives_per_target = 2\ndrive = \"mem:8MiB\"\nclients_per_node = 2\nramp_seconds = \
                0.1\nruntime_seconds = 0.4\nruns = 2\nalone_seconds = 0.1\n[[actions]]\nload = \
                \"randrw,bs=4k,iodepth=4,numjobs=1,rwmixread=70\"";
    let mut plan = Plan::parse("two", text).expect("a plan");
    plan.agents = vec![
        place("storage", target, true),
        place("left", listener(), false),
        place("right", listener(), false),
    ];
    plan
}

fn carry_out(plan: &Plan, token: &str) -> Result<Report, FleetError> {
    carry_out_while(plan, token, &mut |_, _| {})
}

fn carry_out_while(
    plan: &Plan,
    token: &str,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Report, FleetError> {
    let folder = tempfile::tempdir().expect("a folder");
    let setting = Setting {
        launcher: Launcher { program: "false".into(), args: Vec::new() },
        has_network: false,
        folder: folder.path().to_path_buf(),
        secrets: BTreeMap::from([("token".to_owned(), secret(token))]),
        cancel: Cancel::new(),
        progress,
    };
    run(plan, setting)
}

#[test]
fn many_hosts_are_one_report() {
    let mut plan = plan(listener());
    plan.verify_seconds = 0.3;
    let report = carry_out(&plan, TOKEN).expect("it works");
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["storage", "left", "right"]);
    let [action] = report.actions.as_slice() else { panic!("one action") };
    assert_eq!((action.clients, action.runs.len()), (4, 2));
    assert!(action.total.iops > 0.0 && action.total.reads > 0 && action.total.writes > 0);
    assert!(action.alone_iops.is_some_and(|iops| iops > 0.0));
    assert_eq!(action.cpu.len(), 3, "processor time of every agent: {:?}", action.cpu);
    let merged = action.latencies.latencies().expect("our own");
    assert_eq!(merged.count(), action.total.reads + action.total.writes, "none is lost");
    let verified = report.verified.as_ref().expect("it was asked for");
    assert!(verified.writes > 0 && verified.reads > 0, "{verified:?}");
    assert!(!report.has_errors(), "{verified:?}");

    let again = Report::from_json(&report.to_json()).expect("our own");
    assert_eq!(again, report);
    assert_eq!(Plan::parse("x", &report.to_json()).expect("its plan"), plan, "repeats the run");
    let text = farblock_fleet::text::render_within(&report, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("4k random mixed") && text.contains("blocks compared"), "{text}");
    let page = farblock_fleet::html::render(&report);
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    assert!(farblock_fleet::text::markdown(&report).contains("| 4k random mixed | 4 |"));
}

#[test]
fn a_wrong_token_is_said_with_the_agent() {
    let why = carry_out(&plan(listener()), "fedcba9876543210").expect_err("refused").to_string();
    assert_eq!(why, "storage: the token is wrong");
}

#[test]
fn a_file_that_its_owner_did_not_allow_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("precious");
    let precious = vec![b'p'; 1 << 20];
    std::fs::write(&file, &precious).expect("room");
    let mut plan = plan(listener());
    plan.drive = format!("limit:100/s,{}", file.display());
    let why = carry_out(&plan, TOKEN).expect_err("refused").to_string();
    assert!(why.starts_with("storage: this agent may not share"), "{why}");
    assert!(std::fs::read(&file).expect("it is there") == precious);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let allowed = Allowed::Only(vec![file.clone()]);
    let agent = Listener::start(any, secret(TOKEN), allowed).expect("a port");
    plan.agents[0].address = agent.address().to_string();
    (plan.drive, plan.drives_per_target) = (file.display().to_string(), 1);
    carry_out(&plan, TOKEN).expect("its owner has allowed it");
    assert!(std::fs::read(&file).expect("it is there") != precious);
}

#[test]
fn a_dead_agent_is_said() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    let why = carry_out(&plan(free), TOKEN).expect_err("nobody there").to_string();
    assert!(why.starts_with(&format!("storage: cannot be reached at {free}")), "{why}");
}

/// A cable to an agent that is cut when the load has begun.
fn cable(to: SocketAddr) -> (SocketAddr, std::sync::mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("one");
    let (cut, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (here, _) = listener.accept().expect("the controller");
        let there = TcpStream::connect(to).expect("the agent");
        for (from, into) in [(&here, &there), (&there, &here)] {
            let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut into));
        }
        let _ = wait.recv();
        let _ = here.shutdown(std::net::Shutdown::Both);
        let _ = there.shutdown(std::net::Shutdown::Both);
    });
    (address, cut)
}

#[test]
fn a_target_that_dies_under_load_is_named_and_not_its_hosts() {
    let (address, cut) = cable(listener());
    let mut plan = plan(address);
    // Longer than anybody waits: only an end that was noticed ends this.
    plan.runtime_seconds = 3600.0;
    plan.alone_seconds = 0.0;
    let mut cut = Some(cut);
    let why = carry_out_while(&plan, TOKEN, &mut |_, iops| {
        if iops > 0.0 {
            drop(cut.take());
        }
    });
    let why = why.expect_err("the target is gone").to_string();
    assert!(why.starts_with("storage: the agent closed the connection, or is gone"), "{why}");
}

#[test]
fn a_host_that_dies_under_load_is_named() {
    let (address, cut) = cable(listener());
    let mut plan = plan(listener());
    (plan.runtime_seconds, plan.alone_seconds) = (3600.0, 0.0);
    plan.agents[2].address = address.to_string();
    let mut cut = Some(cut);
    let why = carry_out_while(&plan, TOKEN, &mut |_, iops| {
        if iops > 0.0 {
            drop(cut.take());
        }
    });
    let why = why.expect_err("a host is gone").to_string();
    assert!(why.starts_with("right: the agent closed the connection"), "{why}");
}

#[test]
fn strangers_get_nothing_out_of_an_agent() {
    let address = listener();
    let said = |text: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(text).expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("that was all");
        let mut answer = Vec::new();
        // It may have been reset before everything was read.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    for text in [&b"\n"[..], b"GET / HTTP/1.1\r\n\r\n", b"{}", &[b'x'; 100_000], b""] {
        assert_eq!(said(text), "", "{text:?}");
    }
    assert!(said(b"{\"ask\":\"clock\"}\n").contains("refused"));
    // And it serves who may.
    let mut stream = TcpStream::connect(address).expect("it listens");
    let hello = format!("{{\"ask\":\"hello\",\"version\":1,\"token\":\"{TOKEN}\"}}\n");
    stream.write_all(hello.as_bytes()).expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    assert!(line.contains("\"say\":\"hello\""), "{line}");
}
