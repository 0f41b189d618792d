//! What is logged, for whom, and how much of it.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use support::Scratch;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";

/// The target says what its storage did to whom, once; the host says it in a sentence.
#[test]
fn a_failing_disk_is_one_line_on_each_side() {
    let scratch = Scratch::new();
    let server = scratch.serve(["fault:1,mem:8MiB"]);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    let outcome = scratch.run_with(["write", &url], &[1; 4 << 20]);
    outcome.fails_in_a_line(1, &["writing to", "failed"]);
    let outcome = server.stop();
    let lines: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("WARN")).collect();
    let [line, rest @ ..] = &lines[..] else { panic!("nothing is logged: {}", outcome.stderr) };
    for part in [HOST, "namespace=1", "LBA 0", "failed in the target's storage"] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    assert!(rest.iter().all(|line| line.contains("more operations")), "{}", outcome.stderr);
    assert!(rest.len() <= 1, "{}", outcome.stderr);
}

#[test]
fn a_flood_of_strangers_is_some_lines_and_a_number() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    for _ in 0..200 {
        let mut stranger = TcpStream::connect(&server.address).expect("it listens");
        // It may be closed before all of it is taken.
        let _ = stranger.write_all(&[0xff; 128]);
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let stderr = server.stop().stderr;
    assert!(stderr.lines().count() < 30, "{stderr}");
    assert!(stderr.contains("more protocol errors in"), "{stderr}");
}

#[test]
fn the_environment_says_what_is_logged() {
    let scratch = Scratch::new();
    let serve = |level: &str| {
        let mut command = scratch.command(["serve", "--listen", "127.0.0.1:0", "mem:1MiB"]);
        command.env("RUST_LOG", level);
        let server = support::Server::start(command);
        let url = format!("{}&hostnqn={HOST}", server.url(1));
        scratch.run(["read", &url, "-o", "out.bin"]).ok();
        server.stop().stderr
    };
    let stderr = serve("farblock_target=info,error");
    assert!(stderr.contains("connected") && stderr.contains(HOST), "{stderr}");
    assert_eq!(serve("warn"), "");
    assert!(serve("farblock_target=loud").contains("RUST_LOG is of no use"));
}

#[test]
fn another_kind_of_server_is_suspected() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            // What is not a request is not answered.
            let _ = stream.read_exact(&mut [0; 16]);
        }
    });
    let url = format!("nvme+tcp://{address}/nqn.2026-11.org.farblock:disk?ns=1");
    let outcome = scratch.run(["read", &url]);
    outcome.fails_in_a_line(1, &["another kind of server may be listening"]);
}
