//! Tests a process without free descriptors. This file has a single test, because the limit applies
//! to the whole process.
#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use farblock_reactor::Event;
use support::{Loop, local_listener};

#[test]
fn accepting_pauses_without_descriptors_and_then_resumes() {
    for event_loop in [Loop::uring(), Some(Loop::portable())].into_iter().flatten() {
        pause_and_resume(event_loop);
    }
}

fn pause_and_resume(mut event_loop: Loop) {
    let socket = local_listener();
    let address = socket.local_addr().unwrap();
    event_loop.reactor.listen(event_loop.task, socket).unwrap();
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    let client = TcpStream::connect(address).unwrap();
    assert!(matches!(event_loop.next(), Event::Accepted { result: Ok(_), .. }));
    let mut hoard: Vec<File> = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                break;
            }
        }
    }
    // Free one descriptor. It is enough for the client's end of a connection, but not for the
    // server's.
    hoard.pop();
    let second = TcpStream::connect(address).unwrap();
    match event_loop.next() {
        Event::Accepted { result: Err(error), .. } => {
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        }
        other => panic!("{other:?}"),
    }
    // In the next second the loop must try to accept a few times, not thousands of times.
    let start = Instant::now();
    let mut errors = 0;
    while start.elapsed() < Duration::from_secs(1) {
        if let Some(event) = event_loop.next_within(Duration::from_millis(50)) {
            assert!(matches!(event, Event::Accepted { result: Err(_), .. }));
            errors += 1;
        }
    }
    assert!((2..20).contains(&errors), "{errors} attempts in a second");
    drop(hoard);
    loop {
        match event_loop.next() {
            Event::Accepted { result: Ok((_, peer)), .. } => {
                assert_eq!(peer, second.local_addr().unwrap());
                break;
            }
            Event::Accepted { result: Err(_), .. } => {}
            other => panic!("{other:?}"),
        }
    }
    drop(client);
}
