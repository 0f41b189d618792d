//! Fleets of a few nodes, a second or less each.
#![cfg(unix)]

mod support;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use support::{Scratch, Server, read};

/// Two nodes, and agents that are processes.
const SMALL: &str = "\
host_nodes = 1
drives_per_target = 2
sets_per_target = 1
drive = \"mem:8MiB\"
clients_per_node = 2
ramp_seconds = 0.1
runtime_seconds = 0.5
alone_seconds = 0.1
[[actions]]
load = \"randread,bs=4k,iodepth=4,numjobs=1\"
";

fn small(scratch: &Scratch, text: &str) -> String {
    let path = scratch.text("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_small_plan_with_processes_is_a_report_that_repeats_it() {
    let scratch = Scratch::new();
    let plan = small(&scratch, SMALL);
    let files = ["a.json", "a.html", "a.md", "b.json"].map(|name| scratch.text(name));
    let [json, html, md, again] = &files;
    let run =
        ["fleet", "run", &plan, "--verify", "0.3", "--json", json, "--html", html, "--md", md];
    let table = scratch.run(run).ok().out();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("plan small date") && words.contains("0 blocks lost"), "{table}");
    let report: Value = serde_json::from_slice(&read(json)).unwrap();
    assert!(report["actions"][0]["total"]["iops"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["nodes"].as_array().unwrap().len(), 2);
    assert!(String::from_utf8(read(html)).unwrap().contains("<svg"));
    assert!(String::from_utf8(read(md)).unwrap().contains("| 4k random read | 2 |"));

    scratch.run(["fleet", "run", json, "--loopback", "--json", again]).ok();
    let repeated: Value = serde_json::from_slice(&read(again)).unwrap();
    assert_eq!(repeated["plan"], report["plan"]);
    let compared = scratch.run(["bench", "compare", json, again]).ok().out();
    assert!(compared.contains("IOPS") && compared.contains("one run"), "{compared}");
}

#[test]
fn a_target_that_is_killed_comes_back_and_nothing_is_lost() {
    let scratch = Scratch::new();
    let text = "drive = \"temporary:8MiB\"\nfaults = [\"kill\"]\n";
    let plan = small(&scratch, text);
    let report = scratch.run(["fleet", "run", &plan, "--loopback", "--json", "-"]).ok().json();
    let fault = &report["faults"][0];
    assert_eq!((&fault["fault"], &fault["failed"]), (&"kill".into(), &0.into()), "{fault}");
    assert!(report["verified"]["writes"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["verified"]["lost"], 0);
}

#[test]
fn what_a_killed_run_left_behind_is_removed_and_nothing_else() {
    let scratch = Scratch::new();
    let plan = small(&scratch, SMALL);
    let place = scratch.text("tmp");
    let of = |name: &str| std::path::Path::new(&place).join(format!("farblock-fleet-{name}"));
    for name in ["dead", "runs", "other"] {
        std::fs::create_dir_all(of(name)).unwrap();
        std::fs::write(of(name).join("drive-0-0.img"), "data").unwrap();
    }
    std::fs::rename(of("other"), scratch.text("other")).unwrap();
    std::os::unix::fs::symlink(scratch.text("other"), of("link")).unwrap();
    let runs = std::fs::File::open(of("runs")).unwrap();
    runs.lock().unwrap();
    let mut command = scratch.command(["fleet", "run", &plan, "--loopback"]);
    assert!(command.env("TMPDIR", &place).output().unwrap().status.success());
    let left = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["farblock-fleet-link", "farblock-fleet-runs"]);
    for name in ["link", "runs"] {
        assert_eq!(std::fs::read(of(name).join("drive-0-0.img")).unwrap(), b"data");
    }
}

#[test]
fn agents_want_a_token_and_stay_at_home() {
    let scratch = Scratch::new();
    let token = scratch.text("token");
    let agent = |args: &[&str]| scratch.run([&["fleet", "agent"], args].concat());
    agent(&["--listen", "127.0.0.1:0"]).fails(2, &["--token-file"]);
    agent(&[]).fails(2, &["--listen"]);
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let local = ["--listen", "127.0.0.1:0", "--token-file", token.as_str()];
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    agent(&local).fails_in_a_line(1, &["token"]);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    agent(&["--listen", "0.0.0.0:0", "--token-file", &token])
        .fails_in_a_line(2, &["unencrypted", "ssh -L"]);
    std::fs::write(&token, "short\n").unwrap();
    agent(&local).fails_in_a_line(1, &["at least 16"]);

    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let server = Server::start(scratch.command([&["fleet", "agent"], &local[..]].concat()));
    let other = scratch.text("other");
    std::fs::write(&other, "fedcba9876543210\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    let away = |file: &str| {
        let address = &server.address;
        let agent = |name: &str, more: &str| {
            let place = format!("name = \"{name}\"\naddress = \"{address}\"");
            format!("[[agents]]\n{place}\ntoken_file = \"{file}\"\n{more}")
        };
        let agents = agent("store", "serves_at = \"127.0.0.1:0\"\n") + &agent("user", "");
        small(&scratch, &SMALL.replace("[[actions]]", &format!("{agents}[[actions]]")))
    };
    scratch.run(["fleet", "run", &away(&other)]).fails(1, &["error: store: the token is wrong"]);
    let report = scratch.run(["fleet", "run", &away(&token), "--json", "-"]).ok().json();
    assert_eq!(report["nodes"][1]["name"], "user");
    assert_eq!(server.stop().code, Some(0));
}

#[test]
fn what_makes_no_sense_is_said() {
    let scratch = Scratch::new();
    let run = |text: &str| scratch.run(["fleet", "run", &small(&scratch, text)]);
    run("hosts = 3").fails_in_a_line(2, &["unknown field"]);
    run("").fails_in_a_line(2, &["does nothing"]);
    run("{}").fails_in_a_line(2, &["no report"]);
    let write = "drive = \"disk.img\"\n[[actions]]\nload = \"write\"";
    run(write).fails_in_a_line(2, &["disk.img", "--allow-writes"]);
    scratch
        .run(["fleet", "run", "no-such-plan"])
        .fails_in_a_line(2, &["no-such-plan", "six-patterns"]);
    let plans = scratch.run(["fleet", "plans"]).ok().out();
    assert!(plans.contains("hci-12") && plans.contains("failover"), "{plans}");
    let missing = "drive = \"missing.img\"\n[[actions]]\nload = \"read\"";
    run(missing).fails(1, &["error: target on node 1: ", "missing.img"]);
}

#[cfg(target_os = "linux")]
const AGAINST_ISCSI: &str = "\
drive = \"temporary:8MiB\"
iscsi = [\"farblock\", \"tgt\"]
ramp_seconds = 0.1
runtime_seconds = 0.3
runs = 2
[[actions]]
load = \"randread,bs=4k,iodepth=8,numjobs=2\"
";

/// `interop/packages.sh` installs tgt and libiscsi's programs.
#[cfg(target_os = "linux")]
#[test]
fn one_file_by_nvme_and_by_iscsi_in_turns() {
    let scratch = Scratch::new();
    let plan = small(&scratch, AGAINST_ISCSI);
    let json = scratch.text("report.json");
    let table = scratch.run(["fleet", "run", &plan, "--json", &json]).ok().out();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in ["4k random read, NVMe/TCP", "iSCSI, farblock's target", "iSCSI, tgt", "NVMe ÷ it"]
    {
        assert!(words.contains(row), "no {row} in {table}");
    }
    let report: Value = serde_json::from_slice(&read(&json)).unwrap();
    let action = &report["actions"][0];
    assert_eq!(action["runs"].as_array().unwrap().len(), 2);
    let targets = action["iscsi"].as_array().unwrap();
    assert_eq!((&targets[0]["target"], &targets[1]["target"]), (&"farblock".into(), &"tgt".into()));
    for target in targets {
        assert_eq!(target["runs"].as_array().unwrap().len(), 2);
        for figure in ["iops", "mib_per_second", "mean_latency_us", "cpu_us_per_io"] {
            assert!(target["total"][figure].as_f64().unwrap() > 0.0, "{figure}: {target}");
        }
        assert!(target["nvme_ratio"].as_f64().unwrap() > 0.0, "{target}");
    }

    let report =
        scratch.run(["fleet", "run", &json, "--without", "tgt", "--json", "-"]).ok().json();
    let targets = report["actions"][0]["iscsi"].as_array().unwrap();
    assert_eq!((targets.len(), &targets[0]["target"]), (1, &"farblock".into()), "{report}");
    assert!(report["plan"]["scaled"].to_string().contains("--without tgt"), "{report}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_compared_with_iscsi_is_said() {
    let scratch = Scratch::new();
    let run = |text: &str, more: &[&str]| {
        scratch.run([&["fleet", "run", &small(&scratch, text)], more].concat())
    };
    let both = ["--without", "tgt", "--without", "farblock"];
    run(AGAINST_ISCSI, &both).fails_in_a_line(2, &["nothing is left"]);
    run(SMALL, &["--without", "tgt"]).fails_in_a_line(2, &["compares nothing with tgt"]);
    run(AGAINST_ISCSI, &["--without", "nvme"]).fails(2, &["farblock", "tgt"]);
    let writes = AGAINST_ISCSI.replace("randread", "randwrite");
    run(&writes, &[]).fails_in_a_line(2, &["compares reads"]);
    let memory = AGAINST_ISCSI.replace("temporary:8MiB", "mem:8MiB");
    run(&memory, &[]).fails_in_a_line(2, &["one file"]);
}
