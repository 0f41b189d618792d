//! Checks that commands replace files atomically. At every moment the path has either the old or
//! the new file, complete.

mod support;

#[cfg(unix)]
use support::noise;
use support::{Scratch, read};

/// Returns the files in the test's folder except for `names`.
fn others(scratch: &Scratch, names: &[&str]) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path(".")).unwrap();
    let all = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    all.filter(|name| !names.contains(&name.as_str())).collect()
}

#[test]
fn a_failed_copy_leaves_the_old_file() {
    let scratch = Scratch::new();
    let old = scratch.file("old", b"precious\n");
    scratch
        .run(["copy", "fault:10,mem:64MiB", &old])
        .fails_in_a_line(1, &["its storage cannot be read"]);
    assert_eq!(read(&old), b"precious\n");
    scratch.run(["copy", "fault:10,mem:64MiB", "new"]).fails(1, &["its storage cannot be read"]);
    scratch
        .run_with(["copy", "-", &old, "--length", "9"], b"short")
        .fails_in_a_line(1, &["5 bytes of 9", "old is unchanged"]);
    assert_eq!(read(&old), b"precious\n");
    assert_eq!(others(&scratch, &["old"]), [""; 0], "temporary files are left");
}

#[cfg(unix)]
#[test]
fn the_next_copy_cleans_up_after_a_killed_one() {
    let scratch = Scratch::new();
    let old = scratch.file("old", b"precious\n");
    let part = scratch.path(".old.farblock-part");
    let mut child = scratch.command(["copy", "limit:8MiB/s,mem:64MiB", &old]).spawn().unwrap();
    support::until("the transfer has started", || part.exists());
    child.kill().unwrap();
    support::wait(child);
    assert_eq!(read(&old), b"precious\n");
    let new = scratch.file("in", &noise(1, 3 << 20));
    scratch.run(["copy", &new, &old]).ok();
    assert!(read(&old) == read(&new));
    assert_eq!(others(&scratch, &["in", "old"]), [""; 0], "temporary files are left");
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_permissions_and_its_links() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let old = scratch.file("old", b"precious\n");
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("old", scratch.path("link")).unwrap();
    scratch.run(["copy", "mem:1MiB", "link"]).ok();
    assert!(std::fs::symlink_metadata(scratch.path("link")).unwrap().is_symlink());
    let metadata = std::fs::metadata(&old).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (1 << 20, 0o640));
}

#[cfg(unix)]
#[test]
fn copy_writes_to_special_files_in_place_and_reports_it() {
    let scratch = Scratch::new();
    let copied = scratch.run(["copy", "mem:1MiB", "/dev/null"]).ok();
    assert!(
        copied.stderr.contains("/dev/null is not a regular file: farblock writes to it in place")
    );
    let quiet = scratch.run(["copy", "mem:1MiB", "/dev/null", "--quiet"]).ok();
    assert_eq!(quiet.stderr, "");
}

#[cfg(unix)]
#[test]
fn a_report_that_cannot_be_written_leaves_the_old_report() {
    let scratch = Scratch::new();
    for option in ["--json", "--html"] {
        let old = scratch.file("report", b"precious\n");
        let bench = format!(
            "ulimit -f 0; exec {} bench mem:16MiB --rw read --runtime 0.5 --ramp-time 0 {option} \
             {old}",
            env!("CARGO_BIN_EXE_farblock")
        );
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &bench]);
        scratch.prepare(&mut shell);
        support::finish(shell, b"").fails(1, &["report", "is unchanged"]);
        assert_eq!(read(&old), b"precious\n");
        assert_eq!(others(&scratch, &["report"]), [""; 0], "temporary files are left");
    }
}

/// Checks that farblock reports a new identity once, even if it has already derived the default NQN
/// from this identity.
#[cfg(target_os = "linux")]
#[test]
fn serve_reports_a_new_identity_once() {
    let scratch = Scratch::new();
    let disk = scratch.file("a.img", &[7; 4096]);
    for nqn in [&[][..], &["--nqn", "nqn.2026-11.org.example:a"]] {
        let copy = scratch.text("copy.img");
        let _ = std::fs::remove_file(&copy);
        std::fs::copy(&disk, &copy).unwrap();
        let said = |stderr: &str| stderr.matches("now has a stored identity").count();
        let serve = || scratch.serve([&[copy.as_str()], nqn].concat()).stop().stderr;
        // farblock never reports a new identity on a file system without extended attributes.
        let first = serve();
        assert!(said(&first) == 1 || !keeps_attributes(&copy), "{nqn:?}: {first}");
        assert_eq!(said(&serve()), 0, "{nqn:?}: the identity is new again");
    }
}

#[cfg(target_os = "linux")]
fn keeps_attributes(path: &str) -> bool {
    let name = "user.farblock.identity";
    rustix::fs::getxattr(path, name, &mut [0_u8; 128][..]).is_ok()
}

/// Returns the UUIDs of a target's namespaces, and the target's NQN.
fn identities(scratch: &Scratch, disks: &[&str]) -> (Vec<String>, String) {
    let server = scratch.serve(disks);
    let id = scratch.run(["id", &server.subsystem_url(), "--json"]).ok().json();
    let namespaces = id["namespaces"].as_array().unwrap();
    let uuids = namespaces.iter().map(|one| one["uuid"].as_str().unwrap().to_owned()).collect();
    let nqn = server.nqn.clone();
    server.stop();
    (uuids, nqn)
}

#[test]
fn the_identity_of_a_disk_follows_the_file_and_not_the_path() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.disk("a.img", 1 << 20), scratch.disk("b.img", 1 << 20));
    let (first, nqn) = identities(&scratch, &[&a]);
    let (both, with_another) = identities(&scratch, &[&a, &b]);
    assert_eq!(with_another, nqn, "another disk changed the NQN");
    assert_eq!(both[0], first[0]);
    assert_ne!(both[0], both[1]);

    let moved = scratch.text("moved.img");
    std::fs::rename(&a, &moved).unwrap();
    assert_eq!(
        identities(&scratch, &[&moved]),
        (first.clone(), nqn.clone()),
        "the moved file has another identity"
    );
    scratch.disk("a.img", 1 << 20);
    let (other, other_nqn) = identities(&scratch, &[&a]);
    assert_ne!(other, first, "another disk at the same path has the same UUID");
    assert_ne!(other_nqn, nqn);
    scratch.run(["copy", &b, &moved]).ok();
    assert_ne!(identities(&scratch, &[&moved]).0, first, "a replaced file has the old UUID");
    let slow = format!("delay:1us,{b}");
    assert_eq!(identities(&scratch, &[&slow]).0[0], both[1], "a delay changed the UUID");
}
