//! Tests of the simulated network, clocks and processes, as code inside the simulation sees them.

use farblock_reactor::os::{self, Socket};
use farblock_reactor::sim::{Side, World, on_machine};
use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_blackhole_delays_the_packets_of_one_direction() {
    let world = World::enter(1);
    let (mut client, mut server) = Socket::simulated_pair();
    let address = client.peer_addr().expect("the server's address");
    world.blackhole(address, Side::Client, 5 * SECOND);
    client.write_all(b"a").expect("a write succeeds during a blackhole");
    server.set_read_timeout(Some(3 * SECOND)).expect("set");
    assert!(server.read(&mut [0]).is_err(), "the byte arrived during the blackhole");
    server.write_all(b"b").expect("the other direction works");
    let before = world.elapsed();
    client.read_exact(&mut [0]).expect("the byte arrives");
    assert!(world.elapsed() - before < SECOND);
    // The lost byte still arrives after its sender has closed the connection.
    drop(client);
    server.set_read_timeout(Some(20 * SECOND)).expect("set");
    let mut byte = [0];
    server.read_exact(&mut byte).expect("the byte is sent again");
    assert_eq!(byte, *b"a");
    assert!(world.elapsed() >= 5 * SECOND, "the byte arrived before the blackhole ended");
    assert_eq!(server.read(&mut byte).ok(), Some(0), "then the stream ends");
}

#[test]
fn a_clock_jump_ends_waits_on_its_machine_only() {
    let world = World::enter(1);
    let (woken, wakes) = channel();
    for machine in [1, 2] {
        let woken = woken.clone();
        let wait = move || {
            os::sleep(10 * SECOND);
            woken.send(machine).expect("a thread waits");
        };
        on_machine(machine, || os::spawn("waits".to_owned(), wait)).expect("a thread");
    }
    os::sleep(SECOND);
    let before = on_machine(1, os::now);
    world.jump(1..2, 8 * SECOND);
    assert_eq!(on_machine(1, os::now) - before, 8 * SECOND);
    assert_eq!(on_machine(2, os::now), before, "the clock of machine 2 jumps, too");
    assert_eq!(os::recv(&wakes), Ok(1));
    assert_eq!(world.elapsed(), 2 * SECOND);
    assert_eq!(os::recv(&wakes), Ok(2));
    assert_eq!(world.elapsed(), 10 * SECOND);
}

#[test]
fn an_ended_process_cannot_connect() {
    let world = World::enter(1);
    let (mut client, mut server) = on_machine(0, Socket::simulated_pair);
    client.write_all(b"a").expect("the byte is sent");
    world.end_process(0, SECOND);
    assert!(client.write_all(b"b").is_err(), "the connection of an ended process still works");
    let mut byte = [0];
    server.read_exact(&mut byte).expect("bytes sent before the fault arrive");
    assert!(server.read_exact(&mut byte).is_err(), "more bytes arrive");
}
