//! Tests of the sandbox. Each one runs in a new process of this binary, because a process cannot
//! regain its rights.

use super::*;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

const INSIDE: &str = "FARBLOCK_TEST_INSIDE";

/// Runs `check` in a new process: starts this test binary again with only the test `name`.
fn apart(name: &str, check: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return check();
    }
    let mut again = Command::new(std::env::current_exe().expect("the path of the test is known"));
    again.args(["--exact", "--test-threads=1", "--nocapture", &format!("sandbox::tests::{name}")]);
    let done = again.env(INSIDE, "1").output().expect("the test program starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{why}");
}

/// Performs the operations that a target still needs after it has dropped its rights.
fn lives() {
    let thread = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(1)));
    thread.join().expect("the sandbox allows threads");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("the sandbox allows sockets");
    std::net::TcpStream::connect(listener.local_addr().expect("the socket has an address"))
        .expect("the sandbox allows connections");
    assert!(std::net::ToSocketAddrs::to_socket_addrs("localhost:1").is_ok(), "no name resolution");
    UnixDatagram::unbound().expect("the sandbox allows Unix sockets");
    let traced = std::backtrace::Backtrace::force_capture().to_string();
    assert!(traced.contains("sandbox::tests"), "{traced}");
    assert!(std::panic::catch_unwind(|| panic!("this panic is caught")).is_err());
}

/// Whether this process already has a filter of system calls, for example from a container.
fn is_filtered() -> bool {
    status("Seccomp").is_some_and(|mode| mode != "0")
}

/// Checks the report if the parent process has installed a filter of system calls. That filter may
/// kill this process for an unusual call, so this function makes none.
fn another_filter_stays() {
    enter(None).expect("no path is restricted");
    lives();
    let found = seen();
    assert!(found.sandboxed && found.no_new_privileges && !found.runs_no_program, "{found:?}");
    assert!(!found.capabilities.iter().any(|it| it == "sys_admin"), "{found:?}");
    for part in ["by the parent process, not by farblock", "Landlock was not tried"] {
        assert!(found.lacks.iter().any(|it| it.contains(part)), "{part}: {found:?}");
    }
    holds_keys();
    assert!(!seen().dumpable);
}

#[test]
fn a_filter_of_the_parent_is_not_reported_as_ours() {
    apart("a_filter_of_the_parent_is_not_reported_as_ours", || {
        use seccompiler::{SeccompAction, SeccompFilter};
        let rules = [(libc::SYS_reboot, Vec::new())].into_iter().collect();
        let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
        let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
        let program: seccompiler::BpfProgram =
            filter.expect("the rules are valid").try_into().expect("the filter compiles");
        seccompiler::apply_filter(&program).expect("this kernel has seccomp");
        assert!(is_filtered());
        another_filter_stays();
    });
}

#[test]
fn only_dropped_rights_are_refused() {
    apart("only_dropped_rights_are_refused", || {
        assert!(!seen().sandboxed);
        if is_filtered() {
            return another_filter_stays();
        }
        enter(None).expect("no path is restricted");
        lives();
        let started = Command::new("/bin/true").status().expect_err("other programs are forbidden");
        let refusals = [ErrorKind::Unsupported, ErrorKind::PermissionDenied];
        assert!(refusals.contains(&started.kind()), "{started}");
        let unknown = rustix::net::socket(
            rustix::net::AddressFamily::from_raw(38),
            rustix::net::SocketType::SEQPACKET,
            None,
        );
        assert_eq!(unknown.err(), Some(rustix::io::Errno::NOSYS), "AF_ALG sockets are allowed");
        let root = rustix::process::chroot("/").expect_err("another root is forbidden");
        assert_eq!(root, rustix::io::Errno::NOSYS);
        let found = seen();
        assert!(found.sandboxed && found.no_new_privileges, "{found:?}");
        assert!(found.system_calls_filtered && found.lacks.is_empty(), "{found:?}");
        assert!(!found.capabilities.iter().any(|it| it == "sys_admin"), "{found:?}");
        assert!(found.dumpable, "{found:?}");
        holds_keys();
        assert!(!seen().dumpable);
    });
}

#[test]
fn only_allowed_paths_can_be_opened() {
    let folder = tempfile::tempdir().expect("the folder is created");
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("in/side")).expect("the folder is created");
    std::fs::create_dir_all(path("read")).expect("the folder is created");
    std::fs::write(path("out"), "a").expect("the file is written");
    std::os::unix::fs::symlink(path("out"), path("in/link")).expect("the link is created");
    std::fs::write(path("read/key"), "a").expect("the file is written");
    apart("only_allowed_paths_can_be_opened", || {
        let shared = vec![path("in")];
        // Allow the program's file, which backtraces read.
        let program = std::env::current_exe().expect("the path of the test is known");
        let read =
            vec![path("read"), program.parent().expect("the program is in a folder").to_owned()];
        enter(Some(&Paths { shared, own: Vec::new(), read })).expect("the kernel has Landlock");
        lives();
        std::fs::write(path("in/side/a"), "a").expect("the path is allowed");
        std::fs::rename(path("in/side/a"), path("in/b")).expect("the path is allowed");
        assert_eq!(std::fs::read(path("read/key")).expect("the key may be read"), b"a");
        for (name, done) in [
            ("read", std::fs::read(path("out")).map(|_| ())),
            ("write", std::fs::write(path("new"), "a")),
            ("change", std::fs::write(path("read/key"), "b")),
            ("link", std::fs::read(path("in/link")).map(|_| ())),
        ] {
            let error = done.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
            let said = explained(crate::error::os(&error));
            assert!(said.contains("--allow-path") && said.contains("/in"), "{said}");
        }
    });
}
