//! Tests of the management API of a running target: the audit log, the common form of errors, and
//! the path of the control socket.
#![cfg(unix)]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use support::{Reserved, Scratch, Server};

const NQN: &str = "nqn.2026-11.org.farblock:managed";

/// Sends a request, and returns the whole answer.
fn ask(socket: &str, request: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {}\r\n\r\n", body.len()).unwrap();
    // The target may refuse the request before it has read all of it.
    let _ = stream.write_all(body.as_bytes());
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn api_errors_have_one_format_and_changes_are_logged() {
    let scratch = Scratch::new();
    let socket = scratch.text("control");
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--control", &socket]);
    let large = "x".repeat(3 << 20);
    for (request, body, status, part) in [
        ("DELETE /v1/state", "", "405", "the header Allow"),
        ("POST /v1/reload?dry_run=perhaps", "", "400", "dry_run"),
        ("PUT /v1/state", large.as_str(), "413", "2 MiB"),
        ("GET /nowhere", "", "404", "this path does not exist"),
        ("PUT /v1/state", "{", "422", "EOF"),
    ] {
        let answer = ask(&socket, request, body);
        let head = answer.to_lowercase();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
        assert!(head.contains("application/problem+json"), "{request}: {answer}");
        assert!(answer.contains(part), "{request}: {answer}");
        assert_eq!(head.contains("\nallow:"), status == "405", "{request}: {answer}");
    }
    let namespace = format!("/v1/subsystems/{NQN}/namespaces/7");
    assert!(ask(&socket, &format!("PUT {namespace}"), "{\"path\": \"mem:1MiB\"}").contains("200"));
    assert!(ask(&socket, &format!("GET {namespace}"), "").contains("200"));
    assert!(ask(&socket, "PUT /v1/listeners/192.0.2.7:1", "{}").contains("409"));
    let log = server.stop().stderr;
    let user = rustix::process::geteuid().as_raw();
    let who = format!("user {user}, process {}", std::process::id());
    let lines: Vec<_> = log.lines().filter(|line| line.contains(&who)).collect();
    let said = |parts: &[&str]| {
        let has_all = |line: &&&str| parts.iter().all(|part| line.contains(part));
        assert_eq!(lines.iter().filter(has_all).count(), 1, "{parts:?}: {log}");
    };
    said(&["PUT", "namespaces/7", "200", "namespace 7 added"]);
    said(&["PUT", "listeners", "409", "refused", "no such address"]);
    said(&["PUT /v1/state", "413"]);
    assert!(lines.iter().all(|line| !line.contains("GET")), "{log}");
}

#[test]
fn serve_refuses_a_control_socket_in_a_folder_that_others_can_write() {
    let scratch = Scratch::new();
    let folder = scratch.path("open");
    std::fs::create_dir(&folder).unwrap();
    let socket = scratch.text("open/control");
    for (mode, good) in [(0o777, false), (0o770, false), (0o1777, true), (0o755, true)] {
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
        if good {
            scratch.serve(["mem:1MiB", "--control", &socket]).stop();
        } else {
            let outcome = scratch.run(["serve", "mem:1MiB", "--control", &socket]);
            outcome.fails_in_a_line(1, &["other users can write", "chmod 700"]);
        }
    }
}

#[test]
fn a_listener_on_port_0_keeps_its_port_across_reloads() {
    let scratch = Scratch::new();
    let write = |listeners: &str| {
        let text = format!(
            "listeners = [{listeners}]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
             allow_any_host = true\n[[subsystems.namespaces]]\npath = \"mem:1MiB\"\n"
        );
        scratch.file("farblock.toml", text.as_bytes())
    };
    let any = "\"127.0.0.1:0\"";
    let path = write(any);
    let server = Server::start(scratch.command(["serve", "--config", &path]));
    let reserved = Reserved::at(std::net::Ipv4Addr::LOCALHOST);
    let other = format!("\"{}\"", reserved.address);
    let listening = || {
        let status = scratch.run(["status", "--json"]).ok().json();
        status["listening"].as_array().unwrap().len()
    };
    // Hosts know the target by its first address. So the target refuses a change that removes this
    // address, and applies no part of it.
    write(&other);
    scratch.run(["reload"]).fails(1, &["started with"]);
    assert_eq!(listening(), 1);
    write(&format!("{any}, {other}"));
    scratch.run(["reload"]).ok();
    assert_eq!(listening(), 2);
    write(any);
    scratch.run(["reload"]).ok();
    assert!(scratch.run(["config", "diff"]).ok().out().contains("nothing"));
    assert_eq!(listening(), 1);
    scratch.connect(&server);
    server.stop();
}

impl Scratch {
    fn connect(&self, server: &Server) {
        self.run(["id", &server.url(1)]).ok();
    }
}

#[test]
fn serve_warns_of_a_public_listener_without_keys() {
    let scratch = Scratch::new();
    let told = |args: &[&str]| {
        let server = scratch.serve([&["--nqn", NQN, "mem:1MiB"], args].concat());
        let status = scratch.run(["status"]).ok().out();
        let log = server.stop().stderr;
        assert_eq!(
            log.contains("any peer that can reach"),
            status.contains("warning: any peer"),
            "{log}"
        );
        log.contains("any peer that can reach 0.0.0.0:")
    };
    scratch.run(["keys", "new", "--output", "host.key"]).ok();
    assert!(told(&["--listen", "0.0.0.0:0"]));
    assert!(told(&["--listen", "0.0.0.0:0", "--allow-host", "nqn.2026-11.h:a"]));
    assert!(!told(&["--listen", "0.0.0.0:0", "--host-key", "nqn.2026-11.h:a=host.key"]));
    assert!(!told(&[]));
}
