//! Tests that change a target with authentication while hosts use it.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Options, Url};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use support::{Outcome, Scratch, Server, until};

const NQN: &str = "nqn.2026-11.org.farblock:locked";
const HOST: &str = "nqn.2026-11.org.farblock:host";
const OTHER: &str = "nqn.2026-11.org.farblock:other";

impl Scratch {
    /// Connects as `host`, with the key in a file, or without a key.
    fn connect(&self, server: &Server, host: &str, key: Option<&str>) -> Outcome {
        let id = if host == HOST { 1 } else { 2 };
        let url = format!("{}&hostnqn={host}&hostid={id:032x}", server.url(1));
        let secret = key.map(|key| ["--dhchap-secret", key]);
        self.run(["id", &url].into_iter().chain(secret.into_iter().flatten()))
    }

    fn controllers(&self) -> Vec<u64> {
        let status = self.run(["status", "--json"]).ok().json();
        let all = status["controllers"].as_array().unwrap();
        all.iter().map(|one| one["id"].as_u64().unwrap()).collect()
    }
}

/// Connects a disk of a host that stays connected.
fn disk(server: &Server, key: &str) -> Disk {
    let url: Url = format!("{}&hostnqn={HOST}&hostid={:032x}", server.url(1), 1)
        .parse()
        .expect("the URL is valid");
    let connection = Options { dhchap_secret: Some(key.into()), ..Options::default() };
    let options = DiskOptions {
        connection,
        reconnect_delay: Duration::from_millis(50),
        ctrl_loss_timeout: Some(Duration::from_secs(30)),
        ..DiskOptions::default()
    };
    Disk::connect(&[url], &options).expect("the disk connects")
}

fn serve(scratch: &Scratch, key: &str, more: &[&str]) -> Server {
    let host_key = format!("{HOST}={key}");
    let args = ["--nqn", NQN, "mem:1MiB", "--host-key", &host_key];
    scratch.serve(args.iter().chain(more))
}

fn put_together(files: &[&str], into: &str) {
    let text: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    std::fs::write(into, text).unwrap();
}

#[test]
fn a_host_added_to_a_target_with_keys_needs_its_own_key() {
    let scratch = Scratch::new();
    let [key, other] = scratch.keys(["host.key", "other.key"], &[]);
    let server = serve(&scratch, &key, &[]);
    let disk = disk(&server, &key);
    let mut blocks = Blocking::new(&disk).expect("the queue opens");
    let connected = scratch.controllers();
    scratch.ctl(&["add-namespace", NQN, "mem:2MiB"]).ok();
    let allowed = scratch.ctl(&["allow-host", NQN, OTHER, "--key", "other.key"]).ok();
    assert!(allowed.out().contains("may connect with its key"), "{}", allowed.out());
    // A host with another host's identifier must be refused, whatever its key is.
    let url = format!("{}&hostnqn={OTHER}&hostid={:032x}", server.url(1), 1);
    scratch.run(["id", &url, "--dhchap-secret", &other]).fails(1, &["HOSTID", "hostid="]);
    scratch.connect(&server, OTHER, Some(&other)).ok();
    scratch.connect(&server, OTHER, Some(&key)).fails(1, &["authenti"]);
    scratch.connect(&server, OTHER, None).fails(1, &["--dhchap-secret"]);
    // Leaving out the option must not remove a key.
    scratch.ctl(&["allow-host", NQN, OTHER]).ok();
    scratch.ctl(&["allow-any-host", NQN, "on"]).fails(1, &["allow_any_host", "hosts with keys"]);
    scratch.connect(&server, OTHER, None).fails(1, &["--dhchap-secret"]);
    let status = scratch.run(["status", "--json"]).ok().json();
    let shown = scratch.run(["keys", "show", &other]).ok().out();
    let fingerprint = status["subsystems"][0]["keys"][OTHER][0].as_str().unwrap();
    assert!(shown.contains(fingerprint), "{shown} {status}");
    let secret = scratch.run(["keys", "show", "--secret", &other]).ok().out();
    let document = scratch.run(["config", "show"]).ok().out();
    assert!(document.contains(&other) && !document.contains(secret.trim()), "{document}");
    // The option `--no-key` removes it.
    scratch.ctl(&["allow-host", NQN, OTHER, "--no-key"]).ok();
    scratch.connect(&server, OTHER, None).ok();
    scratch.ctl(&["allow-host", NQN, OTHER, "--key", &other]).ok();
    scratch.connect(&server, OTHER, None).fails(1, &["--dhchap-secret"]);
    scratch.ctl(&["disallow-host", NQN, OTHER]).ok();
    scratch.connect(&server, OTHER, Some(&other)).fails(1, &["does not allow this host"]);
    blocks.write(0, &[7; 512]).expect("the disk stays connected");
    assert_eq!(scratch.controllers(), connected, "another controller was closed");
    server.stop();
}

#[test]
fn a_request_that_would_drop_the_key_of_a_host_is_refused() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["host.key"], &[]);
    let socket = scratch.text("control");
    let server = serve(&scratch, &key, &["--control", &socket]);
    let ask = |method: &str, place: &str, body: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let head = format!("{method} /v1/{place} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let host = format!("subsystems/{NQN}/hosts/{HOST}");
    let subsystem = format!("subsystems/{NQN}");
    let hosts = format!("{{\"hosts\": {{\"{HOST}\": {{}}}}}}");
    for (place, body) in [(&host, "{}"), (&subsystem, hosts.as_str())] {
        let answer = ask("PUT", place, body);
        assert!(answer.contains("422") && answer.contains("this host has a key"), "{answer}");
    }
    let secret = scratch.run(["keys", "show", "--secret", &key]).ok().out();
    let wrong = format!("{{\"dhchap_key\": \"{}\"}}", secret.trim());
    let answer = ask("PUT", &host, &wrong);
    assert!(answer.contains("is a secret") && !answer.contains(secret.trim()), "{answer}");
    scratch.connect(&server, HOST, None).fails(1, &["--dhchap-secret"]);
    let answer = ask("PATCH", &host, "{\"dhchap_key\": null}");
    assert!(
        answer.contains("200") && answer.contains("no longer needs to authenticate"),
        "{answer}"
    );
    scratch.connect(&server, HOST, None).ok();
    server.stop();
}

#[test]
fn a_key_changes_without_interruption_and_a_removed_key_disconnects_the_host() {
    let scratch = Scratch::new();
    let [key, old, new] = scratch.keys(["host.key", "old.key", "new.key"], &[]);
    put_together(&[&old], &key);
    let server = serve(&scratch, &key, &[]);
    let again = || scratch.ctl(&["allow-host", NQN, HOST, "--key", &key]);
    let disk = disk(&server, &old);
    let mut blocks = Blocking::new(&disk).expect("the queue opens");
    let connected = scratch.controllers();
    put_together(&[&new, &old], &key);
    scratch.connect(&server, HOST, Some(&new)).fails(1, &["authenti"]);
    assert!(again().ok().out().contains("a new secret in its key file"));
    scratch.connect(&server, HOST, Some(&new)).ok();
    scratch.connect(&server, HOST, Some(&old)).ok();
    put_together(&[&new], &key);
    again().ok();
    scratch.connect(&server, HOST, Some(&new)).ok();
    scratch.connect(&server, HOST, Some(&old)).fails(1, &["authenti"]);
    blocks.write(1, &[7; 512]).expect("the disk stays connected");
    assert_eq!(scratch.controllers(), connected, "a controller was closed");
    // A missing or world-readable file must change nothing.
    std::fs::rename(&key, scratch.path("away")).unwrap();
    again().fails(1, &["cannot read the key file"]);
    std::fs::rename(scratch.path("away"), &key).unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    again().fails(1, &["other users have access", "chmod 600"]);
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    scratch.connect(&server, HOST, None).fails(1, &["--dhchap-secret"]);
    assert_eq!(scratch.controllers(), connected);
    // None of the host's earlier secrets stays valid, so the target disconnects the host.
    put_together(&[&old], &key);
    again().ok();
    assert!(!scratch.controllers().contains(&connected[0]));
    server.stop();
}

fn configuration(scratch: &Scratch, hosts: &str) -> String {
    let text = format!(
        "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n{hosts}\n\
         [[subsystems.namespaces]]\npath = \"mem:1MiB\"\n"
    );
    scratch.file("farblock.toml", text.as_bytes())
}

#[test]
fn a_configuration_with_keys_is_reloaded_and_persisted() {
    let scratch = Scratch::new();
    let [key, other] = scratch.keys(["host.key", "other.key"], &[]);
    let with_key = |host: &str, key: &str| {
        format!("[[subsystems.hosts]]\nnqn = \"{host}\"\ndhchap_key = \"{key}\"\n")
    };
    let path = configuration(&scratch, &format!("allowed_hosts = [\"{OTHER}\"]"));
    let start = || {
        let args = ["serve", "--config", &path, "--persist", "state.json"];
        Server::start(scratch.command(args))
    };
    let server = start();
    scratch.connect(&server, OTHER, None).ok();
    // The file now has a key for the host, so the host's name is no longer enough.
    let both = with_key(HOST, "host.key") + &with_key(OTHER, "other.key");
    configuration(&scratch, &both);
    let changed = scratch.run(["reload"]).ok().out();
    assert!(changed.contains("must authenticate with its key"), "{changed}");
    scratch.connect(&server, OTHER, None).fails(1, &["--dhchap-secret"]);
    scratch.connect(&server, OTHER, Some(&other)).ok();
    scratch.connect(&server, HOST, Some(&key)).ok();
    // The target must refuse a duplicate identifier, and change nothing.
    let ours = "host_id = \"01234567-89ab-cdef-0123-456789abcdef\"\n";
    let twice = with_key(HOST, "host.key") + ours + &with_key(OTHER, "other.key") + ours;
    configuration(&scratch, &twice);
    scratch.run(["reload"]).fails(1, &["host_id", "give each host its own"]);
    configuration(&scratch, &(with_key(HOST, "host.key") + ours + &with_key(OTHER, "other.key")));
    scratch.run(["reload"]).ok();
    scratch.connect(&server, HOST, Some(&key)).fails(1, &["HOSTID", "host_id"]);
    configuration(&scratch, &both);
    scratch.run(["reload"]).ok();
    // SIGHUP makes the target read the key files again.
    put_together(&[&other], &key);
    server.signal("HUP");
    until("the host connects with the new key", || {
        scratch.connect(&server, HOST, Some(&other)).code == Some(0)
    });
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    scratch.run(["reload"]).fails(1, &["farblock.toml", "chmod 600"]);
    scratch.connect(&server, HOST, None).fails(1, &["--dhchap-secret"]);
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    // A restart must restore a host that was added at run time with its key, or not at all.
    let [third] = scratch.keys(["third.key"], &[]);
    scratch.ctl(&["allow-host", NQN, "nqn.2026-11.h:third", "--key", &third]).ok();
    assert!(!std::fs::read_to_string(scratch.path("state.json")).unwrap().contains("DHHC"));
    server.signal("KILL");
    server.wait();
    let server = start();
    scratch.connect(&server, "nqn.2026-11.h:third", Some(&third)).ok();
    scratch.connect(&server, "nqn.2026-11.h:third", None).fails(1, &["--dhchap-secret"]);
    server.stop();
    std::fs::remove_file(&third).unwrap();
    scratch
        .run(["serve", "--config", &path, "--persist", "state.json"])
        .fails(1, &["h:third", "cannot read the key file"]);
}

#[test]
fn authentication_demands_on_a_host_are_reported_and_persisted() {
    let scratch = Scratch::new();
    let [key, target] = scratch.keys(["host.key", "target.key"], &[]);
    let server = serve(&scratch, &key, &[]);
    let allow = |more: &[&str]| scratch.ctl(&[&["allow-host", NQN, HOST], more].concat());
    allow(&["--demand", "mutual"]).fails(1, &["dhchap_ctrl_key", "remove the demand first"]);
    let said =
        allow(&["--controller-key", "target.key", "--key", "host.key", "--demand", "mutual"]);
    assert!(said.ok().out().contains("must request mutual authentication"));
    let connect = |more: &[&str]| {
        let url = format!("{}&hostnqn={HOST}", server.url(1));
        scratch.run([&["id", &url, "--dhchap-secret", &key][..], more].concat())
    };
    connect(&[]).fails(1, &["authentication"]);
    connect(&["--dhchap-ctrl-secret", &target]).ok();
    // Leaving out options must remove neither the demand nor the key.
    allow(&[]).ok();
    connect(&[]).fails(1, &["authentication"]);
    allow(&["--no-key"]).fails(1, &["dhchap_key", "remove the demand first"]);
    allow(&["--demand", "concat"]).ok();
    connect(&[]).fails(1, &["--concat"]);
    connect(&["--concat"]).ok();
    allow(&["--demand", "none"]).ok();
    connect(&[]).ok();
}
