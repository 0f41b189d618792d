//! Checks that names chosen by a peer cannot control a terminal, in the log or in output.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use support::{Scratch, Server};

const NQN: &str = "nqn.2026-11.org.farblock:terminal";
/// A name that clears the screen, sets the window's title, clears the screen again with a C1
/// character, and forges a log line.
const HOSTILE: &str = "nqn.2026-11.org.farblock:h\x1b[2J\x1b]0;a\x07\u{9b}2J\r\nWARN forged";

/// Returns the bytes of an ICReq and of a host's Connect command with these names.
fn connect(host: &str, subsystem: &str) -> Vec<u8> {
    let mut sent = vec![0; 128];
    (sent[2], sent[4]) = (128, 128);
    let mut capsule = vec![0; 72 + 1024];
    (capsule[0], capsule[2], capsule[3]) = (4, 72, 72);
    let length = u32::try_from(capsule.len()).expect("a length of 32 bits");
    capsule[4..8].copy_from_slice(&length.to_le_bytes());
    let command = &mut capsule[8..72];
    (command[0], command[1], command[4]) = (0x7f, 0x40, 1);
    command[32..36].copy_from_slice(&1024_u32.to_le_bytes());
    (command[39], command[44]) = (1, 31);
    let data = &mut capsule[72..];
    data[0] = 7;
    data[16..18].copy_from_slice(&[0xff, 0xff]);
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + host.len()].copy_from_slice(host.as_bytes());
    sent.extend(capsule);
    sent
}

/// Connects with these names, and waits for the answer.
fn knock(server: &Server, host: &str, subsystem: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.write_all(&connect(host, subsystem)).expect("the socket accepts the bytes");
    // Read an ICResp and a response capsule, unless the target closes the connection.
    let _ = stream.read_exact(&mut [0; 128 + 24]);
    stream
}

fn is_harmless(text: &str) {
    let commands = |c: &char| c.is_control() && !matches!(c, '\n' | '\t');
    let found: Vec<_> = text.chars().filter(commands).collect();
    assert!(found.is_empty(), "{found:?} in {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("WARN forged")), "{text:?}");
}

#[test]
fn a_hostile_host_name_sends_no_control_characters_to_a_terminal() {
    let scratch = Scratch::new();
    for format in ["text", "journald", "json"] {
        let open = ["-vv", "--log-format", format, "--nqn", NQN, "mem:1MiB"];
        let server = scratch.serve(open);
        let _let_in = knock(&server, HOSTILE, NQN);
        let _unknown = knock(&server, "nqn.2026-11.org.farblock:h", HOSTILE);
        // A target on Windows does not support the status command.
        let asked: &[&[&str]] =
            if cfg!(unix) { &[&["status"], &["status", "--json"]] } else { &[] };
        for options in asked {
            let outcome = scratch.run(*options).ok();
            is_harmless(&outcome.out());
            is_harmless(&outcome.stderr);
        }
        let log = server.stop().stderr;
        assert!(log.contains("nqn.2026-11.org.farblock:h"), "the host is not named: {log}");
        is_harmless(&log);
    }
}

/// The peer answers every request with [`HOSTILE`].
#[test]
fn a_hostile_peer_sends_no_control_characters_to_a_terminal() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 128]);
            let _ = stream.write_all(HOSTILE.as_bytes());
        }
    });
    let url = format!("nvme+tcp://{address}/{NQN}");
    for args in [&["id", &url][..], &["discover", &address.to_string()], &["-vv", "id", &url]] {
        let outcome = scratch.run(args);
        assert_ne!(outcome.code, Some(0), "{args:?}");
        is_harmless(&outcome.out());
        is_harmless(&outcome.stderr);
    }
}
