//! Tests a target with many idle connections of unknown peers.
#![cfg(target_os = "linux")]

mod support;

use std::net::TcpStream;
use std::process::Command;
use support::{Scratch, Server};

/// Checks that a host can use a file even if idle peers hold most of a small number of descriptors.
#[test]
fn idle_peers_do_not_use_up_the_descriptors_that_files_need() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    for engine in ["auto", "portable"] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 160 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_farblock")]);
        command.args(["serve", "--engine", engine, "--listen", "127.0.0.1:0", &disk]);
        scratch.prepare(&mut command);
        let server = Server::start(command);
        let strangers: Vec<_> = (0..300).map(|_| TcpStream::connect(&server.address)).collect();
        // The target may refuse the host while peers connect, but must serve an admitted host.
        support::until("the host is admitted", || {
            let outcome = scratch.run(["read", &server.url(1), "-o", "out.bin"]);
            let refused = outcome.stderr.contains("cannot connect");
            assert!(outcome.code == Some(0) || refused, "{}", outcome.stderr);
            !refused
        });
        drop(strangers);
        server.stop();
    }
}
