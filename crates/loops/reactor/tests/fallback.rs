//! Tests systems that forbid io_uring, as most containers do. A seccomp filter on the test's thread
//! simulates this.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "seccomp")]

use farblock_reactor::{Config, EngineKind, Reactor};

/// Makes `io_uring_setup` fail on this thread with this error.
fn forbid_io_uring(errno: i32) {
    let statement =
        |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        // The system call's number is the first field of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                libc::SYS_io_uring_setup as u32,
            )
        },
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid and outlives the calls.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
}

fn engine(engine: EngineKind) -> std::io::Result<Reactor> {
    Reactor::new(&Config { engine, ..Config::default() })
}

#[test]
fn auto_falls_back_to_portable_if_io_uring_is_forbidden() {
    forbid_io_uring(libc::EPERM);
    let error = engine(EngineKind::Uring).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("io_uring is forbidden"), "{error}");
    assert_eq!(engine(EngineKind::Auto).unwrap().engine(), EngineKind::Portable);
    assert_eq!(engine(EngineKind::Portable).unwrap().engine(), EngineKind::Portable);
}

#[test]
fn auto_falls_back_to_portable_without_io_uring() {
    forbid_io_uring(libc::ENOSYS);
    let error = engine(EngineKind::Uring).unwrap_err();
    assert!(error.to_string().contains("no io_uring"), "{error}");
    assert_eq!(engine(EngineKind::Auto).unwrap().engine(), EngineKind::Portable);
}

#[test]
fn auto_falls_back_to_portable_if_io_uring_is_too_old() {
    forbid_io_uring(libc::EINVAL);
    let error = engine(EngineKind::Uring).unwrap_err();
    assert!(error.to_string().contains("too old"), "{error}");
    assert_eq!(engine(EngineKind::Auto).unwrap().engine(), EngineKind::Portable);
}
