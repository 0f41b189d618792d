//! A target with TLS, changed while hosts use it.
#![cfg(unix)]

mod support;

use support::{Outcome, Reserved, Scratch, Server};

const NQN: &str = "nqn.2026-11.org.farblock:sealed";
const HOST: &str = "nqn.2026-11.org.farblock:host";
const OTHER: &str = "nqn.2026-11.org.farblock:other";

impl Scratch {
    /// Connects as a host, with the key in a file or none.
    fn connect(&self, server: &Server, host: &str, key: Option<&str>) -> Outcome {
        self.connect_to(&format!("{}&hostnqn={host}", server.url(1)), key)
    }

    fn connect_to(&self, url: &str, key: Option<&str>) -> Outcome {
        let key = key.map(|key| ["--tls-key", key]);
        self.run(["id", url].into_iter().chain(key.into_iter().flatten()))
    }
}

#[test]
fn a_target_with_tls_is_steered() {
    let scratch = Scratch::new();
    let [key, other] = scratch.keys(["host.key", "other.key"], &["--tls"]);
    let given = format!("{HOST}={key}");
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--tls-key", &given]);
    scratch.connect(&server, HOST, Some(&key)).ok();
    // Another host, with its own key; and this one's again, with another file.
    scratch.connect(&server, OTHER, Some(&other)).fails(1, &["does not know the identity"]);
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
    // What is only left out takes nothing away.
    scratch.ctl(&["allow-host", NQN, OTHER]).ok();
    scratch.ctl(&["allow-any-host", NQN, "on"]).fails(1, &["hosts with a key"]);
    scratch.ctl(&["allow-host", NQN, HOST, "--tls-key", secret.trim()]).fails(1, &["a key itself"]);
    // Even a host without a key has to use TLS here, until something else is said.
    scratch.ctl(&["allow-host", NQN, OTHER, "--no-tls-key"]).ok();
    scratch.connect(&server, OTHER, None).fails(1, &["TLS"]);
    let address = status["listening"][0].as_str().unwrap();
    scratch.ctl(&["set-tls", address, "allowed"]).ok();
    scratch.connect(&server, OTHER, None).ok();
    scratch.connect(&server, HOST, None).fails(1, &["does not allow this host"]);
    // A new listener is as strict as any, if nothing is said.
    scratch.ctl(&["set-tls", address, "required"]).ok();
    let reserved = Reserved::at([127, 0, 0, 3]);
    let said = scratch.ctl(&["add-listener", &reserved.address.to_string()]).ok().out();
    assert!(said.contains("everybody has to use TLS"), "{said}");
    scratch.ctl(&["set-tls", address, "plain"]).ok();
    scratch.connect(&server, HOST, Some(&key)).fails(1, &["TLS"]);
    server.stop();
}

/// What is printed at start is what works.
#[test]
fn what_requires_tls_is_discovered_with_the_key() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["tls.key"], &["--tls"]);
    let host = scratch.run(["whoami", "--json"]).ok().json()["host_nqn"].clone();
    let given = format!("{}={key}", host.as_str().expect("a name"));
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--tls-key", &given]);
    let status = scratch.run(["status", "--json"]).ok().json();
    let address = status["listening"][0].as_str().expect("an address");
    scratch.run(["discover", address]).fails(1, &["--tls-key"]);
    let found = scratch.run(["discover", address, "--tls-key", &key]).ok().out();
    assert!(found.contains("required") && found.contains(" --tls-key '"), "{found}");
    let json = scratch.run(["discover", address, "--tls-key", &key, "--json"]).ok().json();
    assert_eq!(json["entries"][0]["tls_required"], true, "{json}");
    server.stop();
}

#[test]
fn a_configuration_says_who_uses_tls_where() {
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
    // Both keys are good, then the new one alone.
    let both = [&next, &key].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    std::fs::write(&key, &both).unwrap();
    let said = scratch.run(["reload"]).ok().out();
    assert!(said.contains("another secret in its key file"), "{said}");
    scratch.connect_to(&strict(HOST), Some(&next)).ok();
    let old = scratch.text("old.key");
    scratch.run(["keys", "new", "--tls", "--output", &old]).ok();
    std::fs::write(&old, both.lines().nth(1).unwrap()).unwrap();
    scratch.connect_to(&strict(HOST), Some(&old)).ok();
    std::fs::write(&key, both.lines().next().unwrap()).unwrap();
    scratch.run(["reload"]).ok();
    scratch.connect_to(&strict(HOST), Some(&old)).fails(1, &["another key"]);
    // What cannot be read changes nothing.
    configuration("allowed", "tls_key = \"nowhere.key\"");
    scratch.run(["reload"]).fails(1, &["nowhere.key"]);
    scratch.connect_to(&strict(HOST), Some(&next)).ok();
    configuration("required", "tls_key = \"host.key\"");
    let said = scratch.run(["reload"]).ok().out();
    assert!(said.contains("127.0.0.2:") && said.contains("everybody has to use TLS"), "{said}");
    scratch.connect_to(&open(OTHER), None).fails(1, &["TLS"]);
    server.stop();
    for (host, part) in [
        (String::new(), "allowed_hosts"),
        ("tls_key = \"farblock.toml\"".to_owned(), "open to others"),
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
fn a_listener_that_requires_tls_is_not_warned_of() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["host.key"], &["--tls"]);
    let given = format!("{HOST}={key}");
    let told = |args: &[&str]| {
        let server = scratch.serve([&["--nqn", NQN, "mem:1MiB"], args].concat());
        let is_told = scratch.run(["status"]).ok().out().contains("warning: whoever");
        server.stop();
        is_told
    };
    assert!(!told(&["--listen", "0.0.0.0:0", "--tls-key", &given]));
    assert!(told(&["--listen", "0.0.0.0:0", "--tls-key", &given, "--tls", "allowed"]));
    scratch.run(["serve", "mem:1MiB", "--tls", "required"]).fails(2, &["--tls-key NQN=FILE"]);
}
