//! Tests the target with other initiators: libiscsi's test suite, and QEMU. `interop/packages.sh`
//! installs them, on Linux only.
#![cfg(target_os = "linux")]

mod support;

use farblock_random::Random;
use std::process::Command;
use support::*;

/// Runs a program. Returns whether the program succeeded, and its output.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program} does not start ({error}): run interop/packages.sh, which installs it")
    });
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a program that must succeed. Returns its output.
fn succeed(program: &str, arguments: &[&str]) -> String {
    let (succeeded, said) = run(program, arguments);
    assert!(succeeded, "{program} {arguments:?}: {said}");
    said
}

#[test]
fn libiscsi_sees_the_disk() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:32MiB", 4096));
        let portal = format!("iscsi://{}", server.address());
        let listed = succeed("iscsi-ls", &["-s", &portal]);
        assert!(listed.contains(&format!("Target:{NAME} Portal:{},1", server.address())));
        assert!(listed.contains("Lun:0    Type:DIRECT_ACCESS"), "{listed}");
        let inquiry = succeed("iscsi-inq", &[&server.uri()]);
        assert!(inquiry.contains("Vendor:FARBLOCK"), "{inquiry}");
        let capacity = succeed("iscsi-readcapacity16", &[&server.uri()]);
        for line in ["LOGICAL BLOCK ADDRESS:8191", "IN BYTES:4096", "LBPME:1"] {
            assert!(capacity.contains(line), "no {line} in {capacity}");
        }
    }
}

/// Runs iscsi-test-cu. Returns the suites and tests that failed.
fn failures(server: &farblock_iscsi::Server) -> Vec<String> {
    let (_, said) = run("iscsi-test-cu", &["-d", "-n", "--test=ALL", &server.uri()]);
    let run = said.lines().find(|line| line.trim_start().starts_with("tests"));
    let run = run.unwrap_or_else(|| panic!("the test program did not finish: {said}"));
    let count: u32 = run.split_whitespace().nth(2).and_then(|n| n.parse().ok()).expect("a number");
    assert!(count >= 230, "only {count} tests ran");
    assert!(!said.contains("[SKIPPED] COMPAREANDWRITE"), "{said}");
    let failed = said.lines().filter_map(|line| line.strip_suffix(" had failures:"));
    failed.map(str::to_owned).collect()
}

/// Runs all applicable tests of libiscsi. The tests skip features that the unit does not report:
/// ORWRITE, WRITE ATOMIC, PRE-FETCH, EXTENDED COPY, GET LBA STATUS, READ DEFECT DATA, RESERVE (6),
/// SANITIZE, removable media.
#[test]
fn the_test_suite_of_libiscsi_passes() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:256MiB", 512));
        assert_eq!(failures(&server), Vec::<String>::new());
        server.stop(true).expect("the server stops");
    }
    // One test must fail with 4096-byte blocks: it writes 65536 blocks at once, which is more than
    // the unit allows.
    let server = serve(ENGINES[0], disk("mem:512MiB", 4096));
    assert_eq!(failures(&server), ["Suite WriteSame16, Test Unmap"]);
}

#[test]
fn qemu_copies_and_compares() {
    for &engine in ENGINES {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("random");
        std::fs::write(&image, Random::new(5).bytes(32 << 20)).expect("a file");
        let image = image.to_str().expect("a name");
        let server = serve(engine, disk("mem:32MiB", 512));
        let uri = server.uri();
        succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
        let compared = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
        assert!(compared.contains("Images are identical"), "{compared}");
        let zeroes = ["-f", "raw", "-c", "write -z 1M 3M", "-c", "discard 8M 4M", "-c", "flush"];
        let read = ["-c", "read -P 0 1M 3M", "-c", "read 0 32M", uri.as_str()];
        let said = succeed("qemu-io", &[&zeroes[..], &read].concat());
        assert!(!said.contains("failed"), "{said}");
        let (same, _) = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
        assert!(!same, "a mismatching block was written");
    }
}
