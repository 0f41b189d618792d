//! Tests that change the secret of a host while the host uses a disk.

use crate::attached::{Attachments, run};
use crate::support::{Server, noise, until};
use std::fs;

const HOST: &str = "nqn.2026-11.org.farblock:anew-host";
const DISK_BYTES: u64 = 4 << 20;

/// Replaces a key file atomically. Each connecting queue reads the file, so it must never be half
/// written.
fn copy(from: &str, to: &str) {
    let new = format!("{to}.new");
    fs::copy(from, &new).expect("the file is written");
    fs::rename(new, to).expect("the file is renamed");
}

/// Checks that attaching by discovery uses the host parameters of the discovery URL.
#[test]
fn attach_all_uses_the_host_and_secret_of_the_discovery_url() {
    let attachments = Attachments::new();
    let scratch = &attachments.scratch;
    let [key] = scratch.keys(["host.key"], &[]);
    let given = format!("{HOST}={key}");
    let sizes = ["mem:1MiB", "mem:2MiB"];
    let serve = ["serve", sizes[0], sizes[1], "--listen", "127.0.0.1:0", "--host-key", &given];
    let target = Server::start(scratch.command(serve));
    let url = format!("nvme+tcp://{}?hostnqn={HOST}&dhchap-secret={key}", target.address);
    let said = attachments.run(["attach", "--all", &url, "--as", "nbd", "--no-device"]).ok().out();
    assert!(said.contains("fb0: ") && said.contains("fb1: "), "{said}");
    attachments.run(["detach", "--all"]).ok();
    target.stop();
}

#[test]
fn authenticate_proves_the_changed_key_of_a_disk_in_use() {
    let attachments = Attachments::new();
    let scratch = &attachments.scratch;
    let [key, next, wrong] = scratch.keys(["host.key", "next.key", "wrong.key"], &[]);
    let both = [&next, &key]
        .map(|file| fs::read_to_string(file).expect("the key file is readable"))
        .concat();
    let known = scratch.file("known.key", both.as_bytes());
    fs::set_permissions(&known, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("the permissions are set");
    let disk = scratch.disk("disk.img", DISK_BYTES);
    let given = format!("{HOST}={known}");
    let serve = ["serve", &disk, "--listen", "127.0.0.1:0", "--host-key", &given];
    let target = Server::start(scratch.command(serve));
    let url = format!("{}&hostnqn={HOST}&dhchap-secret={key}", target.url(1));
    let exported = attachments.attach(&[&url, "--as", "nbd", "--no-device"]);
    let authenticate = || attachments.run(["authenticate", "fb0"]);
    for secret in [&key, &next] {
        copy(secret, &key);
        let said = authenticate().ok();
        assert!(said.stderr.contains("fb0: nvme+tcp://"), "{}", said.stderr);
        assert!(!said.stderr.contains("host.key"), "{}", said.stderr);
    }
    let input = scratch.file("input", &noise(5, DISK_BYTES as usize));
    run("nbdcopy", &["--flush", "--", &input, &exported]);
    assert_eq!(attachments.status("fb0")["paths"][0]["reconnects"], 0);
    copy(&wrong, &key);
    // The host also reads this file when it connects an I/O queue. If the target refuses the queue
    // before `authenticate` runs, the path is lost for the same reason.
    let why = "authentication failed: the controller refused this host's proof";
    authenticate().fails_in_a_line(1, &["fb0: ", "127.0.0.1:", why, "secret"]);
    attachments.wait_for_state("fb0", "reconnecting");
    authenticate().fails_in_a_line(1, &["fb0 is not connected"]);
    copy(&next, &key);
    attachments.wait_for_state("fb0", "live");
    until("the host authenticates again", || authenticate().code == Some(0));
    attachments.run(["authenticate", "fb9"]).fails_in_a_line(2, &["not attached", "fb0"]);
    attachments.detach("fb0");
    target.stop();
}
