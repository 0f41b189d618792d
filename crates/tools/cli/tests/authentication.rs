//! Tests of command lines for hosts that must authenticate.

mod support;

use std::process::Command;
#[cfg(unix)]
use support::noise;
use support::{Scratch, Server, read, until};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// The key of a host that a target allows, and the key of the target.
struct Keys {
    scratch: Scratch,
    host: String,
    target: String,
}

impl Keys {
    fn new() -> Keys {
        let scratch = Scratch::new();
        let (host, target) = (scratch.text("host.key"), scratch.text("target.key"));
        scratch.run(["keys", "new", "--output", &host]).ok();
        scratch.run(["keys", "new", "--hash", "sha384", "--output", &target]).ok();
        Keys { scratch, host, target }
    }

    #[cfg(unix)]
    fn serve(&self, disk: &str, address: &str) -> Server {
        Server::start(self.served(disk, address))
    }

    fn served(&self, disk: &str, address: &str) -> Command {
        let key = format!("{HOST}={}", self.host);
        let args = ["serve", disk, "--listen", address];
        let keys = ["--host-key", &key, "--controller-key", &self.target];
        let args = args.iter().chain(&keys);
        self.scratch.command(args)
    }
}

fn url(server: &Server) -> String {
    format!("{}&hostnqn={HOST}", server.url(1))
}

#[test]
fn the_keys_command_creates_shows_and_checks_dhchap_keys() {
    let keys = Keys::new();
    let run = |args: &[&str]| keys.scratch.run([&["keys"], args].concat());
    run(&["new", "--output", &keys.host])
        .fails_in_a_line(1, &["exists already", "its key may be in use"]);
    assert!(
        run(&["show", &keys.host]).ok().out().contains("32 bytes, used without a transformation")
    );
    assert!(run(&["show", &keys.target]).ok().out().contains("48 bytes, transformed with SHA-384"));
    let secret = run(&["show", "--secret", &keys.host]).ok().out();
    assert!(secret.starts_with("DHHC-1:00:") && secret.trim_end().ends_with(':'), "{secret}");
    assert_eq!(String::from_utf8(read(&keys.host)).unwrap(), secret);
    run(&["check", &keys.host]).ok();
    // The checksum detects a changed letter.
    let wrong = secret.replacen("00:", "00:A", 1);
    std::fs::write(&keys.host, &wrong).unwrap();
    let outcome = run(&["check", &keys.host]).fails_in_a_line(1, &["host.key, line 1"]);
    assert!(!outcome.stderr.contains(wrong.trim_end()), "{}", outcome.stderr);
    run(&["check", "nowhere"]).fails_in_a_line(1, &["cannot read the key file"]);
}

#[test]
fn keys_pair_prints_the_options_for_both_ends() {
    let scratch = Scratch::new();
    let subsystem = "nqn.2026-11.org.example:disk";
    for (file, more, parts) in [
        ("one's.key", &[][..], ["--host-key", "--dhchap-secret", "dhchap_key", "--dhchap-key"]),
        ("tls.key", &["--tls"][..], ["--tls-key", "check-tls-key", "addr_tsas", "--psk tls0"]),
    ] {
        let args = [&["keys", "pair", HOST, subsystem, file], more].concat();
        let said = scratch.run(&args).ok().out();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(said.contains(HOST) && said.contains(subsystem), "{said}");
        let secret = scratch.run(["keys", "show", "--secret", file]).ok().out();
        assert!(!said.contains(secret.trim()), "{said}");
        // The second run finds the same key, and the commands that it prints work.
        assert_eq!(scratch.run(&args).ok().out(), said);
        let path = scratch.text(file).replace('\'', "'\\''");
        assert!(said.contains(&path), "{path}: {said}");
        assert_eq!(said.contains("'one'\\''s.key'"), file == "one's.key", "{said}");
        let served = said.lines().find(|line| line.contains("farblock serve")).unwrap();
        assert!(served.contains(&format!("--nqn {subsystem}")), "{said}");
    }
    // Without a file name, `keys pair` creates a file, and never overwrites an existing one.
    let unnamed = ["keys", "pair", HOST, subsystem];
    assert!(scratch.run(unnamed).ok().out().contains("--host-key"));
    scratch.run(["keys", "check", "host.key"]).ok();
    scratch.run(unnamed).fails_in_a_line(1, &["host.key exists already", "to use it, name it"]);
    let other = Scratch::new();
    let said = other.run([&unnamed[..], &["--tls"]].concat()).ok().out();
    assert!(said.contains("--tls-key") && other.path("tls.key").exists(), "{said}");
    std::fs::write(scratch.path("odd.key"), "odd").unwrap();
    scratch.run(["keys", "pair", HOST, subsystem, "odd.key"]).fails_in_a_line(1, &["odd.key"]);
}

#[test]
fn the_keys_command_creates_shows_checks_and_derives_tls_keys() {
    let scratch = Scratch::new();
    let run = |args: &[&str]| scratch.run([&["keys"], args].concat());
    let key = scratch.text("tls.key");
    run(&["new", "--tls", "--hash", "sha384", "--output", &key]).ok();
    assert!(run(&["show", &key]).ok().out().contains("TLS key for TLS_AES_256_GCM_SHA384"));
    let text = run(&["show", "--secret", &key]).ok().out();
    assert!(text.starts_with("NVMeTLSkey-1:02:"), "{text}");
    run(&["check", &key]).ok();
    let names = ["--host", HOST, "--subsystem", "nqn.2026-11.org.example:disk"];
    let derived = run(&[&["derive", &key], &names[..]].concat()).ok().out();
    let named = format!("NVMe0R02 {HOST} nqn.2026-11.org.example:disk  (as specified)");
    assert!(derived.lines().count() == 4 && derived.contains(&named), "{derived}");
    let wrong = text.replacen("02:", "02:A", 1);
    std::fs::write(&key, &wrong).unwrap();
    let outcome = run(&["check", &key]).fails_in_a_line(1, &["tls.key, line 1", "key for TLS"]);
    assert!(!outcome.stderr.contains(wrong.trim_end()), "{}", outcome.stderr);
    run(&["new", "--tls", "--hash", "sha512"]).fails_in_a_line(2, &["sha256 or sha384"]);
}

#[test]
fn a_target_with_a_tls_key_accepts_only_hosts_with_that_key() {
    let scratch = Scratch::new();
    let (key, other) = (scratch.text("tls.key"), scratch.text("other.key"));
    for file in [&key, &other] {
        scratch.run(["keys", "new", "--tls", "--output", file]).ok();
    }
    let given = format!("{HOST}={key}");
    let serve = ["serve", "mem:8MiB", "--listen", "127.0.0.1:0", "--tls-key", &given];
    let server = Server::start(scratch.command(serve));
    assert!(server.said.contains("--tls-key tls.key"), "{}", server.said);
    let url = url(&server);
    let id = |args: &[&str]| scratch.run([&["id", &url], args].concat());
    id(&["--tls-key", &key]).ok();
    id(&[]).fails_in_a_line(1, &["TLS", "--tls-key"]);
    id(&["--tls-key", &other]).fails_in_a_line(1, &["refuses TLS", "keys derive"]);
    let stranger = server.url(1);
    scratch.run(["id", &stranger, "--tls-key", &key]).fails_in_a_line(1, &["refuses TLS"]);
    let source = format!("{url}&tls-key={key}");
    scratch.run(["read", &source, "--length", "4MiB", "--output", "disk.img"]).ok();
    // A host that may connect without a key can also use its key.
    let serve = [&serve[..], &["--tls", "allowed"]].concat();
    let server = Server::start(scratch.command(serve));
    scratch.run(["id", &server.url(1)]).ok();
    scratch.run(["id", &format!("{}&hostnqn={HOST}", server.url(1))]).fails_in_a_line(1, &[HOST]);
    server.stop();
    // If the host has a TLS key but the target does not, both ends report the mismatch.
    let server = scratch.serve(["mem:8MiB"]);
    let outcome = scratch.run(["id", &server.url(1), "--tls-key", &key]);
    outcome.fails_in_a_line(1, &["answers without TLS", "leave --tls-key out"]);
    let log = server.stop().stderr;
    assert!(log.contains("started a TLS handshake: this listener has no TLS"), "{log}");
}

#[cfg(unix)]
#[test]
fn a_key_file_that_other_users_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let keys = Keys::new();
    std::fs::set_permissions(&keys.host, PermissionsExt::from_mode(0o640)).unwrap();
    let key = format!("{HOST}={}", keys.host);
    for args in [&["keys", "check", &keys.host][..], &["serve", "mem:1MiB", "--host-key", &key]] {
        keys.scratch.run(args).fails_in_a_line(1, &["other users have access", "chmod 600"]);
    }
}

#[test]
fn only_a_host_with_the_right_secret_connects() {
    let keys = Keys::new();
    let log = keys.scratch.path("log");
    let mut served = keys.served("mem:8MiB", "127.0.0.1:0");
    served.stderr(std::fs::File::create(&log).unwrap());
    let server = Server::start(served);
    assert!(server.said.contains(&format!("{HOST} (with its key)")), "{}", server.said);
    assert!(server.said.contains("--dhchap-secret"), "{}", server.said);
    let url = url(&server);
    let id = |args: &[&str]| keys.scratch.run([&["id", &url], args].concat());
    id(&[]).fails_in_a_line(1, &["--dhchap-secret"]);
    id(&["--dhchap-secret", &keys.target]).fails_in_a_line(1, &["authenti"]);
    id(&["--dhchap-secret", &keys.host]).ok();
    let both = ["--dhchap-secret", &keys.host, "--dhchap-ctrl-secret"];
    id(&[&both[..], &[&keys.target]].concat()).ok();
    id(&[&both[..], &[&keys.host]].concat()).fails_in_a_line(1, &["authenti"]);
    // A target without authentication cannot prove that it has the target's secret.
    let open = keys.scratch.serve(["mem:8MiB"]);
    let stranger = format!("{}&hostnqn={HOST}", open.url(1));
    keys.scratch
        .run(["id", &stranger, "--dhchap-secret", &keys.host, "--dhchap-ctrl-secret", &keys.target])
        .fails_in_a_line(1, &["authenti"]);
    // The target's log has one line for each host that failed to authenticate.
    let log = || String::from_utf8(read(&log)).unwrap();
    let expected = [
        "disconnected when this target requested authentication",
        "does not match any secret",
        "the host ended the authentication",
    ];
    until("each part is logged", || expected.iter().all(|part| log().contains(part)));
    server.stop();
    let log = log();
    let is_of_one = |line: &&str| line.contains("authenticat") || line.contains("refused");
    assert_eq!(log.lines().filter(is_of_one).count(), expected.len(), "{log}");
}

/// Sets the hash functions and groups with options, in a URL, and in the file of an attachment.
#[test]
fn a_host_offers_only_the_given_groups_and_hashes() {
    let keys = Keys::new();
    let config = format!(
        "[[subsystems]]\nnqn = \"nqn.2026-11.org.farblock:lists\"\n\
         namespaces = [{{ path = \"mem:1MiB\" }}]\n\
         [[subsystems.hosts]]\nnqn = \"{HOST}\"\ndhchap_key = '{}'\n\
         dhchap_hashes = [\"sha256\", \"sha384\"]\ndhchap_dhgroups = [\"null\", \"ffdhe2048\"]\n",
        keys.host
    );
    let config = keys.scratch.file("target.toml", config.as_bytes());
    let server = keys.scratch.serve(["--config", &config]);
    let url = url(&server);
    let id = |url: &str, args: &[&str]| {
        keys.scratch.run([&["id", url, "--dhchap-secret", &keys.host], args].concat())
    };
    id(&url, &[]).ok();
    id(&url, &["--dhchap-hashes", "sha384,sha512", "--dhchap-dhgroups", "ffdhe2048"]).ok();
    id(&format!("{url}&dhchap-hashes=sha384&dhchap-dhgroups=ffdhe2048,ffdhe8192"), &[]).ok();
    let sentence = ["Diffie-Hellman groups: ffdhe3072"];
    id(&url, &["--dhchap-dhgroups", "ffdhe3072"]).fails_in_a_line(1, &sentence);
    id(&format!("{url}&dhchap-dhgroups=ffdhe3072"), &[]).fails_in_a_line(1, &sentence);
    let none = ["--dhchap-hashes", "sha512", "--concat"];
    id(&url, &none).fails_in_a_line(1, &["cannot generate a TLS key", "--dhchap-hashes"]);
    id(&url, &["--dhchap-hashes", "md5"]).fails(2, &["md5", "use sha256, sha384 or sha512"]);
    #[cfg(target_os = "linux")]
    {
        let text = format!(
            "urls = [\"{url}\"]\nas = \"nbd\"\nno-device = true\ndhchap-secret = \"{}\"\n\
             dhchap-hashes = [\"sha384\"]\ndhchap-dhgroups = [\"ffdhe3072\"]\n",
            keys.host
        );
        let file = keys.scratch.file("disk.toml", text.as_bytes());
        let folder = keys.scratch.text("run");
        let attach = ["attach", "--config", &file, "--runtime-dir", &folder];
        keys.scratch.run(attach).fails_in_a_line(1, &sentence);
        let other = [&attach[..], &["--dhchap-dhgroups", "ffdhe2048"]].concat();
        keys.scratch.run(other).ok();
        keys.scratch.run(["detach", "--all", "--runtime-dir", &folder]).ok();
        let kernel = ["--as", "nvme", "--dhchap-hashes", "sha512", "--runtime-dir", &folder];
        let kernel = [&["attach", &url], &kernel[..]].concat();
        keys.scratch.run(kernel).fails(2, &["--as nvme does not support dhchap-hashes"]);
    }
}

#[cfg(unix)]
#[test]
fn a_transfer_reauthenticates_after_its_target_restarts() {
    let keys = Keys::new();
    let data = noise(1, 48 << 20);
    let disk = keys.scratch.file("disk.img", &data);
    let slow = format!("limit:16MiB/s,{disk}");
    let server = keys.serve(&slow, "127.0.0.1:0");
    let address = server.address.clone();
    let source = format!("{}&dhchap-secret={}", url(&server), keys.host);
    let reader = keys.scratch.command(["copy", &source, "out.img"]).spawn().unwrap();
    support::until("the transfer has started", || {
        let part = std::fs::read(keys.scratch.path(".out.img.farblock-part"));
        part.is_ok_and(|part| part.starts_with(&data[..512]))
    });
    server.signal("KILL");
    server.wait();
    let _again = keys.serve(&slow, &address);
    let output = support::wait(reader);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(read(keys.scratch.path("out.img")) == data);
}
