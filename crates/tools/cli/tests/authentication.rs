//! Hosts that have to prove who they are, from the command line.

mod support;

#[cfg(unix)]
use support::noise;
use support::{Scratch, Server, read};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// A target that knows one host's key and has one of its own.
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

    fn serve(&self, disk: &str, address: &str) -> Server {
        let key = format!("{HOST}={}", self.host);
        let args = ["serve", disk, "--listen", address];
        let keys = ["--host-key", &key, "--controller-key", &self.target];
        let args = args.iter().chain(&keys);
        Server::start(self.scratch.command(args))
    }
}

fn url(server: &Server) -> String {
    format!("{}&hostnqn={HOST}", server.url(1))
}

#[test]
fn keys_are_made_shown_and_checked() {
    let keys = Keys::new();
    let run = |args: &[&str]| keys.scratch.run([&["keys"], args].concat());
    run(&["new", "--output", &keys.host])
        .fails_in_a_line(1, &["there already", "must not be lost"]);
    assert!(run(&["show", &keys.host]).ok().out().contains("32 bytes, used as it is"));
    assert!(run(&["show", &keys.target]).ok().out().contains("48 bytes, transformed with SHA-384"));
    let secret = run(&["show", "--secret", &keys.host]).ok().out();
    assert!(secret.starts_with("DHHC-1:00:") && secret.trim_end().ends_with(':'), "{secret}");
    assert_eq!(String::from_utf8(read(&keys.host)).unwrap(), secret);
    run(&["check", &keys.host]).ok();
    // One letter is another: the checksum tells.
    let wrong = secret.replacen("00:", "00:A", 1);
    std::fs::write(&keys.host, &wrong).unwrap();
    let outcome = run(&["check", &keys.host]).fails_in_a_line(1, &["host.key, line 1"]);
    assert!(!outcome.stderr.contains(wrong.trim_end()), "{}", outcome.stderr);
    run(&["check", "nowhere"]).fails_in_a_line(1, &["cannot read the key file"]);
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let keys = Keys::new();
    std::fs::set_permissions(&keys.host, PermissionsExt::from_mode(0o640)).unwrap();
    let key = format!("{HOST}={}", keys.host);
    for args in [&["keys", "check", &keys.host][..], &["serve", "mem:1MiB", "--host-key", &key]] {
        keys.scratch.run(args).fails_in_a_line(1, &["open to others", "chmod 600"]);
    }
}

#[test]
fn only_who_has_the_key_gets_in() {
    let keys = Keys::new();
    let server = keys.serve("mem:8MiB", "127.0.0.1:0");
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
    // A target that does not ask is not the one that has the other secret.
    let open = keys.scratch.serve(["mem:8MiB"]);
    let stranger = format!("{}&hostnqn={HOST}", open.url(1));
    keys.scratch
        .run(["id", &stranger, "--dhchap-secret", &keys.host, "--dhchap-ctrl-secret", &keys.target])
        .fails_in_a_line(1, &["authenti"]);
}

#[cfg(unix)]
#[test]
fn a_transfer_outlives_its_target_and_authenticates_again() {
    let keys = Keys::new();
    let data = noise(1, 48 << 20);
    let disk = keys.scratch.file("disk.img", &data);
    let slow = format!("limit:16MiB/s,{disk}");
    let server = keys.serve(&slow, "127.0.0.1:0");
    let address = server.address.clone();
    let source = format!("{}&dhchap-secret={}", url(&server), keys.host);
    let reader = keys.scratch.command(["copy", &source, "out.img"]).spawn().unwrap();
    support::until("it has begun", || {
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
