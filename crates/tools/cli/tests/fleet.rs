//! Tests of fleets of a few nodes, each running for at most about a second.
#![cfg(unix)]

mod support;

use farblock_fleet::Plan;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use support::{Scratch, Server, read};

/// A plan with two nodes, whose agents are processes.
const SMALL: &str = "\
host_nodes = 1
drives_per_target = 2
sets_per_target = 1
drive = \"mem:8MiB\"
clients_per_node = 2
ramp_seconds = 0.1
runtime_seconds = 0.5
alone_seconds = 0.4
[[actions]]
load = \"randread,bs=4k,iodepth=4,numjobs=1\"
";

fn small(scratch: &Scratch, text: &str) -> String {
    let path = scratch.text("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_small_plan_gives_a_report_that_repeats_the_plan() {
    let scratch = Scratch::new();
    let plan = small(&scratch, SMALL);
    let files = ["a.json", "a.html", "a.md", "b.json"].map(|name| scratch.text(name));
    let [json, html, md, again] = &files;
    let run =
        ["fleet", "run", &plan, "--verify", "0.3", "--json", json, "--html", html, "--md", md];
    let told = scratch.run(run).ok();
    let table = told.out();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let steps = ["starting 2 nodes", "4k random read (1 of 1)", "verifying", "reading all data"];
    let said = &told.stderr;
    let said: Vec<&str> = said.lines().skip_while(|line| !line.starts_with(steps[0])).collect();
    assert_eq!(said.len(), steps.len(), "a line for each step: {said:#?}");
    assert!(said.iter().zip(steps).all(|(line, step)| line.starts_with(step)), "{said:#?}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("plan small date") && words.contains("0 blocks lost"), "{table}");
    let report: Value = serde_json::from_slice(&read(json)).unwrap();
    assert!(report["actions"][0]["total"]["iops"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["nodes"].as_array().unwrap().len(), 2);
    let [html, md] = [html, md].map(|file| String::from_utf8(read(file)).unwrap());
    assert!(html.contains("<svg") && md.contains("| 4k random read | 2 |"), "{md}");
    let row = md.lines().find(|line| line.starts_with("| 4k random read")).unwrap();
    for figure in row.split('|').map(str::trim).filter(|cell| !cell.is_empty()) {
        assert!(html.contains(&format!(">{figure}</td>")), "{figure} is not in both: {row}");
    }
    assert!(![&table, &html, &md].iter().any(|text| text.contains("NaN")));

    scratch.run(["fleet", "run", json, "--loopback", "--json", again]).ok();
    let repeated: Value = serde_json::from_slice(&read(again)).unwrap();
    assert_eq!(repeated["plan"], report["plan"]);
    let compared = scratch.run(["bench", "compare", json, again]).ok().out();
    assert!(compared.contains("IOPS") && compared.contains("one run"), "{compared}");
}

#[test]
fn a_killed_target_restarts_and_no_data_is_lost() {
    let scratch = Scratch::new();
    let text = "drive = \"temporary:8MiB\"\nfaults = [\"kill\"]\n";
    let plan = small(&scratch, text);
    let report = scratch.run(["fleet", "run", &plan, "--loopback", "--json", "-"]).ok().json();
    let fault = &report["faults"][0];
    assert_eq!((&fault["fault"], &fault["failed"]), (&"kill".into(), &0.into()), "{fault}");
    assert!(report["verified"]["writes"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["verified"]["lost"], 0);
}

/// Uses network namespaces, which only root may create.
#[cfg(target_os = "linux")]
#[test]
fn a_disconnected_or_slow_target_delays_its_hosts_and_loses_no_data() {
    if !support::is_root() {
        return eprintln!("skipped: only root may make network namespaces");
    }
    let scratch = Scratch::new();
    // Sixteen writers share the slow network, so each 4 KiB write waits for the others.
    let text = "drive = \"temporary:8MiB\"\nwriters = 16\nfaults = [\"cut\", \"slow\"]\n\
                fault_seconds = 2.0\n";
    let plan = small(&scratch, text);
    let report = scratch.run(["fleet", "run", &plan, "--json", "-"]).ok().json();
    let faults = report["faults"].as_array().unwrap();
    let names: Vec<_> = faults.iter().map(|fault| fault["fault"].as_str().unwrap()).collect();
    assert_eq!(names, ["cut", "slow"]);
    assert!(faults.iter().all(|fault| fault["failed"] == 0 && fault["lost"] == 0), "{report}");
    let pause = |fault: usize| faults[fault]["pause_seconds"].as_f64().unwrap();
    // The pause has a minimum: the only path was cut for two seconds.
    assert!(pause(0) >= 1.5, "no host was disconnected: {report}");
    assert!(pause(1) >= 0.02, "no I/O was slow: {report}");
    assert_eq!(report["verified"]["lost"], 0);
}

/// Runs the quickest built-in plan.
#[test]
fn a_built_in_plan_runs() {
    let scratch = Scratch::new();
    // Even a busy machine completes some I/O in a second.
    let short = ["--runtime", "1", "--runs", "1", "--without", "tgt", "--json", "-"];
    let arguments = ["fleet", "run", "nvme-vs-iscsi"].into_iter().chain(short);
    let report = scratch.run(arguments.collect::<Vec<_>>()).ok().json();
    let actions = report["actions"].as_array().unwrap();
    assert_eq!(actions.len(), 4, "{report}");
    for action in actions {
        assert!(action["total"]["iops"].as_f64().unwrap() > 0.0, "{action}");
        assert_eq!(action["iscsi"].as_array().unwrap().len(), 1, "{action}");
    }
}

/// Runs the plan unchanged, except for its times and drive sizes. Without root, the plan keeps only
/// the fault that needs no network namespaces.
#[test]
fn the_failover_plan_loses_no_data() {
    let scratch = Scratch::new();
    let plan = Plan::named("failover", 2).expect("the plan is built in");
    let is_root = support::is_root();
    let mut faults: Vec<_> = plan.faults.iter().map(|fault| fault.name()).collect();
    if !is_root {
        faults.retain(|fault| *fault == "kill");
    }
    let Plan { storage_nodes, host_nodes, paths, drives_per_target, .. } = plan;
    let Plan { clients_per_node, writers, .. } = plan;
    let text = format!(
        "storage_nodes = {storage_nodes}\nhost_nodes = {host_nodes}\npaths = {paths}\n\
         drives_per_target = {drives_per_target}\nclients_per_node = {clients_per_node}\n\
         writers = {writers}\nfaults = {faults:?}\nfault_seconds = 1.0\nverify_seconds = 0.3\n\
         drive = \"temporary:8MiB\"\n"
    );
    let file = small(&scratch, &text);
    let count = storage_nodes as usize * faults.len();
    let loopback = ["--loopback"].into_iter().take(usize::from(!is_root));
    let run = ["fleet", "run", &file, "--json", "-"].into_iter().chain(loopback);
    let report = scratch.run(run.collect::<Vec<_>>()).ok().json();
    let faults = report["faults"].as_array().unwrap();
    assert_eq!(faults.len(), count, "not one fault for each target and kind: {report}");
    assert!(faults.iter().all(|fault| fault["failed"] == 0 && fault["lost"] == 0), "{report}");
    assert!(report["verified"]["writes"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["verified"]["lost"], 0);
}

/// Returns the child processes of a process, oldest first.
#[cfg(target_os = "linux")]
fn children(of: u32) -> Vec<u32> {
    let list = format!("/proc/{of}/task/{of}/children");
    let list = std::fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_agent_ends_the_run_and_is_named() {
    use std::process::Stdio;
    for (place, name) in ["target on node 1", "hosts on node 2"].into_iter().enumerate() {
        let scratch = Scratch::new();
        // The action lasts so long that it ends only with the process.
        let plan = small(&scratch, &SMALL.replace("_seconds = 0.5", "_seconds = 3600"));
        let mut command = scratch.command(["-q", "fleet", "run", &plan, "--loopback"]);
        let run = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        support::until("both agents run", || children(run.id()).len() == 2);
        let agents = children(run.id());
        let agent = rustix::process::Pid::from_raw(agents[place] as i32).unwrap();
        rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
        let output = run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("error: {name}: the agent has exited")), "{said}");
    }
}

/// Returns the processes with this environment variable and their names, without this process.
#[cfg(target_os = "linux")]
fn with(variable: &str) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|it| it.file_name().to_string_lossy().parse().ok());
    let found = ids.filter_map(|id: u32| {
        let of = |what: &str| std::fs::read(format!("/proc/{id}/{what}")).ok();
        let has_it = of("environ")?.split(|&byte| byte == 0).any(|it| it == variable.as_bytes());
        let stat = String::from_utf8_lossy(&of("stat")?).into_owned();
        let is_dead = stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"));
        let words = String::from_utf8_lossy(&of("cmdline")?).replace('\0', " ");
        (has_it && !is_dead && id != std::process::id()).then_some((id, words))
    });
    let mut found: Vec<_> = found.collect();
    found.sort();
    found
}

/// Suspends the agent as `kill -STOP` does. The agent keeps its connections, but sends nothing.
#[cfg(target_os = "linux")]
#[test]
fn a_suspended_agent_is_named_and_killed_and_ends_the_run() {
    use farblock_fleet::{Board, FleetTimeouts, Launcher, Plan, Setting};
    use std::time::Duration;
    for (place, name) in ["target on node 1", "hosts on node 2"].into_iter().enumerate() {
        let scratch = Scratch::new();
        let folder = std::path::PathBuf::from(scratch.text("fleet"));
        std::fs::create_dir(&folder).unwrap();
        let plan = SMALL.replace("_seconds = 0.5", "_seconds = 3600");
        let plan = Plan::parse("small", &plan).unwrap();
        let ours = format!("TMPDIR={}", folder.display());
        let second = Duration::from_secs(1);
        let mut stopped = false;
        let setting = Setting {
            launcher: Launcher {
                program: env!("CARGO_BIN_EXE_farblock").into(),
                args: ["-q", "fleet", "agent", "--stdio"].map(Into::into).to_vec(),
            },
            has_network: false,
            folder,
            guests: None,
            secrets: std::collections::BTreeMap::new(),
            patience: FleetTimeouts {
                word: 4 * second,
                silence: 4 * second,
                end: second,
                ..FleetTimeouts::default()
            },
            cancel: farblock_bench::Cancel::new(),
            board: Board::default(),
            progress: &mut |step| {
                if step.iops > 0.0 && !stopped {
                    support::signal(with(&ours)[place].0, "STOP");
                    stopped = true;
                }
            },
        };
        let why = farblock_fleet::run(&plan, setting)
            .expect_err("the run succeeded with a suspended agent")
            .to_string();
        assert!(why.starts_with(&format!("{name}: it has not answered for 4 s")), "{why}");
        assert_eq!(with(&ours), [], "processes are left");
    }
}

/// Suspends the controller and then kills it. Its agents and their nodes must exit.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_fleet_controller_leaves_no_processes() {
    use std::process::Stdio;
    for network in [&["--loopback"][..], &[]] {
        let scratch = Scratch::new();
        let plan = small(&scratch, &SMALL.replace("_seconds = 0.5", "_seconds = 3600"));
        let mut command = scratch.command([&["-q", "fleet", "run", &plan], network].concat());
        let mark = format!("FLEET_TEST={}", scratch.text("mark"));
        command.env("FLEET_TEST", scratch.text("mark"));
        let mut run = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let agents = || with(&mark).iter().filter(|it| it.1.contains("agent --stdio")).count();
        support::until("both agents run", || agents() == 2);
        support::signal(run.id(), "STOP");
        support::signal(run.id(), "KILL");
        run.wait().unwrap();
        support::until("agents and nodes have exited", || with(&mark).is_empty());
    }
}

#[test]
fn clients_with_two_paths_continue_on_the_other_path() {
    let scratch = Scratch::new();
    let text = "storage_nodes = 2\npaths = 2\nclients_per_node = 2\ndrive = \"temporary:8MiB\"\n\
                faults = [\"kill\"]\n";
    let plan = small(&scratch, text);
    let report = scratch.run(["fleet", "run", &plan, "--loopback", "--json", "-"]).ok().json();
    let faults = report["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 2, "each target has one fault: {report}");
    assert!(faults.iter().all(|fault| fault["failed"] == 0 && fault["lost"] == 0), "{report}");
    assert!(report["verified"]["writes"].as_u64().unwrap() > 0, "{report}");
    let nodes: Vec<_> = report["nodes"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    let names = ["drives on node 4", "target on node 1", "target on node 2", "hosts on node 3"];
    assert_eq!(nodes, names);
}

#[test]
fn a_run_removes_only_the_files_of_a_killed_run() {
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
fn an_agent_requires_a_token_and_a_loopback_address() {
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

/// A fake QEMU. It prints what QEMU would print, but runs no guest. interop/linux/fleet.sh uses a
/// real QEMU.
#[cfg(target_os = "linux")]
const QEMU: &str = r#"#!/bin/sh
case "$*" in *"accel kvm"*) echo "no KVM here" >&2; exit 1 ;; esac
[ ! -e "$0.fails" ] || { echo "no such machine" >&2; exit 1; }
echo "a word of the firmware's"
echo "READY 8388608 6.12-of-nobody"
io='"total_ios":50,"iops":25.0,"runtime":2000,"clat_ns":{"bins":{"1000":50}}'
while read -r order rest; do
    case $order in run) word=MEASURED ;; *) word=VERIFIED ;; esac
    echo "$word {\"jobs\":[{\"error\":0,\"read\":{$io},\"write\":{$io}}]}"
done
"#;

#[cfg(target_os = "linux")]
#[test]
fn guests_have_their_own_rows_and_missing_tools_are_reported() {
    let scratch = Scratch::new();
    let vms = format!("{SMALL}vm = true\n");
    let (plan, tools) = (small(&scratch, &vms), scratch.path("tools"));
    let fleet = |more: &[&str]| {
        let run = ["fleet", "run", &plan, "--loopback", "--guests", "2"];
        let mut run = scratch.command([&run, more].concat());
        run.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
        run.env("FARBLOCK_VM_DIR", scratch.text("none"));
        support::finish(run, b"")
    };
    if !std::path::Path::new("/usr/bin/qemu-system-x86_64").exists() {
        fleet(&[]).fails_in_a_line(2, &["qemu-system-x86", "omit --guests"]);
    }
    std::fs::create_dir(&tools).unwrap();
    let qemu = tools.join("qemu-system-x86_64");
    std::fs::write(&qemu, QEMU).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    fleet(&[]).fails_in_a_line(2, &["interop/linux/setup.sh", "--guest-kernel"]);
    let [kernel, image] = ["kernel", "image"].map(|name| scratch.file(name, b"x"));
    fleet(&["--guest-kernel", &kernel, "--guest-image", "/nosuch"])
        .fails_in_a_line(2, &["needs /nosuch"]);
    let files = ["--guest-kernel", &kernel, "--guest-image", &image];
    let report = fleet(&[&files[..], &["--json", "-"]].concat()).ok().json();
    let rows = report["actions"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|it| (&it["pattern"]["name"], &it["clients"])).collect();
    let (vm, guest) = ("VM 4k random read".into(), "guest 4k random read".into());
    assert_eq!(rows, [(&vm, &2.into()), (&guest, &2.into())]);
    let total = &report["actions"][1]["total"];
    assert_eq!((&total["iops"], &total["reads"]), (&100.0.into(), &100.into()), "{total}");
    assert_eq!(report["guests"]["run_as"], "emulated");
    assert_eq!(
        (&report["guests"]["compared"], &report["guests"]["count"]),
        (&100.into(), &2.into())
    );
    let table = fleet(&files).ok().out();
    assert!(table.contains("guest 4k random read") && table.contains("6.12-of-nobody"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");

    std::fs::write(tools.join("qemu-system-x86_64.fails"), "").unwrap();
    // Both guests exit at once, and the controller may notice either first.
    fleet(&files).fails(1, &["error: guest ", ": QEMU has exited: no such machine"]);
    let run = |plan: &str, count: &str| scratch.run(["fleet", "run", plan, "--guests", count]);
    run(&small(&scratch, SMALL), "1").fails_in_a_line(2, &["vm = true"]);
    run(&plan, "65").fails(2, &["64"]);
}

#[test]
fn fleet_run_refuses_invalid_plans() {
    let scratch = Scratch::new();
    let run = |text: &str| scratch.run(["fleet", "run", &small(&scratch, text)]);
    run("hosts = 3").fails_in_a_line(2, &["unknown field"]);
    let more = |line: &str| format!("{line}\n{SMALL}");
    run(&more("mixes = [101]")).fails_in_a_line(2, &["from 0 to 100"]);
    let endless = SMALL.replace("mem:8MiB", "temporary:8EiB");
    run(&endless).fails(2, &["temporary:8EiB is not a valid size"]);
    run("").fails_in_a_line(2, &["does nothing"]);
    run("{}").fails_in_a_line(2, &["not a valid report"]);
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
runtime_seconds = 1.0
runs = 2
[[actions]]
load = \"randread,bs=4k,iodepth=8,numjobs=2\"
";

/// Needs tgt, which `interop/packages.sh` installs.
#[cfg(target_os = "linux")]
#[test]
fn a_plan_compares_nvme_and_iscsi_on_the_same_file() {
    let scratch = Scratch::new();
    let mixed = AGAINST_ISCSI.replace("[[actions]]", "mixes = [50]\n[[actions]]");
    let plan = small(&scratch, &mixed.replace("randread", "randrw"));
    let [json, html] = ["report.json", "report.html"].map(|name| scratch.text(name));
    let table = scratch.run(["fleet", "run", &plan, "--json", &json, "--html", &html]).ok().out();
    let page = String::from_utf8(read(&html)).unwrap();
    assert!(page.contains("<li><i class=\"target\"></i>iSCSI, tgt</li>"), "no bars of tgt");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in ["4k random 50/50, NVMe/TCP", "iSCSI, farblock's target", "iSCSI, tgt", "NVMe ÷ it"]
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
        for figure in
            ["iops", "mib_per_second", "mean_latency_us", "p99_latency_us", "cpu_us_per_io"]
        {
            assert!(target["total"][figure].as_f64().unwrap() > 0.0, "{figure}: {target}");
        }
        assert!(target["nvme_ratio"].as_f64().unwrap() > 0.0, "{target}");
    }

    let compared = scratch.run(["bench", "compare", &json, &json]).ok().out();
    assert!(compared.contains("iSCSI, tgt"), "rows without a verdict: {compared}");
    let report =
        scratch.run(["fleet", "run", &json, "--without", "tgt", "--json", "-"]).ok().json();
    let targets = report["actions"][0]["iscsi"].as_array().unwrap();
    assert_eq!((targets.len(), &targets[0]["target"]), (1, &"farblock".into()), "{report}");
    assert!(report["plan"]["scaled"].to_string().contains("--without tgt"), "{report}");
}

#[cfg(target_os = "linux")]
#[test]
fn plans_that_cannot_be_compared_with_iscsi_are_refused() {
    let scratch = Scratch::new();
    let run = |text: &str, more: &[&str]| {
        scratch.run([&["fleet", "run", &small(&scratch, text)], more].concat())
    };
    let both = ["--without", "tgt", "--without", "farblock"];
    run(AGAINST_ISCSI, &both).fails_in_a_line(2, &["no iSCSI target left to compare"]);
    run(SMALL, &["--without", "tgt"]).fails_in_a_line(2, &["has no iSCSI target tgt"]);
    run(AGAINST_ISCSI, &["--without", "nvme"]).fails(2, &["farblock", "tgt"]);
    let vms = format!("{AGAINST_ISCSI}vm = true\n");
    run(&vms, &[]).fails_in_a_line(2, &["without virtual machines"]);
    let memory = AGAINST_ISCSI.replace("temporary:8MiB", "mem:8MiB");
    run(&memory, &[]).fails_in_a_line(2, &["one file"]);
}
