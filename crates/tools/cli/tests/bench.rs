//! Tests of `farblock bench`, with short runs.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use support::{Outcome, Scratch, Server, noise, read};

const SHORT: [&str; 5] = ["bench", "--runtime", "500ms", "--ramp-time", "0"];

fn bench(scratch: &Scratch, args: &[&str]) -> Outcome {
    scratch.run([&SHORT[..], args].concat())
}

fn patterns(report: &Value) -> &Vec<Value> {
    report["patterns"].as_array().expect("the JSON contains the list")
}

#[test]
fn bench_without_disks_measures_both_sides_and_leaves_no_files() {
    // A second is long enough for one I/O on a busy machine, and for Windows, which counts
    // processor time in ticks of up to 16 ms.
    let runtime = "1s";
    let engines: &[&str] = if cfg!(windows) { &["auto"] } else { &["auto", "portable"] };
    for &engine in engines {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("disk")).unwrap();
        let html = scratch.text("report.html");
        let options = "--ramp-time 0 --directory disk --size 64m --json -";
        let own = ["bench", "--engine", engine, "--runtime", runtime, "--html", &html];
        let outcome = scratch.run(own.into_iter().chain(options.split(' '))).ok();
        assert!(outcome.stderr.contains("64 MiB in "), "{}", outcome.stderr);
        assert!(
            !outcome.stderr.contains("was deleted"),
            "a warning about the benchmark's own file: {}",
            outcome.stderr
        );
        let report = outcome.json();
        assert_eq!(patterns(&report).len(), 6);
        for pattern in patterns(&report) {
            for side in ["local", "remote"] {
                assert!(pattern[side]["iops"].as_f64().unwrap() > 0.0, "{engine}: {pattern}");
                assert!(pattern[side]["host_cpu"]["us_per_io"].as_f64().unwrap() > 0.0);
            }
            assert!(pattern["local"]["target_cpu"].is_null());
            if cfg!(target_os = "linux") {
                let target = &pattern["remote"]["target_cpu"]["us_per_io"];
                assert!(target.as_f64().unwrap() > 0.0, "{engine}: {pattern}");
            }
            assert!(pattern["remote_percent_of_local"]["iops"].as_f64().unwrap() > 0.0);
            let has_floor = pattern["floor"]["iops"].as_f64().is_some_and(|iops| iops > 0.0);
            assert_eq!(has_floor, several_processors(), "unasked: {pattern}");
        }
        assert_eq!(report["method"]["spin"], "balanced");
        assert_eq!(std::fs::read_dir(scratch.path("disk")).unwrap().count(), 0, "files are left");
        let page = String::from_utf8(read(&html)).unwrap();
        assert!(page.contains("</html>") && page.contains("<svg"), "{page}");
        assert!(
            !page.contains("src=\"http") && !page.contains("href=\"http"),
            "the page loads external files"
        );
    }
}

/// Whether the machine has several processors. The threads that measure the floor (bare sockets)
/// never sleep, so on one processor the benchmark measures it only on request.
fn several_processors() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
}

#[test]
fn bench_without_disks_accepts_no_floor_and_a_spin_policy() {
    let scratch = Scratch::new();
    let options = "--size 64m --patterns 4k-random-read --floor none --spin efficient --json -";
    let report = bench(&scratch, &options.split(' ').collect::<Vec<_>>()).ok().json();
    assert!(report["floor"].is_null(), "{report}");
    assert_eq!(report["method"]["spin"], "efficient");
}

#[test]
fn bench_accepts_one_pattern_in_fio_options() {
    let scratch = Scratch::new();
    let options = "--rw randrw --rwmixread 70 --bs 8k --iodepth 4 --numjobs 3 --size 16M --json -";
    let args: Vec<&str> = ["mem:32MiB"].into_iter().chain(options.split(' ')).collect();
    let report = bench(&scratch, &args).ok().json();
    let [pattern] = patterns(&report).as_slice() else { panic!("not one pattern") };
    let wanted = &pattern["pattern"];
    assert_eq!((&wanted["rw"], &wanted["rwmixread"]), (&"randrw".into(), &70.into()));
    assert_eq!((&wanted["block_size_bytes"], &wanted["iodepth"]), (&8192.into(), &4.into()));
    assert_eq!(wanted["numjobs"], 3, "the number of jobs changed");
    assert!(pattern["remote"].is_null() && pattern["local"]["iops"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_without_disks_measures_the_network_floor() {
    let scratch = Scratch::new();
    let html = scratch.text("report.html");
    let options = "--size 64m --patterns 4k-random --json - --floor --html";
    let args: Vec<&str> = options.split(' ').chain([html.as_str()]).collect();
    let report = bench(&scratch, &args).ok().json();
    assert!(report["floor"].as_str().unwrap().contains("bare sockets to 127.0.0.1:"));
    assert_eq!(patterns(&report).len(), 2);
    for pattern in patterns(&report) {
        let floor = &pattern["floor"];
        assert!(floor["iops"].as_f64().unwrap() > 0.0, "{pattern}");
        assert!(pattern["remote_percent_of_local"]["iops"].as_f64().unwrap() > 0.0);
        assert!(pattern["remote_percent_of_floor"]["iops"].as_f64().unwrap() > 0.0);
        if cfg!(target_os = "linux") {
            // The two ends never sleep, so each gets about the same processor time.
            for party in ["host_cpu", "target_cpu"] {
                let percent = floor[party]["percent_of_core"].as_f64().unwrap();
                assert!(percent > 1.0, "{party}: {pattern}");
            }
        }
    }
    let page = String::from_utf8(read(&html)).unwrap();
    assert!(page.contains("remote, % of floor"), "{page}");
}

#[test]
fn bench_measures_the_floor_of_one_disk_and_of_a_floor_server() {
    let scratch = Scratch::new();
    let mixed = "mem:64MiB --rw randrw --iodepth 8 --numjobs 2 --connections 3 --wide --floor";
    let args: Vec<&str> = mixed.split(' ').collect();
    let table = bench(&scratch, &args).ok().out();
    let row = |side: &str| table.lines().any(|line| line.split_whitespace().next() == Some(side));
    assert!(row("local") && row("floor") && !row("remote"), "{table}");
    assert!(!table.contains("a percentage of"), "a percentage without a base\n{table}");

    let server = Server::start(scratch.command(["bench", "--floor-serve", "127.0.0.1:0"]));
    assert!(server.said.contains(&format!("--floor {}", server.address)), "{}", server.said);
    let disk = scratch.serve(["mem:64MiB"]);
    let url = disk.url(1);
    let reads = "--rw randread --iodepth 8 --numjobs 2 --runtime 0.5 --floor";
    let args: Vec<&str> = [url.as_str()]
        .into_iter()
        .chain(reads.split(' '))
        .chain([server.address.as_str()])
        .collect();
    let args: Vec<&str> = ["bench", "--ramp-time", "0"].into_iter().chain(args).collect();
    let table = scratch.run(args).ok().out();
    assert!(table.contains(&format!("bare sockets to {}", server.address)), "{table}");
    assert!(table.contains("remote as a percentage of floor"), "{table}");
    assert!(!table.contains("percentage of local"), "{table}");
    disk.stop();
    let stopped = server.stop();
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
}

#[test]
fn bench_refuses_an_unusable_floor_before_it_measures() {
    let scratch = Scratch::new();
    #[cfg(unix)]
    let free = support::Reserved::at(std::net::Ipv4Addr::LOCALHOST);
    #[cfg(unix)]
    let free = &free.address.to_string();
    #[cfg(windows)]
    let free = "127.0.0.1:1";
    bench(&scratch, &["mem:64MiB", "--floor", free])
        .fails_in_a_line(1, &[free, "no program listens at this address", "--floor-serve"]);
    let target = scratch.serve(["mem:1MiB"]);
    bench(&scratch, &["mem:64MiB", "--floor", &target.address])
        .fails_in_a_line(1, &[&target.address, "`farblock bench --floor-serve`"]);
    bench(&scratch, &["--floor-serve", "127.0.0.1:0"]).fails(2, &["cannot be used with"]);
    scratch
        .run(["bench", "--floor-serve", &target.address])
        .fails_in_a_line(1, &["cannot listen on", &target.address, "in use"]);
    target.stop();
}

#[test]
fn bench_keeps_a_fixed_rate() {
    let scratch = Scratch::new();
    let options = "--rw randread --iodepth 8 --rate_iops 500 --runtime 1 --ramp-time 0 --json -";
    let args: Vec<&str> = ["bench", "null:32MiB"].into_iter().chain(options.split(' ')).collect();
    let report = scratch.run(&args).ok().json();
    let iops = patterns(&report)[0]["local"]["iops"].as_f64().unwrap();
    // A rate limit is only an upper bound: the machine may be slower.
    assert!(iops > 0.0 && iops < 515.0, "{iops}");
}

#[test]
fn bench_measures_a_remote_disk_alone_or_beside_a_local_one() {
    let scratch = Scratch::new();
    let data = noise(1, 32 << 20);
    let disk = scratch.file("disk.img", &data);
    let server = scratch.serve([&disk]);
    let (url, id) = (server.url(1), server.id.to_string());
    bench(&scratch, &[&url, "--size", "16M"])
        .fails_in_a_line(2, &["random write", "--allow-writes", "--patterns read"]);
    let reads = ["--patterns", "read", "--json", "-"];
    let report = bench(&scratch, &[&[url.as_str(), "--target-pid", &id], &reads[..]].concat());
    let report = report.ok().json();
    assert_eq!(patterns(&report).len(), 3);
    for pattern in patterns(&report) {
        assert!(pattern["local"].is_null());
        if cfg!(any(target_os = "linux", windows)) {
            assert!(pattern["remote"]["target_cpu"].is_object(), "{pattern}");
        }
    }
    let report = bench(&scratch, &[&["mem:32MiB", url.as_str()], &reads[..]].concat());
    assert!(patterns(&report.ok().json())[0]["remote_percent_of_local"].is_object());
    assert!(read(&disk) == data, "the disk was written");
    let table = bench(&scratch, &[&url, "--rw", "write", "--bs", "64k", "--allow-writes"]).ok();
    assert!(table.out().contains("64k sequential write"), "{}", table.out());
    assert!(read(&disk) != data, "the disk was not written");
    server.stop();
}

#[test]
fn bench_refuses_invalid_options() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    for (args, parts) in [
        (&[disk.as_str()] as &[&str], &["disk.img", "--allow-writes"] as &[&str]),
        (&["a", "b", "c"], &["c"]),
        (&["--patterns", "8k"], &["\"8k\"", "4k-random-read"]),
        (&["--patterns", "4k", "--rw", "read"], &["cannot be used with"]),
        (&["--iodepth", "4"], &["--rw"]),
        (&["mem:1MiB", "--rw", "reed"], &["randread"]),
        (&["mem:1MiB", "--rw", "read", "--bs", "0"], &["not a size"]),
        (&["mem:1MiB", "--rw", "read", "--bs", "1000"], &["does not fit"]),
        (&["mem:1MiB", "--rw", "read", "--bs", "2M"], &["does not fit"]),
        (&["mem:1MiB", "--rw", "read", "--iodepth", "0"], &["whole number from 1 to 65535"]),
        (&["mem:1MiB", "--rw", "read", "--numjobs", "2000"], &["whole number from 1 to 1024"]),
        (&["mem:1MiB", "--rw", "read", "--rate-iops", "0"], &["whole number from 1 to"]),
        (&["mem:1MiB", "--rw", "rw", "--rwmixread", "101"], &["101"]),
        (&["mem:1MiB", "--rw", "read", "--runtime", "0"], &["no measuring time"]),
        (&["mem:1MiB", "--rw", "read", "--runtime", "soon"], &["not a time: write seconds"]),
        (&["--target-pid", "1"], &["LOCAL"]),
        (&["nvme+tcp://127.0.0.1:1", "--patterns", "read"], &["names no subsystem"]),
        (&["--json", "-", "--html", "-"], &["both"]),
        (&["--floor", "127.0.0.1:4421"], &["REMOTE-URL", "omit the address"]),
        (&["--floor", "mem:1MiB"], &["ADDR:PORT", "last option"]),
        (&["mem:1MiB", "--rw", "read", "--rate-iops", "9", "--floor"], &["cannot be used with"]),
        (&["null:1GiB", "--rw", "read", "--bs", "32M", "--floor"], &["16 MiB"]),
        (&["--floor-serve", "127.0.0.1"], &["has no port"]),
        (&["--floor-serve", "127.0.0.1:0", "--floor"], &["cannot be used with"]),
    ] {
        // Do not add the options for short runs, since one case has its own.
        let args: Vec<&str> = ["bench"].iter().chain(args).copied().collect();
        let outcome = scratch.run(&args);
        eprintln!("{args:?}: {}", outcome.stderr.lines().next().unwrap_or_default());
        outcome.fails(2, parts);
    }
    bench(&scratch, &["missing.img", "--patterns", "read"])
        .fails_in_a_line(1, &["missing.img does not exist"]);
    bench(&scratch, &["--json", "no/such/file.json"])
        .fails_in_a_line(1, &["cannot create no/such/file.json"]);
    bench(&scratch, &["--directory", "no/such/place"])
        .fails_in_a_line(1, &["cannot create a disk file", "no/such/place", "--directory"]);
    bench(&scratch, &["--size", "1000t"])
        .fails_in_a_line(1, &["cannot create a disk file", "free", "--size"]);
    bench(&scratch, &["mem:1MiB,", "--rw", "read"]).fails_in_a_line(2, &["not known"]);
}

#[test]
fn interrupted_bench_reports_the_finished_patterns_and_leaves_no_files() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("disk")).unwrap();
    let args = ["bench", "--directory", "disk", "--size", "64m", "--runtime", "2"];
    let mut child = scratch.command(args).spawn().unwrap();
    let mut pipe = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains("2/6 ") {
        assert!(pipe.read_line(&mut stderr).unwrap() > 0, "{stderr}");
    }
    support::signal(child.id(), "INT");
    let output = support::wait(child);
    pipe.read_to_string(&mut stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("error: interrupted"), "{stderr}");
    assert_eq!(std::fs::read_dir(scratch.path("disk")).unwrap().count(), 0, "files are left");
}

#[test]
fn bench_reports_a_failing_disk() {
    let scratch = Scratch::new();
    let outcome = bench(&scratch, &["fault:50,null:64MiB", "--rw", "randread", "--wide"]);
    // The report wraps this line at a different place for each failed block.
    let said = outcome.out().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("failed after"), "{said}");
    outcome.fails(1, &["some runs failed"]);
}

#[test]
fn bench_compare_fails_for_slower_results() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.text("a.json"), scratch.text("b.json"));
    let options = "null:32MiB --rw randread --runs 2 --json";
    let args: Vec<&str> = options.split(' ').chain([a.as_str()]).collect();
    bench(&scratch, &args).ok();
    let mut report: Value = serde_json::from_slice(&read(&a)).unwrap();
    assert_eq!(report["patterns"][0]["local"]["runs"].as_array().unwrap().len(), 2);

    let compare = |args: &[&str]| scratch.run([&["bench", "compare"], args].concat());
    let same = compare(&[&a, &a, "--fail-if-slower", "5%"]).ok().out();
    assert!(same.contains("IOPS") && same.contains("  same"), "{same}");
    assert!(same.lines().all(|line| line.chars().count() <= 80), "{same}");

    // Use fixed figures: measured runs may vary too much for a verdict.
    for (file, iops) in [(&a, 1000.0), (&b, 1.0)] {
        for run in report["patterns"][0]["local"]["runs"].as_array_mut().unwrap() {
            run["iops"] = iops.into();
        }
        std::fs::write(file, report.to_string()).unwrap();
    }
    let slower = compare(&[&a, &b, "--fail-if-slower", "5%"]);
    slower.fails(1, &["4k random read, local: IOPS changed by −", "slower by more than 5 %"]);
    compare(&[&a, &b]).ok();
    let json = compare(&[&b, &a, "--fail-if-slower", "5", "--json"]).ok().json();
    assert_eq!(json["failures"].as_array().map(Vec::len), Some(0), "{json}");
    assert_eq!(json["loads"][0]["name"], "4k random read, local");

    report["patterns"] = Value::Array(Vec::new());
    std::fs::write(&b, report.to_string()).unwrap();
    compare(&[&a, &b, "--fail-if-slower", "5"]).fails(1, &["B does not have this load"]);
    compare(&[&b, &b]).fails_in_a_line(2, &["no load in common"]);
}

#[test]
fn bench_compare_refuses_files_that_are_no_report() {
    let scratch = Scratch::new();
    let file = scratch.text("no.json");
    let compare = |text: &str| {
        std::fs::write(&file, text).unwrap();
        scratch.run(["bench", "compare", &file, &file])
    };
    for text in ["", "{}", "[]", "null", "{\"schema\": 99}", "\u{0}"] {
        compare(text).fails_in_a_line(2, &["no.json", "is not a report of"]);
    }
    scratch.run(["bench", "compare", "missing.json", &file]).fails_in_a_line(2, &["cannot read"]);
    scratch.run(["bench", "compare", &file]).fails(2, &["B.json"]);
    scratch
        .run(["bench", "compare", &file, &file, "--fail-if-slower", "slow"])
        .fails(2, &["write a percentage"]);
}
