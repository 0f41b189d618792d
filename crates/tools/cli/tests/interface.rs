//! Tests of the management API on TCP: authentication, roles, and the audit log.
#![cfg(unix)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use support::{Outcome, Scratch, Server};

const NQN: &str = "nqn.2026-11.org.farblock:remote";
const ADMIN: &str = "0123456789abcdef0123456789abcdef";
const WATCH: &str = "fedcba9876543210fedcba9876543210";

/// Creates a file that only its owner may read.
fn secret(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))
        .expect("the permissions are set");
    path
}

/// Starts a target with the API. Returns it with the API's URL.
fn start(scratch: &Scratch) -> (Server, String) {
    let text = format!("# who may\nops admin {ADMIN}\nwatcher read-only {WATCH}\n");
    let tokens = secret(scratch, "tokens", &text);
    let args = ["--nqn", NQN, "mem:1MiB", "--api", "127.0.0.1:0", "--api-tokens", &tokens];
    let server = scratch.serve(args);
    let url = server.said.lines().find_map(|line| line.strip_prefix("interface at "));
    let url = url.unwrap_or_else(|| panic!("{}", server.said)).to_owned();
    (server, url)
}

/// Sends a request, and returns the whole answer.
fn ask(url: &str, request: &str, headers: &str) -> String {
    let mut stream =
        TcpStream::connect(url.strip_prefix("http://").expect("the URL starts with http://"))
            .unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("{request} HTTP/1.1\r\nConnection: close\r\n{headers}");
    write!(stream, "{head}Content-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    answer
}

fn bearer(token: &str) -> String {
    format!("Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n")
}

#[test]
fn a_role_limits_requests_and_the_log_names_the_token() {
    let scratch = Scratch::new();
    let (server, url) = start(&scratch);
    let admin = secret(&scratch, "admin", ADMIN);
    let watch = secret(&scratch, "watch", &format!("{WATCH}\n"));
    let run = |token: &str, args: &[&str]| -> Outcome {
        let place = ["--api", url.as_str(), "--token-file", token];
        scratch.run(args.iter().chain(&place))
    };
    let status = run(&watch, &["status", "--json"]).ok().json();
    assert_eq!(status["subsystems"][0]["nqn"], NQN);
    run(&watch, &["config", "show"]).ok();
    let change = ["ctl", "add-namespace", NQN, "mem:2MiB"];
    let refused = ["ctl", "read-only", NQN, "1", "on"];
    run(&watch, &refused).fails_in_a_line(1, &["read-only", "role is admin"]);
    run(&admin, &change).ok();
    run(&secret(&scratch, "wrong", &"x".repeat(32)), &change)
        .fails_in_a_line(1, &["needs a token"]);
    let status = run(&watch, &["status", "--json"]).ok().json();
    assert_eq!(status["subsystems"][0]["namespaces"].as_array().map(Vec::len), Some(2));
    scratch.run(["status", "--api", &url]).fails_in_a_line(2, &["--token-file"]);
    let elsewhere = ["status", "--api", "http://192.0.2.7:1", "--token-file", &watch];
    scratch.run(elsewhere).fails_in_a_line(2, &["unencrypted", "ssh -L"]);
    let log = server.stop().stderr;
    let lines = |parts: &[&str]| {
        log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    };
    assert_eq!(lines(&["token ops, from 127.0.0.1:", "PUT", "namespace 2 added"]), 1, "{log}");
    assert_eq!(
        lines(&["token watcher, from 127.0.0.1:", "PATCH", "refused: read-only"]),
        1,
        "{log}"
    );
    assert_eq!(lines(&["no valid token, from 127.0.0.1:"]), 1, "{log}");
    assert!(!log.contains(ADMIN) && !log.contains(WATCH), "{log}");
}

#[test]
fn the_api_refuses_foreign_web_pages_and_wrong_tokens() {
    let scratch = Scratch::new();
    let (_server, url) = start(&scratch);
    let good = bearer(ADMIN);
    assert!(ask(&url, "GET /v1/status", &good).starts_with("HTTP/1.1 200"));
    let otherwise = good.replace("Bearer", "bearer");
    assert!(ask(&url, "GET /v1/status", &otherwise).starts_with("HTTP/1.1 200"));
    let page = format!("{good}Origin: http://127.0.0.1\r\n");
    assert!(ask(&url, "GET /v1/status", &page).starts_with("HTTP/1.1 421"));
    let rebound = good.replace("Host: 127.0.0.1", "Host: evil.example");
    assert!(ask(&url, "GET /v1/status", &rebound).starts_with("HTTP/1.1 421"));
    for headers in ["Host: 127.0.0.1\r\n", "Host: 127.0.0.1\r\nAuthorization: Basic b3Bz\r\n"] {
        for path in ["/v1/state", "/metrics", "/nowhere"] {
            let answer = ask(&url, &format!("GET {path}"), headers);
            assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
            assert!(answer.to_lowercase().contains("www-authenticate: bearer"), "{answer}");
        }
    }
    let guesses: Vec<_> = (0..8)
        .map(|number| {
            let url = url.clone();
            std::thread::spawn(move || ask(&url, "GET /v1/state", &bearer(&number.to_string())))
        })
        .collect();
    let answers: Vec<_> = guesses.into_iter().map(|guess| guess.join().unwrap()).collect();
    assert!(answers.iter().all(|it| it.starts_with("HTTP/1.1 4")), "{answers:?}");
    // Continue with one more wrong guess from this address, which is over the limit.
    let answer = ask(&url, "GET /v1/status", &bearer(WATCH.trim_start_matches('f')));
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 60"), "{answer}");
    // All local users share this address, so wrong guesses must not lock out valid tokens.
    assert!(ask(&url, "GET /v1/status", &good).starts_with("HTTP/1.1 200"));
}

/// Checks that the target honours every form of a conditional request.
#[test]
fn conditional_requests_are_honoured() {
    let scratch = Scratch::new();
    let (_server, url) = start(&scratch);
    let place = format!("/v1/subsystems/{NQN}/namespaces/1");
    let asked = |method: &str, conditions: &str, status: &str| {
        let headers = format!("{}{conditions}", bearer(ADMIN));
        let answer = ask(&url, &format!("{method} {place}"), &headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{conditions:?}: {answer}");
        answer
    };
    let etag = |answer: &str| {
        let found = answer.lines().find_map(|line| line.strip_prefix("etag: "));
        found.unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let now = etag(&asked("GET", "", "200"));
    for others in ["\u{e9}", "\"1\"", "W/\"1\"", "\"1\", \"2\"", "\"1\"\r\nIf-Match: \"2\""] {
        asked("DELETE", &format!("If-Match: {others}\r\n"), "412");
    }
    // The object exists, but the request requires that it does not: the target does not even check
    // the body.
    let refused = asked("PUT", "If-None-Match: *\r\n", "412");
    assert!(refused.contains("namespace 1 of subsystem"), "{refused}");
    asked("PUT", "If-None-Match: \"1\"\r\n", "422");
    asked("DELETE", &format!("If-Match: \"1\"\r\nIf-Match: {now}\r\n"), "200");
}

#[test]
fn serve_refuses_an_unsafe_api_address_or_token_file() {
    let scratch = Scratch::new();
    let tokens = secret(&scratch, "tokens", &format!("ops admin {ADMIN}\n"));
    let serve = |address: &str, file: &str| {
        scratch.run(["serve", "mem:1MiB", "--api", address, "--api-tokens", file])
    };
    serve("0.0.0.0:0", &tokens).fails_in_a_line(2, &["other machines", "ssh -L"]);
    std::fs::set_permissions(&tokens, PermissionsExt::from_mode(0o640)).unwrap();
    serve("127.0.0.1:0", &tokens).fails_in_a_line(1, &["other users", "chmod 600"]);
    let bad = secret(&scratch, "bad", &format!("ops root {ADMIN}\n"));
    let outcome = serve("127.0.0.1:0", &bad).fails_in_a_line(1, &["line 1", "read-only or admin"]);
    assert!(!outcome.stderr.contains(ADMIN), "{}", outcome.stderr);
    scratch.run(["serve", "mem:1MiB", "--api", "127.0.0.1:0"]).fails(2, &["--api-tokens"]);
}
