//! Tests that change a target with TLS while hosts use it.
#![cfg(unix)]

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use support::{Outcome, Reserved, Scratch, Server};

const NQN: &str = "nqn.2026-11.org.farblock:sealed";
const HOST: &str = "nqn.2026-11.org.farblock:host";
const OTHER: &str = "nqn.2026-11.org.farblock:other";

impl Scratch {
    fn connect(&self, server: &Server, host: &str, key: Option<&str>) -> Outcome {
        self.connect_to(&format!("{}&hostnqn={host}", server.url(1)), key)
    }

    fn connect_to(&self, url: &str, key: Option<&str>) -> Outcome {
        let key = key.map(|key| ["--tls-key", key]);
        self.run(["id", url].into_iter().chain(key.into_iter().flatten()))
    }
}

#[test]
fn hosts_and_keys_of_a_target_with_tls_change_at_run_time() {
    let scratch = Scratch::new();
    let [key, other] = scratch.keys(["host.key", "other.key"], &["--tls"]);
    let given = format!("{HOST}={key}");
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--tls-key", &given]);
    scratch.connect(&server, HOST, Some(&key)).ok();
    // Once another host is allowed, it can connect with its own key, but not with the first host's
    // key.
    scratch.connect(&server, OTHER, Some(&other)).fails(1, &["does not know the offered identity"]);
    let allowed = scratch.ctl(&["allow-host", NQN, OTHER, "--tls-key", "other.key"]).ok();
    assert!(allowed.out().contains("may connect with its key"), "{}", allowed.out());
    scratch.connect(&server, OTHER, Some(&other)).ok();
    scratch.connect(&server, OTHER, Some(&key)).fails(1, &["another key"]);
    let document = scratch.run(["config", "show"]).ok().out();
    let secret = scratch.run(["keys", "show", "--secret", &other]).ok().out();
    assert!(document.contains(&other) && !document.contains(secret.trim()), "{document}");
    assert!(document.contains("\"tls\": \"required\""), "{document}");
    let status = scratch.run(["status", "--json"]).ok().json();
    assert_eq!(status["subsystems"][0]["tls_hosts"].as_array().unwrap().len(), 2, "{status}");
    // Leaving out an option must remove nothing.
    scratch.ctl(&["allow-host", NQN, OTHER]).ok();
    scratch.ctl(&["allow-any-host", NQN, "on"]).fails(1, &["hosts with keys"]);
    scratch.ctl(&["allow-host", NQN, HOST, "--tls-key", secret.trim()]).fails(1, &["a key itself"]);
    // Until the policy changes, the listener requires TLS even from hosts without a key.
    scratch.ctl(&["allow-host", NQN, OTHER, "--no-tls-key"]).ok();
    scratch.connect(&server, OTHER, None).fails(1, &["TLS"]);
    let address = status["listening"][0].as_str().unwrap();
    scratch.ctl(&["set-tls", address, "allowed"]).ok();
    scratch.connect(&server, OTHER, None).ok();
    scratch.connect(&server, HOST, None).fails(1, &["does not allow this host"]);
    // By default, a new listener is as strict as the strictest existing one.
    scratch.ctl(&["set-tls", address, "required"]).ok();
    let reserved = Reserved::at([127, 0, 0, 3]);
    let said = scratch.ctl(&["add-listener", &reserved.address.to_string()]).ok().out();
    assert!(said.contains("all hosts must use TLS"), "{said}");
    scratch.ctl(&["set-tls", address, "plain"]).ok();
    scratch.connect(&server, HOST, Some(&key)).fails(1, &["TLS"]);
    server.stop();
}

/// Checks that the printed commands work.
#[test]
fn discover_with_a_tls_key_prints_working_commands() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["tls.key"], &["--tls"]);
    let host = scratch.run(["whoami", "--json"]).ok().json()["host_nqn"].clone();
    let given = format!("{}={key}", host.as_str().expect("the JSON contains the name"));
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--tls-key", &given]);
    let status = scratch.run(["status", "--json"]).ok().json();
    let address = status["listening"][0].as_str().expect("the status contains the address");
    scratch.run(["discover", address]).fails(1, &["--tls-key"]);
    let found = scratch.run(["discover", address, "--tls-key", &key]).ok().out();
    assert!(found.contains("required") && found.contains(" --tls-key '"), "{found}");
    let json = scratch.run(["discover", address, "--tls-key", &key, "--json"]).ok().json();
    assert_eq!(json["entries"][0]["tls_required"], true, "{json}");
    server.stop();
}

#[test]
fn a_configuration_sets_tls_for_listeners_and_hosts() {
    let scratch = Scratch::new();
    let [key, next] = scratch.keys(["host.key", "next.key"], &["--tls"]);
    let configuration = |open: &str, host: &str| {
        let text = format!(
            "listeners = [\"127.0.0.1:0\", {{ address = \"127.0.0.2:0\", tls = \"{open}\" }}]\n\
             tls = \"required\"\n\
             [[subsystems]]\nnqn = \"{NQN}\"\nallowed_hosts = [\"{OTHER}\"]\n\
             [[subsystems.hosts]]\nnqn = \"{HOST}\"\n{host}\n\
             [[subsystems.namespaces]]\npath = \"mem:1MiB\"\n"
        );
        std::fs::write(scratch.path("farblock.toml"), text).unwrap();
    };
    configuration("allowed", "tls_key = \"host.key\"");
    let server = Server::start(scratch.command(["serve", "--config", "farblock.toml"]));
    let status = scratch.run(["status", "--json"]).ok().json();
    let at = |index: usize| {
        let address = status["listening"][index].as_str().unwrap();
        move |host: &str| format!("nvme+tcp://{address}/{NQN}?ns=1&hostnqn={host}")
    };
    let (strict, open) = (at(0), at(1));
    for place in [&strict(HOST), &open(HOST)] {
        scratch.connect_to(place, Some(&key)).ok();
        scratch.connect_to(place, None).fails(1, &[]);
    }
    scratch.connect_to(&strict(OTHER), None).fails(1, &["TLS"]);
    scratch.connect_to(&open(OTHER), None).ok();
    // First both keys are valid, then only the new one.
    let both = [&next, &key].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    std::fs::write(&key, &both).unwrap();
    let said = scratch.run(["reload"]).ok().out();
    assert!(said.contains("a new TLS key in its key file"), "{said}");
    scratch.connect_to(&strict(HOST), Some(&next)).ok();
    let old = scratch.text("old.key");
    scratch.run(["keys", "new", "--tls", "--output", &old]).ok();
    std::fs::write(&old, both.lines().nth(1).unwrap()).unwrap();
    scratch.connect_to(&strict(HOST), Some(&old)).ok();
    std::fs::write(&key, both.lines().next().unwrap()).unwrap();
    scratch.run(["reload"]).ok();
    scratch.connect_to(&strict(HOST), Some(&old)).fails(1, &["another key"]);
    // An unreadable file must change nothing.
    configuration("allowed", "tls_key = \"nowhere.key\"");
    scratch.run(["reload"]).fails(1, &["nowhere.key"]);
    scratch.connect_to(&strict(HOST), Some(&next)).ok();
    configuration("required", "tls_key = \"host.key\"");
    let said = scratch.run(["reload"]).ok().out();
    assert!(said.contains("127.0.0.2:") && said.contains("all hosts must use TLS"), "{said}");
    scratch.connect_to(&open(OTHER), None).fails(1, &["TLS"]);
    server.stop();
    for (host, part) in [
        (String::new(), "allowed_hosts"),
        ("tls_key = \"farblock.toml\"".to_owned(), "is not a key file"),
        (format!("tls_key = {:?}", both.lines().next().unwrap()), "a key itself"),
    ] {
        configuration("allowed", &host);
        let outcome = scratch.run(["serve", "--check", "farblock.toml"]).fails(2, &[]);
        let said = outcome.stderr;
        assert!(said.contains(part) && !said.contains("NVMeTLSkey-1:0"), "{said}");
    }
    configuration("perhaps", "tls_key = \"host.key\"");
    scratch.run(["serve", "--check", "farblock.toml"]).fails(2, &["required, allowed or plain"]);
}

#[test]
fn serve_does_not_warn_of_a_public_listener_that_requires_tls() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["host.key"], &["--tls"]);
    let given = format!("{HOST}={key}");
    let told = |args: &[&str]| {
        let server = scratch.serve([&["--nqn", NQN, "mem:1MiB"], args].concat());
        let is_told =
            scratch.run(["status"]).ok().out().contains("warning: any peer that can reach");
        server.stop();
        is_told
    };
    assert!(!told(&["--listen", "0.0.0.0:0", "--tls-key", &given]));
    assert!(told(&["--listen", "0.0.0.0:0", "--tls-key", &given, "--tls", "allowed"]));
    scratch.run(["serve", "mem:1MiB", "--tls", "required"]).fails(2, &["--tls-key NQN=FILE"]);
}

fn get(socket: &str, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    answer.split_once("\r\n\r\n").expect("the answer has a body").1.to_owned()
}

/// Returns the counts of refused hosts, by the reasons that concern TLS.
fn refused(socket: &str) -> BTreeMap<String, u64> {
    let stats: Value = serde_json::from_str(&get(socket, "/v1/stats")).expect("the text is JSON");
    let all =
        stats["connections"]["refused"].as_object().expect("the JSON contains the object").clone();
    let tls = all.into_iter().filter(|(reason, _)| reason.starts_with("tls_"));
    tls.map(|(reason, count)| (reason, count.as_u64().expect("the JSON contains the count")))
        .collect()
}

fn next_refusal(events: &mut impl BufRead) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    let mut is_next = false;
    loop {
        assert!(Instant::now() < end, "no host was refused");
        let mut line = String::new();
        assert!(
            events.read_line(&mut line).expect("the target sends an event") > 0,
            "the stream ended"
        );
        match line.trim_end().split_once(": ") {
            Some(("event", name)) => is_next = name == "host_refused",
            Some(("data", data)) if is_next => {
                return serde_json::from_str(data).expect("the text is JSON");
            }
            _ => {}
        }
    }
}

/// Checks that the target counts every TLS failure by its reason, and sends an event.
#[test]
fn a_failed_tls_handshake_is_counted_and_sends_an_event() {
    let scratch = Scratch::new();
    let [key, other] = scratch.keys(["host.key", "other.key"], &["--tls"]);
    let given = format!("{HOST}={key}");
    let socket = scratch.text("control");
    let args = ["--nqn", NQN, "mem:1MiB", "--tls-key", &given, "--control", &socket];
    let server = scratch.serve(args);
    let mut events = UnixStream::connect(&socket).expect("the server listens");
    events.write_all(b"GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut events = BufReader::new(events);
    // The first counters show that the subscription is active, so later events will arrive.
    let mut line = String::new();
    while !line.starts_with("event: stats") {
        line.clear();
        assert!(
            events.read_line(&mut line).expect("the target sends an event") > 0,
            "the stream ended"
        );
    }
    let before = refused(&socket);
    assert!(before.len() >= 5 && before.values().all(|count| *count == 0), "{before:?}");
    let mut expect = |reasons: &[&str], words: &[&str], named: Option<&str>, key: Option<&str>| {
        let before = refused(&socket);
        scratch.connect(&server, HOST, key).fails(1, &[]);
        let after = refused(&socket);
        let more = after.iter().filter(|(name, count)| **count > before[*name]);
        let more: BTreeSet<_> = more.map(|(name, _)| name.as_str()).collect();
        assert_eq!(more, reasons.iter().copied().collect(), "{after:?}");
        let mut left: BTreeSet<_> = words.iter().copied().collect();
        while !left.is_empty() {
            let event = next_refusal(&mut events);
            assert_eq!(event["host"].as_str(), named, "{event}");
            assert!(
                event["sentence"].as_str().expect("the event has a text").contains("refused"),
                "{event}"
            );
            left.retain(|words| {
                !event["reason"].as_str().expect("the event has a text").contains(words)
            });
        }
    };
    expect(&["tls_missing"], &["does not speak TLS"], None, None);
    let address =
        scratch.run(["status", "--control", &socket, "--json"]).ok().json()["listening"][0].clone();
    let address = address.as_str().expect("the status contains the address");
    scratch.run(["ctl", "--control", &socket, "set-tls", address, "allowed"]).ok();
    // Now the host can send its name, for which the target has a key.
    expect(&["tls_missing"], &["the host connected without TLS"], Some(HOST), None);
    // The target reports five events for an address, and only counts later ones, so no further step
    // may follow. The host offers two identities. One contains a digest of the key, and the target
    // does not know this identity. The other one, in an older form, contains no digest, and the
    // target has another key for it.
    let reasons = ["tls_unknown_identity", "tls_wrong_key"];
    let words = ["no key for the identity", "another key for the identity"];
    expect(&reasons, &words, Some(HOST), Some(&other));
    let metrics = get(&socket, "/metrics");
    let sample = "farblock_connections_refused_total{reason=\"tls_missing\"} 2";
    assert!(metrics.contains(sample), "{metrics}");
    drop(events);
    server.stop();
}
