//! Runs small plans with real listening agents. Checks the errors for a wrong token, a forbidden
//! file, too little memory and an unreachable agent.

mod support;

use farblock_fleet::{Allowed, Listener, Memory, Plan, Report, message};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use support::{TOKEN, carry_out, listener, plan, secret};

#[test]
fn a_plan_on_three_agents_gives_one_report_of_all() {
    let mut plan = plan(listener());
    plan.verify_seconds = 0.3;
    let report = carry_out(&plan, TOKEN).expect("the plan runs");
    let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["storage", "left", "right"]);
    let [action] = report.actions.as_slice() else { panic!("the report has one action") };
    assert_eq!((action.clients, action.runs.len()), (4, 2));
    assert!(action.total.iops > 0.0 && action.total.reads > 0 && action.total.writes > 0);
    assert!(action.alone_iops.is_some_and(|iops| iops > 0.0));
    assert_eq!(action.cpu.len(), 3, "the report lacks an agent's processor time: {:?}", action.cpu);
    let merged = action.latencies.latencies().expect("the histogram is valid");
    assert_eq!(
        merged.count(),
        action.total.reads + action.total.writes,
        "the histogram lacks some I/Os"
    );
    let verified = report.verified.as_ref().expect("the plan verifies");
    assert!(verified.writes > 0 && verified.reads > 0, "{verified:?}");
    assert!(!report.has_errors(), "{verified:?}");

    let again = Report::from_json(&report.to_json()).expect("the report parses");
    assert_eq!(again, report);
    assert_eq!(Plan::parse("x", &report.to_json()).expect("the report has its plan"), plan);
    let text = farblock_fleet::text::render_within(&report, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("4k random mixed") && text.contains("blocks compared"), "{text}");
    // Such latencies, measured with 576 clients on two processors, need a table in ms.
    let mut slow = report.clone();
    slow.actions[0].pattern.name = "VM 2M sequential write".to_owned();
    slow.actions[0].total.mib_per_second = 119_010.5;
    let latency = &mut slow.actions[0].total.latency;
    (latency.mean_ns, latency.p50_ns) = (2_020_791_500.0, 1_611_661_300);
    (latency.p99_9_ns, latency.max_ns) = (15_414_846_500, 15_505_799_200);
    slow.actions[0].total.cpu_us_per_io = 2036.9;
    let text = farblock_fleet::text::render_within(&slow, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("15,505.8") && text.contains("latency in ms"), "{text}");
    let page = farblock_fleet::html::render(&report);
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    let tables = page.matches("<table").count();
    assert_eq!(
        page.matches(r#"tabindex="0"><table"#).count(),
        tables,
        "a table of the page is not reachable by keyboard"
    );
    assert!(farblock_fleet::text::markdown(&report).contains("| 4k random mixed | 4 |"));
}

/// A load also runs on vhost-user disks in the agent, through their rings. Afterwards, no socket
/// file is left.
#[cfg(target_os = "linux")]
#[test]
fn loads_run_on_disks_of_virtual_machines_and_on_raw_disks() {
    let mut plan = plan(listener());
    // Long enough for one request of 2 MiB on a busy machine.
    (plan.runs, plan.runtime_seconds) = (1, 2.0);
    let raw = plan.actions[0].clone();
    let large = "write,bs=2M,iodepth=2,numjobs=1".to_owned();
    let vm = |load: String| farblock_fleet::Action { load, vm: true, documents: None };
    plan.actions = vec![raw.clone(), vm(raw.load), vm(large)];
    let report = carry_out(&plan, TOKEN).expect("the plan runs");
    let named: Vec<_> = report.actions.iter().map(|action| (action.name(), action.vm)).collect();
    assert_eq!(
        named,
        [
            ("4k random mixed", false),
            ("VM 4k random mixed", true),
            ("VM 2M sequential write", true)
        ]
    );
    for action in &report.actions {
        assert!(action.total.iops > 0.0 && action.percent_of_theoretical > Some(0.0));
    }
    assert_ne!(report.subject().loads[0].setup, report.subject().loads[1].setup);
    let text = farblock_fleet::text::render_within(&report, 80);
    assert!(text.contains("vhost-user disk"), "{text}");
    let ours = format!("farblock-vm-{}-", std::process::id());
    let left = std::fs::read_dir(std::env::temp_dir()).expect("the folder can be read").flatten();
    let left = left.filter(|it| it.file_name().to_string_lossy().starts_with(&ours));
    assert_eq!(left.count(), 0, "a folder of a vhost-user socket was not removed");
}

#[test]
fn the_error_for_a_wrong_token_names_the_agent() {
    let why = carry_out(&plan(listener()), "fedcba9876543210").expect_err("refused").to_string();
    assert_eq!(why, "storage: the token is wrong");
}

#[test]
fn an_agent_does_not_open_files_that_are_not_allowed() {
    let folder = tempfile::tempdir().expect("the folder is created");
    let file = folder.path().join("precious");
    let precious = vec![b'p'; 1 << 20];
    std::fs::write(&file, &precious).expect("the folder has room");
    let mut plan = plan(listener());
    plan.drive = format!("limit:100/s,{}", file.display());
    let why = carry_out(&plan, TOKEN).expect_err("refused").to_string();
    assert!(why.starts_with("storage: this agent may not share"), "{why}");
    assert!(std::fs::read(&file).expect("the file exists") == precious);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let allowed = Allowed::Only(vec![file.clone()]);
    let memory = Memory::unlimited();
    let agent = Listener::start(any, secret(TOKEN), allowed, memory).expect("a port is free");
    plan.agents[0].address = agent.address().to_string();
    (plan.drive, plan.drives_per_target) = (file.display().to_string(), 1);
    // Long enough for one write to a disk that other programs keep busy.
    (plan.runs, plan.runtime_seconds) = (1, 4.0);
    carry_out(&plan, TOKEN).expect("the agent may share the file");
    assert!(std::fs::read(&file).expect("the file exists") != precious);
}

#[test]
fn a_plan_beyond_an_agents_memory_limit_is_refused() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let memory = Memory::limited(16 << 20);
    let agent = Listener::start(any, secret(TOKEN), Allowed::Only(Vec::new()), memory);
    let address = agent.expect("a port is free").address();
    let mut plan = plan(address);
    plan.drive = "limit:9999/s,mem:9MiB".to_owned();
    let why = carry_out(&plan, TOKEN).expect_err("two drives exceed the limit").to_string();
    assert!(why.starts_with("storage: these drives need 18 MiB"), "{why}");
    assert!(why.contains("--memory"), "{why}");
    // The limit also covers the load's buffers. After each plan the agent frees all memory, so the
    // next plan can use the whole limit.
    plan.drive = "mem:8MiB".to_owned();
    let why = carry_out(&plan, TOKEN).expect_err("the load's buffers exceed the limit").to_string();
    assert!(why.starts_with("storage: the load's buffers need"), "{why}");
    plan.alone_seconds = 0.0;
    carry_out(&plan, TOKEN).expect("the drives fit");
}

#[test]
fn the_error_names_an_unreachable_agent() {
    // Bind the port, so that no other process gets it, but do not listen.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("the socket is created");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a port is free");
    let free =
        socket.local_addr().ok().and_then(|it| it.as_socket()).expect("the socket has an address");
    let why = carry_out(&plan(free), TOKEN).expect_err("no agent listens").to_string();
    assert!(why.starts_with(&format!("storage: cannot be reached at {free}")), "{why}");
}

#[test]
fn an_agent_reveals_nothing_to_peers_without_the_token() {
    let address = listener();
    let said = |text: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("the agent listens");
        stream.write_all(text).expect("the agent reads");
        let mut answer = Vec::new();
        // Ignore errors: the agent may have reset the connection before it had read all data.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    for text in [&b"\n"[..], b"GET / HTTP/1.1\r\n\r\n", b"{}", &[b'x'; 100_000], b""] {
        assert_eq!(said(text), "", "{text:?}");
    }
    assert!(said(b"{\"ask\":\"clock\"}\n").contains("refused"));
    // The agent still serves a controller with the token.
    let mut stream = TcpStream::connect(address).expect("the agent listens");
    let version = message::VERSION;
    let hello = format!("{{\"ask\":\"hello\",\"version\":{version},\"token\":\"{TOKEN}\"}}\n");
    stream.write_all(hello.as_bytes()).expect("the agent reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("the agent answers");
    assert!(line.contains("\"say\":\"hello\""), "{line}");
}
