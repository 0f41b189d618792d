//! Tests the iSCSI protocol with an initiator that sends exactly the given bytes.

mod support;

use farblock_block::testing::Elastic;
use farblock_iscsi::{Config, Server};
use farblock_random::Random;
use farblock_reactor::EngineKind;
use farblock_testkit::eventually;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

/// Random writes and reads of all sizes, for each combination of negotiated settings.
#[test]
fn data_transfers_work_with_every_negotiated_setting() {
    for &engine in ENGINES {
        for number in 0..16_u32 {
            let wishes = Wishes {
                header_digest: number & 1 != 0,
                data_digest: number & 2 != 0,
                immediate: number & 4 != 0,
                initial_r2t: number & 8 != 0,
                max_burst: [262_144, 20_000][number as usize % 2],
                first_burst: [65_536, 512][number as usize / 2 % 2],
                receive_bytes: [262_144, 8192, 1000][number as usize % 3],
                max_r2t: 1 + number % 4,
                ..Wishes::default()
            };
            let server = serve(engine, disk("mem:8MiB", 512));
            let mut client = Client::new(&server, &wishes);
            let mut random = Random::new(number.into());
            let mut model = vec![0; 8 << 20];
            for blocks in [1_u32, 7, 128, 300, 2048, 5000, 11] {
                let lba = random.below(16_384 - u64::from(blocks));
                let data = random.bytes(blocks as usize * 512);
                let reply = client.write(lba, &data, 512);
                assert_eq!((reply.status, reply.residual), (0, 0), "{wishes:?}");
                let start = lba as usize * 512;
                model[start..start + data.len()].copy_from_slice(&data);
            }
            assert!(client.read(0, 16_384, 512) == model, "{wishes:?}");
            server.stop(true).expect("the server stops");
        }
    }
}

#[test]
fn every_disk_command_works() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 4096));
        let mut client = Client::new(&server, &Wishes::default());
        let inquiry = client.call(&[0x12, 0, 0, 0, 255, 0], READ, 255, &[]);
        assert_eq!((&inquiry.data[8..16], inquiry.residual), (&b"FARBLOCK"[..], 96 - 255));
        let capacity = client.call(&[0x25], READ, 8, &[]).data;
        assert_eq!(capacity, [0, 0, 0, 255, 0, 0, 16, 0]);
        let pattern = [7; 4096];
        assert_eq!(client.call(&cdb16(0x93, 0, 3, 100), WRITE, 4096, &pattern).status, 0);
        assert!(client.read(3, 100, 4096).iter().all(|&byte| byte == 7));
        assert_eq!(client.read(103, 1, 4096), [0; 4096]);
        // The parameter list has 24 bytes; 16 of them describe one range.
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 50];
        list.resize(24, 0);
        assert_eq!(client.call(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24], WRITE, 24, &list).status, 0);
        // A WRITE SAME without data writes zeroes.
        assert_eq!(client.call(&cdb16(0x93, 1, 53, 10), 0, 0, &[]).status, 0);
        assert_eq!(client.read(53, 10, 4096), [0; 40_960]);
        let compare = |client: &mut Client, flags, blocks, data: &[u8]| {
            client.call(&cdb16(0x8f, flags, 63, blocks), WRITE, data.len() as u32, data).sense
        };
        assert_eq!(compare(&mut client, 2, 2, &[7; 8192]), None);
        assert_eq!(compare(&mut client, 2, 2, &[8; 8192]), Some(MISCOMPARE));
        assert_eq!(compare(&mut client, 6, 40, &pattern), None);
        assert_eq!(compare(&mut client, 6, 41, &pattern), Some(MISCOMPARE));
        assert_eq!(compare(&mut client, 0, 40, &[]), None);
        let verified = client.call(&cdb16(0x8e, 2, 0, 2), WRITE, 8192, &[9; 8192]);
        assert_eq!((verified.status, client.read(0, 2, 4096)), (0, vec![9; 8192]));
        assert_eq!(client.call(&[0x35], 0, 0, &[]).status, 0);
        let beyond = client.call(&cdb16(0x88, 0, 256, 1), READ, 4096, &[]);
        assert_eq!((beyond.sense, beyond.residual), (Some(OUT_OF_RANGE), -4096));
        let huge = client.call(&cdb16(0x8a, 0, u64::MAX, u32::MAX), WRITE, 4096, &[1; 4096]);
        assert_eq!(huge.sense, Some(OUT_OF_RANGE));
        let unknown = client.call(&[0x9c], WRITE, 0, &[]);
        assert_eq!(unknown.sense, Some((5, 0x2000)), "WRITE ATOMIC was not refused");
        assert_eq!(client.ping(b"hello"), b"hello");
        client.log_out();
    }
}

/// The initiator announces less or more data than the command transfers.
#[test]
fn transfers_report_their_residual_counts() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &Wishes::default());
    let short = client.call(&cdb16(0x88, 0, 0, 4), READ, 700, &[]);
    assert_eq!((short.status, short.data.len(), short.residual), (0, 700, 2048 - 700));
    let none = client.call(&cdb16(0x88, 0, 0, 4), 0, 0, &[]);
    assert_eq!((none.status, none.data.len(), none.residual), (0, 0, 2048));
    let part = client.call(&cdb16(0x8a, 0, 0, 2), WRITE, 700, &[5; 700]);
    assert_eq!((part.status, part.residual), (0, 1024 - 700));
    assert_eq!(
        client.read(0, 2, 512),
        [[5; 512], [0; 512]].concat(),
        "a partial block was written"
    );
    let much = client.call(&cdb16(0x8a, 0, 8, 1), WRITE, 2048, &[6; 2048]);
    assert_eq!((much.status, much.residual), (0, 512 - 2048));
    assert_eq!(client.read(8, 2, 512), [[6; 512], [0; 512]].concat());
}

#[test]
fn a_discovery_session_lists_the_target() {
    let server = serve(EngineKind::Portable, disk("mem:1MiB", 512));
    let mut client = Client::raw(&server);
    let text = b"InitiatorName=iqn.2026-11.test:host\0SessionType=Discovery\0";
    client.send(header(0x43, 0x87), text);
    assert_eq!(client.take().bhs[36..38], [0, 0]);
    client.send(header(0x44, FINAL), b"SendTargets=All\0Odd=1\0");
    let answer = client.take();
    let expected =
        format!("TargetName={NAME}\0TargetAddress={},1\0Odd=NotUnderstood\0", server.address());
    assert_eq!((answer.opcode(), answer.data), (0x24, expected.into_bytes()));
    client.log_out();
}

#[test]
fn invalid_logins_are_refused() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    for (text, status) in [
        (&b"InitiatorName=iqn.2026-11.test:host\0TargetName=iqn.other:disk\0"[..], [2, 3]),
        (b"TargetName=iqn.2026-11.org.farblock:disk\0", [2, 7]),
        (b"nonsense", [2, 0]),
    ] {
        let mut client = Client::raw(&server);
        client.send(header(0x43, 0x87), text);
        assert_eq!(client.take().bhs[36..38], status);
        client.expect_end();
    }
    eventually("the sessions are gone", || server.users() == 0);
}

#[test]
fn a_changed_size_is_reported_once() {
    let disk = Elastic::new(disk("mem:1MiB", 512));
    let server = serve(ENGINES[0], disk.clone());
    let mut client = Client::new(&server, &Wishes::default());
    disk.resize(1024);
    eventually("reported", || client.call(&[0; 6], 0, 0, &[]).sense == Some(CAPACITY_CHANGED));
    assert_eq!(client.call(&[0; 6], 0, 0, &[]).sense, None, "once");
    assert_eq!(client.call(&[0x25], READ, 8, &[]).data[..4], [0, 0, 3, 255]);
    let beyond = client.call(&cdb16(0x88, 0, 1024, 1), READ, 512, &[]);
    assert_eq!(beyond.sense, Some(OUT_OF_RANGE));
    // A session that logs in again is notified, too: its initiator may still use the old size.
    let mut client = Client::new(&server, &Wishes::default());
    assert_eq!(client.call(&[0; 6], 0, 0, &[]).sense, Some(CAPACITY_CHANGED));
}

#[test]
fn a_read_only_unit_refuses_writes() {
    let config = Config { read_only: true, ..config(ENGINES[0]) };
    let server = Server::start(&config, disk("mem:1MiB", 512)).expect("the server starts");
    let mut client = Client::new(&server, &Wishes::default());
    assert_eq!(client.write(0, &[1; 512], 512).sense, Some(WRITE_PROTECTED));
    assert_eq!(client.call(&[0x1a, 0, 8, 0, 255], READ, 255, &[]).data[2] & 0x80, 0x80);
    assert_eq!(client.read(0, 1, 512), [0; 512]);
}

/// The target must not answer an abort before the aborted command has no more effect.
#[test]
fn an_abort_is_answered_after_the_aborted_write_has_ended() {
    for &engine in ENGINES {
        let gate = Gate::new(disk("mem:1MiB", 512));
        let server = serve(engine, gate.clone());
        let mut client = Client::new(&server, &Wishes::default());
        let mut other = Client::new(&server, &Wishes { isid: [2; 6], ..Wishes::default() });
        gate.shut();
        let tag = client.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[1; 512]);
        gate.holds(1);
        let management = client.manage(1, tag);
        client.expect_silence();
        gate.open();
        let answer = client.take();
        assert_eq!((answer.opcode(), answer.word(16), answer.bhs[2]), (0x22, management, 0));
        // Abort a task that does not exist, a task that waits for data, and a task of another
        // initiator.
        client.manage(1, 4711);
        assert_eq!(client.take().bhs[2], 1);
        client.command(&cdb16(0x8a, 0, 0, 8), WRITE | FINAL, 4096, &[]);
        assert_eq!(client.take().opcode(), 0x31, "the target does not request data");
        gate.shut();
        other.command(&cdb16(0x8a, 0, 9, 1), WRITE | FINAL, 512, &[1; 512]);
        gate.holds(1);
        client.manage(5, 0);
        client.expect_silence();
        gate.open();
        assert_eq!(client.take().opcode(), 0x22);
        assert_eq!(client.call(&[0; 6], 0, 0, &[]).sense, Some(RESET));
        assert_eq!(
            other.call(&[0; 6], 0, 0, &[]).sense,
            Some(RESET),
            "the other session got no unit attention"
        );
        assert_eq!(client.read(0, 1, 512), [1; 512], "a write that started earlier was lost");
    }
}

/// A session that replaces an old one starts only when the old session's writes have completed.
#[test]
fn a_reinstated_session_starts_after_the_writes_of_the_old_session() {
    for &engine in ENGINES {
        let gate = Gate::new(disk("mem:1MiB", 512));
        let server = serve(engine, gate.clone());
        let mut old = Client::new(&server, &Wishes::default());
        gate.shut();
        old.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[1; 512]);
        gate.holds(1);
        let mut new = Client::raw(&server);
        new.send_login(&[]);
        old.expect_end();
        new.expect_silence();
        gate.open();
        new.expect_login();
        assert_eq!(new.read(0, 1, 512), [1; 512]);
        eventually("one session remains", || server.users() == 1);
        // A session with another identifier also waits for the writes of a session that has just
        // disconnected.
        gate.shut();
        new.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[2; 512]);
        gate.holds(1);
        drop(new);
        let mut third = Client::raw(&server);
        third.wishes.isid = [3; 6];
        third.send_login(&[]);
        third.expect_silence();
        gate.open();
        third.expect_login();
        assert_eq!(third.read(0, 1, 512), [2; 512]);
        // The login of another machine waits, too.
        gate.shut();
        third.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[3; 512]);
        gate.holds(1);
        drop(third);
        let mut successor = Client::raw(&server);
        successor.name = "iqn.2026-11.test:successor".to_owned();
        successor.send_login(&[]);
        successor.expect_silence();
        gate.open();
        successor.expect_login();
        assert_eq!(successor.read(0, 1, 512), [3; 512]);
    }
}

/// A machine sends requests but reads no answers, so the target stops reading. Then the machine
/// dies. The target must not execute the unread requests after the writes of the next machine.
#[test]
#[cfg(target_os = "linux")]
fn unread_requests_of_a_dead_initiator_are_not_executed() {
    const MIB: u32 = 1 << 20;
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:8MiB", 512));
        let mut old = Client::new(&server, &Wishes::default());
        let isid = [7; 6];
        let mut watcher = Client::new(&server, &Wishes { isid, ..Wishes::default() });
        // The answers to the first reads fill the socket buffers, so that the target leaves the
        // other requests unread. Each batch is one packet: with full buffers, the system would hold
        // back further packets.
        old.commands(30, &cdb16(0x88, 0, 0, MIB / 512), READ | FINAL, MIB);
        assert_eq!(old.take().opcode(), 0x25);
        old.commands(30, &cdb16(0x88, 0, 0, MIB / 512), READ | FINAL, MIB);
        // The target has read the earlier requests once it answers this ping.
        assert_eq!(watcher.ping(b"here"), b"here");
        old.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, 512, &[7; 512]);
        old.stream.shutdown(std::net::Shutdown::Write).expect("the stream shuts down");
        let mut successor = Client::raw(&server);
        successor.name = "iqn.2026-11.test:successor".to_owned();
        successor.send_login(&[]);
        successor.expect_login();
        assert_eq!(successor.write(0, &[8; 512], 512).status, 0);
        let _ = std::io::copy(&mut old.stream, &mut std::io::sink());
        eventually("the old session is closed", || server.users() == 2);
        assert!(successor.read(0, 1, 512) == [8; 512], "{engine}: an old write was executed later");
    }
}

/// A long WRITE SAME ends soon after its abort.
#[test]
fn an_aborted_write_same_stops() {
    let gate = Gate::new(disk("mem:64MiB", 512));
    let server = serve(ENGINES[0], gate.clone());
    let mut client = Client::new(&server, &Wishes::default());
    gate.shut();
    let blocks = (64 << 20) / 512;
    client.command(&cdb16(0x93, 0, 0, blocks), WRITE | FINAL, 512, &[1; 512]);
    gate.holds(1);
    client.manage(2, 0);
    gate.open();
    assert_eq!(client.take().opcode(), 0x22);
    assert_eq!(client.read(0, 1, 512), [1; 512], "a write that started earlier was lost");
    assert_eq!(client.read(u64::from(blocks) - 1, 1, 512), [0; 512]);
}

/// A WRITE SAME whose announced data does not arrive must write nothing, not zeroes.
#[test]
fn a_write_same_without_its_data_is_refused() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::new(&server, &Wishes::default());
    assert_eq!(client.write(0, &[1; 512], 512).status, 0);
    for flags in [0, READ] {
        let refused = client.call(&cdb16(0x93, 0, 0, 8), flags, 512, &[]);
        assert_eq!(refused.sense, Some((5, 0x2400)));
    }
    assert_eq!(client.read(0, 1, 512), [1; 512]);
}

#[test]
fn a_stopping_target_requests_a_logout() {
    for &engine in ENGINES {
        let namespace = disk("mem:1MiB", 512);
        let server = serve(engine, Arc::clone(&namespace));
        let mut client = Client::new(&server, &Wishes::default());
        let mut silent = Client::new(&server, &Wishes { isid: [2; 6], ..Wishes::default() });
        let idle = Client::raw(&server);
        let start = Instant::now();
        let stopping = std::thread::spawn(move || server.stop(false));
        let message = client.take();
        assert_eq!((message.opcode(), message.bhs[36]), (0x32, 1));
        client.log_out();
        assert_eq!(silent.take().opcode(), 0x32);
        silent.expect_end();
        stopping.join().expect("no panic").expect("the server stops");
        assert!(
            start.elapsed() >= Duration::from_millis(2500),
            "the target did not wait for the logout"
        );
        drop(idle);
        assert_eq!(Arc::strong_count(&namespace), 1, "the namespace is released");
        let server = serve(engine, namespace);
        let mut client = Client::new(&server, &Wishes::default());
        server.stop(true).expect("the server stops");
        // The target closes the connection at once, without requesting a logout.
        client.expect_end();
    }
}

#[test]
fn invalid_configurations_are_refused() {
    let refusal = |config: &Config| match Server::start(config, disk("mem:1MiB", 512)) {
        Ok(_) => panic!("the server started"),
        Err(error) => error.to_string(),
    };
    let usual = config(ENGINES[0]);
    let anywhere = Config { listen: ([0, 0, 0, 0], 0).into(), ..usual.clone() };
    assert!(refusal(&anywhere).contains("listen on 127.0.0.1"));
    let nameless = Config { name: "disk".into(), ..usual.clone() };
    assert!(refusal(&nameless).contains("use a name like iqn."));
    let serial = Config { serial: "x".repeat(37), ..usual.clone() };
    assert!(refusal(&serial).contains("1 to 36 printable"));
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let taken = Config { listen: server.address(), ..usual };
    assert!(refusal(&taken).contains("another program listens at"));
}
