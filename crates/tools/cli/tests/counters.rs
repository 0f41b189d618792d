//! Tests of a target's counters, for programs and for Prometheus.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::Disk;
use farblock_host::disk::DiskOptions;
use support::{Scratch, until};

const NQN: &str = "nqn.2026-11.org.farblock:counted";

/// Checks metrics with the promtool of Prometheus.
fn promtool(args: &[&str], input: &str) {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut tool = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("no promtool: interop/packages.sh installs it (Debian: prometheus)");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let said = tool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{text}\n{input}");
}

#[test]
#[cfg(target_os = "linux")]
fn alert_rules_and_the_grafana_dashboard_query_existing_metrics() {
    let contrib = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../contrib/prometheus");
    promtool(&["check", "rules", &format!("{contrib}/alerts.yml")], "");
    promtool(&["test", "rules", &format!("{contrib}/alerts-test.yml")], "");
    let source = concat!(
        include_str!("../../../manage/admin/src/metrics.rs"),
        include_str!("../../../frontends/daemon/src/metrics.rs")
    );
    let dashboard = std::fs::read_to_string(format!("{contrib}/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let rules = std::fs::read_to_string(format!("{contrib}/alerts.yml")).unwrap();
    let mut asked = 0;
    for word in format!("{dashboard}{rules}").split(|it: char| !it.is_alphanumeric() && it != '_') {
        let Some(name) = word.strip_prefix("farblock_") else { continue };
        let name = ["_total", "_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        let by_whom = ["subsystem_", "namespace_", "host_", "reactor_"];
        let rest = by_whom.iter().find_map(|whose| name.strip_prefix(whose)).unwrap_or(name);
        let is_told = |name: &str| {
            let by_all = format!("\"{{whose}}_{name}\"");
            source.contains(&format!("\"{name}\"")) || source.contains(&by_all)
        };
        assert!(is_told(name) || is_told(rest) || rest == "errors", "farblock_{name} is missing");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
}

#[test]
fn prometheus_scrapes_the_counters() {
    use std::io::{Read, Write};
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "--metrics", "127.0.0.1:0", "mem:1MiB"]);
    let told = |line: &str| line.strip_prefix("counters at http://").map(str::to_owned);
    let place = server.said.lines().find_map(told).expect("the output names the address");
    let port = place.trim_end_matches("/metrics");
    // A quote in a host's name must not break the format.
    let odd = format!("{}&hostnqn=nqn.2026-11.h:%22a%5C", server.url(1));
    scratch.run(["read", &odd, "-o", "out.bin"]).ok();
    let scrape = |headers: &str| {
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        stream.write_all(format!("GET /metrics HTTP/1.0\r\n{headers}\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let url = server.url(1).parse().expect("the URL is valid");
    let disk = Disk::connect(&[url], &DiskOptions::default()).expect("the disk connects");
    let mut blocks = Blocking::new(&disk).unwrap();
    let none = format!("namespace_write_seconds_count{{nqn=\"{NQN}\",nsid=\"1\"}} 0\n");
    until("latencies are measured", || {
        blocks.write(0, &[1; 512]).unwrap();
        !scrape("").contains(&none)
    });
    assert!(scrape("Accept: application/openmetrics-text\r\n").ends_with("# EOF\n"));
    assert!(scrape("Host: localhost:80\r\n").contains("farblock_uptime_seconds"));
    // DNS rebinding: a foreign name that resolves to this address would let a web page read the
    // counters.
    assert!(scrape("Host: evil.example:80\r\n").starts_with("use this machine's address"));
    let text = scrape("");
    if cfg!(target_os = "linux") {
        promtool(&["check", "metrics"], &text);
    }
    let line = format!("farblock_subsystem_read_bytes_total{{nqn=\"{NQN}\"}} 1048576");
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("farblock_namespace_capacity_bytes"), "{text}");
    for whose in ["namespace", "subsystem", "host", "reactor"] {
        let name = format!("farblock_{whose}_read_seconds_bucket{{");
        assert!(text.contains(&name), "{name}: {text}");
    }
    assert!(text.contains("farblock_reactor_read_bytes_total{name=\"target-0\"}"), "{text}");
    assert!(text.contains("\nfarblock_ana_changes_total 0\n"), "{text}");
    assert!(text.contains(r#"{host_nqn="nqn.2026-11.h:\"a\\"}"#), "{text}");
    server.stop();
}

#[test]
fn the_management_api_reports_the_counters() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "--control", "c.sock", "mem:1MiB"]);
    let client = farblock_admin_client::Client::new(scratch.path("c.sock"));
    let stats = || {
        let answer = client.ask("GET", "/v1/stats", None, None).unwrap();
        serde_json::from_str::<farblock_admin_api::Stats>(&answer.body).unwrap()
    };
    let before = stats();
    assert_eq!((before.total.reads, before.hosts.len()), (0, 0));
    scratch.run(["read", &server.url(1), "-o", "out.bin"]).ok();
    let after = stats();
    assert!(after.uptime_ms >= before.uptime_ms);
    let subsystem = &after.subsystems[0];
    let views = [&after.total, &subsystem.io, &subsystem.namespaces[0].io, &after.hosts[0].io];
    for io in views {
        assert_eq!((io.read_bytes, io.written_bytes), (1 << 20, 0));
        // The first query switched on the measurement of latencies.
        assert_eq!(io.read_latency.counts.iter().sum::<u64>(), io.reads);
        assert!(io.read_latency.counts.len() <= after.latency_bounds_us.len() + 1);
    }
    assert!(after.connections.accepted > before.connections.accepted);
    assert!(after.errors_by_status.is_empty(), "{:?}", after.errors_by_status);
    let bad = ["ctl", "--control", "c.sock", "add-namespace", NQN, "fault:1,mem:1MiB"];
    scratch.run(bad).ok();
    scratch.run(["read", &server.url(2), "-o", "out.bin"]).fails(1, &[]);
    let status = scratch.run(["status", "--control", "c.sock", "--json"]).ok().json();
    let namespaces = &status["subsystems"][0]["namespaces"];
    assert_eq!(
        (&namespaces[0]["health"], &namespaces[0]["path"]),
        (&"ok".into(), &"mem:1MiB".into())
    );
    assert_eq!(namespaces[1]["health"], "failing", "{status}");
    let said = scratch.run(["status", "--control", "c.sock"]).ok().out();
    assert!(
        said.contains("last failure of namespace 2: ") && said.contains("Errors by status: "),
        "{said}"
    );
    let failed = stats().errors_by_status;
    assert!(failed.values().sum::<u64>() > 0, "{failed:?}");
    server.stop();
}
