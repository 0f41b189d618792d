//! Tests initiators that break the protocol. The target must answer as the protocol requires or
//! close the connection, without disturbing another session.

mod support;

use farblock_iscsi::limits;
use farblock_random::Random;
use farblock_testkit::eventually;
use std::io::Write;
use support::*;

const PROTOCOL_ERROR: u8 = 4;

#[test]
fn invalid_bytes_instead_of_a_login_close_the_connection() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 512));
        let mut good = Client::new(&server, &Wishes::default());
        for first in [[0xff; 48], [0; 48], header(0x01, 0x80), header(0x05, 0x80)] {
            let mut client = Client::raw(&server);
            client.send_bytes(&first);
            client.expect_end();
        }
        // One login is longer than the protocol allows, and another never ends.
        let mut client = Client::raw(&server);
        let mut long = header(0x43, 0x87);
        long[5..8].fill(0xff);
        client.send_bytes(&long);
        client.expect_end();
        let mut client = Client::raw(&server);
        let mut status = [0, 0];
        for _ in 0..=limits::MAX_LOGIN_REQUESTS {
            client.send(header(0x43, 0x44), b"a=b\0");
            status = client.take().bhs[36..38].try_into().expect("two bytes");
            if status != [0, 0] {
                break;
            }
        }
        assert_eq!(status, [2, 0]);
        client.expect_end();
        assert_eq!(good.ping(b"still here"), b"still here");
    }
}

/// A protocol violation: its name, the function that commits it, and the reason code of the
/// target's REJECT. `None` if the target closes the connection without a REJECT.
type Fault = (&'static str, fn(&mut Client), Option<u8>);

const FAULTS: &[Fault] = &[
    (
        "too much data with a command",
        |client| {
            client.command(&cdb16(0x8a, 0, 0, 200), WRITE | FINAL, 102_400, &[0; 70_000]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "more data than is announced",
        |client| {
            client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 100, &[0; 512]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "data with a read",
        |client| {
            client.command(&cdb16(0x88, 0, 0, 1), READ | FINAL, 512, &[0; 512]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "unsolicited data that the login did not allow",
        |client| {
            client.command(&cdb16(0x8a, 0, 0, 8), WRITE, 4096, &[0; 512]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "the tag of a task in progress",
        |client| {
            client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
            assert_eq!(client.take().opcode(), 0x31);
            client.tag -= 1;
            client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "a command is missing",
        |client| {
            client.cmd_sn += 1;
            client.command(&[0; 6], FINAL, 0, &[]);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "data for another transfer",
        |client| {
            let tag = client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
            let transfer = client.take().word(20);
            client.data_out(tag, transfer + 1, (0, 0), &[0; 4096], true);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "less data than the target requested",
        |client| {
            let tag = client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
            let transfer = client.take().word(20);
            client.data_out(tag, transfer, (0, 0), &[0; 512], true);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "more data than the target requested",
        |client| {
            let tag = client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
            let transfer = client.take().word(20);
            client.data_out(tag, transfer, (0, u32::MAX - 100), &[0; 4096], true);
        },
        Some(PROTOCOL_ERROR),
    ),
    (
        "a PDU that is too long",
        |client| {
            let mut bhs = header(0x40, FINAL);
            bhs[5..8].copy_from_slice(&(limits::MAX_DATA_SEGMENT_BYTES + 1).to_be_bytes()[1..]);
            client.send_bytes(&bhs);
        },
        None,
    ),
    ("a login in a session", |client| client.send_login(&[]), Some(PROTOCOL_ERROR)),
    (
        "a text without end",
        |client| {
            for _ in 0..=limits::MAX_TEXT_BYTES / 8192 {
                let mut bhs = header(0x44, 0x40);
                bhs[24..28].copy_from_slice(&client.cmd_sn.to_be_bytes());
                client.send(bhs, &[b'x'; 8192]);
                if client.take().opcode() == 0x3f {
                    return client.send_bytes(&[]);
                }
            }
        },
        None,
    ),
];

#[test]
fn each_protocol_violation_ends_only_its_session() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 512));
        let mut good = Client::new(&server, &Wishes::default());
        for (what, fault, reason) in FAULTS {
            eprintln!("{what}");
            let mut bad = Client::new(&server, &Wishes { isid: [7; 6], ..Wishes::default() });
            fault(&mut bad);
            match reason {
                Some(reason) => bad.expect_reject_and_end(*reason),
                None => bad.expect_end(),
            }
            assert_eq!(good.ping(what.as_bytes()), what.as_bytes());
            assert_eq!(good.read(0, 8, 512), [0; 4096], "{what}: a write was executed");
        }
    }
}

/// The target fails only the command whose data has a gap.
#[test]
fn data_out_of_order_fails_only_its_command() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &Wishes::default());
    for place in [(1, 0), (0, 512)] {
        let tag = client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
        let transfer = client.take().word(20);
        client.data_out(tag, transfer, place, &[1; 512], false);
        client.data_out(tag, transfer, (1, 512), &[1; 3584], true);
        assert_eq!(client.answer(tag, &[]).sense, Some((11, 0x4b00)));
        assert_eq!(client.read(0, 8, 512), [0; 4096]);
    }
}

#[test]
fn wrong_digests_are_detected() {
    let wishes = Wishes { header_digest: true, data_digest: true, ..Wishes::default() };
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &wishes);
    let mut bhs = header(0x40, FINAL);
    client.send_bytes(&bhs);
    client.send_bytes(&[1, 2, 3, 4]);
    client.expect_end();
    let mut client = Client::new(&server, &wishes);
    bhs[7] = 4;
    bhs[16..20].fill(9);
    client.send_bytes(&bhs);
    client.send_bytes(&crc32c::crc32c(&bhs).to_le_bytes());
    client.send_bytes(b"data0000");
    client.expect_reject_and_end(2);
}

/// The target ignores requests whose command numbers are outside of the window.
#[test]
fn commands_outside_the_window_are_dropped() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &Wishes::default());
    let next = client.cmd_sn;
    for number in [next - 1, next + limits::MAX_TASKS, next.wrapping_add(1 << 31)] {
        client.cmd_sn = number;
        client.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[1; 512]);
        client.cmd_sn = next;
        assert_eq!(client.ping(b"nothing else"), b"nothing else");
    }
    assert_eq!(client.read(0, 1, 512), [0; 512]);
}

/// Immediate commands have their own limit, apart from the command window.
#[test]
fn the_number_of_immediate_commands_is_limited() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &Wishes::default());
    for number in 0..=limits::MAX_IMMEDIATE_TASKS {
        let mut bhs = header(0x41, WRITE | FINAL);
        bhs[16..20].copy_from_slice(&(1000 + number).to_be_bytes());
        bhs[20..24].copy_from_slice(&4096_u32.to_be_bytes());
        bhs[24..28].copy_from_slice(&client.cmd_sn.to_be_bytes());
        bhs[32..48].copy_from_slice(&cdb16(0x8a, 0, 0, 8));
        client.send(bhs, &[]);
        let answer = client.take();
        if number < limits::MAX_IMMEDIATE_TASKS {
            assert_eq!(
                answer.opcode(),
                0x31,
                "the target does not request the data of command {number}"
            );
        } else {
            assert_eq!((answer.opcode(), answer.bhs[2]), (0x3f, 6));
        }
    }
    assert_eq!(client.ping(b"still here"), b"still here");
}

#[test]
fn the_number_of_connections_is_limited() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut all: Vec<_> = (0..limits::MAX_CONNECTIONS).map(|_| Client::raw(&server)).collect();
    eventually("all connections are open", || server.users() == limits::MAX_CONNECTIONS);
    Client::raw(&server).expect_end();
    all.pop();
    eventually("the target has room for a connection", || server.users() < limits::MAX_CONNECTIONS);
    Client::new(&server, &Wishes::default());
}

/// An initiator sends requests but reads no answers. The target limits the memory for its answers,
/// and still serves other initiators.
#[test]
fn an_initiator_that_reads_no_answers_does_not_delay_others() {
    let server = serve(ENGINES[0], disk("mem:64MiB", 512));
    let mut good = Client::new(&server, &Wishes::default());
    let mut bad = Client::new(&server, &Wishes { isid: [7; 6], ..Wishes::default() });
    for _ in 0..limits::MAX_TASKS {
        bad.command(&cdb16(0x88, 0, 0, 65_536), READ | FINAL, 32 << 20, &[]);
    }
    for _ in 0..100 {
        assert_eq!(good.read(9, 1, 512), [0; 512]);
    }
}

#[test]
fn random_requests_disturb_no_other_session() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 512));
        let mut good = Client::new(&server, &Wishes::default());
        let mut random = Random::new(41);
        for round in 0..300 {
            let wishes = Wishes { isid: [7; 6], initial_r2t: false, ..Wishes::default() };
            let mut bad = Client::new(&server, &wishes);
            for _ in 0..4 {
                let opcode = [0x01, 0x41, 0x05, 0x42, 0x44, 0x40, 0x06][random.below(7) as usize];
                let mut bhs = header(opcode, random.bits() as u8);
                bhs[16..20].copy_from_slice(&(random.below(3) as u32).to_be_bytes());
                bhs[20..24].copy_from_slice(&(random.below(2048) as u32).to_be_bytes());
                bhs[24..28].copy_from_slice(&bad.cmd_sn.to_be_bytes());
                bhs[32..48].copy_from_slice(&cdb16(0x88 | random.bits() as u8, 0, 0, 2));
                for _ in 0..random.below(4) {
                    bhs[random.below(48) as usize] = random.bits() as u8;
                }
                bad.cmd_sn += 1;
                let mut bytes = bhs.to_vec();
                let length = random.index(2000);
                bytes.extend(random.bytes(length));
                if bad.stream.write_all(&bytes).is_err() {
                    break;
                }
            }
            assert_eq!(
                good.ping(b"still here"),
                b"still here",
                "the good session lost its ping in round {round}"
            );
        }
        server.stop(true).expect("no thread panicked");
    }
}
