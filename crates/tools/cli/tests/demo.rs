//! Checks the output of the demonstration, and that it leaves nothing behind, however it ends.
#![cfg(target_os = "linux")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout};
use support::{Outcome, Scratch, signal, until};

/// Starts the demonstration with its files in the test's folder.
fn start(scratch: &Scratch, args: &[&str]) -> Child {
    std::fs::create_dir_all(scratch.path("tmp")).expect("the folder is created");
    let mut command = scratch.command([&["demo", "--every", "0.2"], args].concat());
    command.env("TMPDIR", scratch.path("tmp")).spawn().expect("the process starts")
}

/// Reads the demonstration's output up to a line that contains `words`.
fn said(out: &mut BufReader<ChildStdout>, words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        assert!(out.read_line(&mut text).is_ok_and(|bytes| bytes > 0), "{words:?} in:\n{text}");
    }
    text
}

fn nothing_is_left(scratch: &Scratch) {
    let folder = scratch.text("tmp");
    let is_of_it = |entry: std::io::Result<std::fs::DirEntry>| {
        let words = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&words).contains(&folder).then_some(())
    };
    until("the processes have exited", || {
        std::fs::read_dir("/proc").expect("the folder is readable").find_map(is_of_it).is_none()
    });
    until("the files are removed", || {
        std::fs::read_dir(&folder).expect("the folder is readable").next().is_none()
    });
}

#[test]
fn the_demo_reports_its_faults_and_loses_no_data() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &[]);
    let mut out = BufReader::new(child.stdout.take().expect("the stream is a pipe"));
    let mut text = said(&mut out, "the mirror continues with left");
    signal(child.id(), "INT");
    out.read_to_string(&mut text).expect("the output is UTF-8");
    let output = support::wait(child);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{text}");
    for part in [
        "dashboard at http://127.0.0.1:",
        "path 1 is cut",
        "I/O continues on path 2",
        "the target right is killed (kill -9)",
        "the mirror continues with left",
        "writes were acknowledged",
        "The longest pause was ",
        "no data is lost",
    ] {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
    let widest = text.lines().filter(|line| !line.contains("#token=")).map(|line| line.len()).max();
    assert!(widest <= Some(80), "a line exceeds the terminal's width:\n{text}");
    nothing_is_left(&scratch);
}

#[test]
fn the_demo_ends_when_its_time_is_over() {
    let scratch = Scratch::new();
    let output = support::wait(start(&scratch, &["--for", "1"]));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let outcome = Outcome { code: output.status.code(), stdout: output.stdout, stderr }.ok();
    assert_eq!(outcome.stderr, "");
    assert!(outcome.out().contains("no data is lost"), "{}", outcome.out());
    nothing_is_left(&scratch);
}

#[test]
fn the_demo_of_a_group_shows_a_move_and_a_killed_leader_and_loses_no_data() {
    assert!(support::has("etcd"), "install etcd (Debian: etcd-server)");
    let scratch = Scratch::new();
    let output = support::wait(start(&scratch, &["--group"]));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let outcome = Outcome { code: output.status.code(), stdout: output.stdout, stderr }.ok();
    assert_eq!(outcome.stderr, "");
    let text = outcome.out();
    for part in [
        "planned move: ctl group move 1 m",
        "is killed (kill -9)",
        "leads: longest write ",
        "has restarted",
        "1 planned move, 1 leader killed.",
        "no data is lost",
    ] {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
    let widest = text.lines().filter(|line| !line.contains("#token=")).map(|line| line.len()).max();
    assert!(widest <= Some(80), "a line exceeds the terminal's width:\n{text}");
    nothing_is_left(&scratch);
}

#[test]
fn the_demo_of_a_group_names_etcd_if_it_is_not_installed() {
    let scratch = Scratch::new();
    let mut command = scratch.command(["demo", "--group"]);
    command.env("PATH", scratch.path("tmp")).env("TMPDIR", scratch.path(""));
    let output = command.output().expect("the program runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let outcome = Outcome { code: output.status.code(), stdout: output.stdout, stderr };
    outcome.fails_in_a_line(1, &["--group needs etcd", "install it"]);
}

#[test]
fn an_interrupted_demo_prints_its_result() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &[]);
    let mut out = BufReader::new(child.stdout.take().expect("the stream is a pipe"));
    said(&mut out, "is killed");
    signal(child.id(), "INT");
    assert!(said(&mut out, "no data is lost").contains("1 target killed."));
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("the output is UTF-8");
    assert!(support::wait(child).status.success(), "{rest}");
    nothing_is_left(&scratch);
}

#[test]
fn a_killed_demo_leaves_no_processes_and_files() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &[]);
    let mut out = BufReader::new(child.stdout.take().expect("the stream is a pipe"));
    said(&mut out, "path 1 is cut");
    signal(child.id(), "KILL");
    let _ = support::wait(child);
    nothing_is_left(&scratch);
}

#[test]
fn the_demo_removes_only_its_own_folders() {
    let scratch = Scratch::new();
    let kept = scratch.file("kept", b"data");
    let folder = scratch.text("");
    scratch.run(["demo", "--sweep", folder.trim_end_matches('/')]).fails_in_a_line(2, &["--sweep"]);
    assert_eq!(support::read(&kept), b"data");
    scratch.run(["--json", "demo"]).fails_in_a_line(2, &["no --json"]);
}
