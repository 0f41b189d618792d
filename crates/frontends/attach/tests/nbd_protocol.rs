//! Tests the NBD server with a client that sends exactly the given bytes: negotiation, requests,
//! errors, and writes of partial blocks.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_random::Random;
use nbd_support::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

#[test]
fn negotiation_options_are_answered() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 4096));
        let mut client = Client::raw(&server);
        client.flags(3);
        client.option(3, b"");
        let (kind, entry) = client.option_reply(3);
        assert_eq!((kind, &entry[..8]), (2, b"\0\0\0\x04disk".as_slice()));
        assert_eq!(&entry[8..], b"memory (1 MiB, 4096-byte blocks)");
        assert_eq!(client.option_reply(3), (1, Vec::new()));
        // STARTTLS, extended headers, and undefined option numbers.
        for code in [5, 11, 0, 4242, u32::MAX] {
            client.option(code, b"whatever");
            assert_eq!(client.option_reply(code).0, (1 << 31) + 1, "unsupported");
        }
        for (code, data) in [
            (3, &b"x"[..]),
            (8, b"x"),
            (6, b""),
            (7, b"\0\0\0\x09disk\0\0"),
            // These options require structured replies, which are not negotiated yet.
            (9, b"\0\0\0\0\0\0\0\0"),
            (10, b"\0\0\0\0\0\0\0\0"),
        ] {
            client.option(code, data);
            assert_eq!(client.option_reply(code).0, (1 << 31) + 3, "invalid");
        }
        client.option(9, &vec![0; 100_000]);
        assert_eq!(
            client.option_reply(9).0,
            (1 << 31) + 9,
            "the server refuses an option that is too long"
        );
        assert_eq!(client.ask(7, b"other", &[]), Err((1 << 31) + 6), "unknown");
        let info = client.ask(6, b"disk", &[1, 2, 3]).expect("an export");
        assert_eq!(info.len(), 4);
        assert_eq!(info[1], b"\0\x01disk");
        assert_eq!(info[2], b"\0\x02memory (1 MiB, 4096-byte blocks)");
        assert_eq!(info[3], b"\0\x03\0\0\x10\0\0\0\x10\0\x02\0\0\0");
        let (info, flags) = client.go(b"", &[]).expect("an export without a name");
        assert_eq!(number(&info[0][2..10]), MIB);
        let wanted = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 11;
        assert_eq!(
            flags, wanted,
            "not the flags for flush, FUA, trim, zeroes, many connections, fast zeroes"
        );
        assert_eq!(client.read(0, 512), [0; 512]);
    }
}

#[test]
fn the_old_export_name_option_works() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    for (flags, bytes) in [(1, 134), (3, 10)] {
        let mut client = Client::raw(&server);
        client.flags(flags);
        client.option(1, b"disk");
        let answer = client.take(bytes);
        assert_eq!(number(&answer[..8]), MIB);
        assert!(answer[10..].iter().all(|&byte| byte == 0));
        assert_eq!(client.read(512, 1024), [0; 1024]);
    }
    let mut client = Client::raw(&server);
    client.flags(3);
    client.option(1, b"other");
    client.expect_end();
}

#[test]
fn invalid_negotiations_end_the_connection() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::raw(&server);
    client.flags(3);
    client.option(2, b"");
    assert_eq!(client.option_reply(2), (1, Vec::new()), "the server acknowledges the abort");
    client.expect_end();
    let mut client = Client::raw(&server);
    client.flags(0x8000_0003);
    client.expect_end();
    let mut client = Client::raw(&server);
    client.flags(3);
    client.send(b"IHAVENOT\0\0\0\x03\0\0\0\0");
    client.expect_end();
}

#[test]
fn a_negotiation_may_arrive_byte_by_byte() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::raw(&server);
    let mut all = 3_u32.to_be_bytes().to_vec();
    all.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    all.extend(request(0, READ, 5, 0, 512));
    for byte in all {
        client.send(&[byte]);
        std::thread::yield_now();
    }
    assert_eq!(client.option_reply(7).0, 3);
    assert_eq!(client.option_reply(7).0, 1);
    assert_eq!(client.reply(512).cookie, 5);
}

#[test]
fn every_request_type_works() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:80MiB", 512));
        for mut client in [Client::simple(&server), Client::structured(&server)] {
            let mut random = Random::new(1);
            let data = random.bytes(32 << 20);
            assert_eq!(client.write(FUA, MIB, &data), 0, "the largest write fails");
            assert!(client.read(MIB, 32 << 20) == data, "the largest read fails");
            assert_eq!(client.read(MIB + 1024, 512), data[1024..1536]);
            assert_eq!(client.call(0, FLUSH, 0, 0).errno, 0);
            assert_eq!(client.call(0, ZEROES, MIB, 512).errno, 0);
            assert_eq!(client.call(NO_HOLE | FUA, ZEROES, MIB + 512, 512).errno, 0);
            assert_eq!(client.call(FAST_ZERO, ZEROES, MIB + 1024, 512).errno, 0);
            let call = client.call(FAST_ZERO | NO_HOLE, ZEROES, MIB, 512);
            assert_eq!(call.errno, ENOTSUP, "slow zeroing was not refused");
            assert_eq!(client.call(0, TRIM, MIB + 1536, 512).errno, 0);
            let read = client.read(MIB, 4096);
            assert!(read[..1536].iter().all(|&byte| byte == 0));
            assert_eq!(read[2048..], data[2048..4096]);
            for code in [READ, WRITE, TRIM, ZEROES, FLUSH] {
                let reply = client.call(0, code, 80 * MIB, 0);
                assert_eq!(
                    (reply.cookie, reply.errno),
                    (77, 0),
                    "command {code} without data failed"
                );
            }
            client.request(0, DISC, 0, 0, 0);
            client.expect_end();
        }
    }
}

#[test]
fn invalid_requests_are_refused() {
    for engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", 512));
        for structured in [true, false] {
            let mut client =
                if structured { Client::structured(&server) } else { Client::simple(&server) };
            let calls = [
                (0, READ, MIB, 512, EINVAL),
                (0, READ, u64::MAX, 512, EINVAL),
                (0, READ, u64::MAX - 511, 512, EINVAL),
                (0, TRIM, MIB - 512, 1024, EINVAL),
                (0, ZEROES, 512, u32::MAX - 511, EINVAL),
                (0, READ, 0, u32::MAX, EINVAL),
                (0, 5, 0, 512, EINVAL),
                (0, 7, 0, 512, EINVAL),
                (0, 4242, 0, 0, EINVAL),
                (1 << 9, READ, 0, 512, EINVAL),
                (NO_HOLE, READ, 0, 512, EINVAL),
                (FAST_ZERO, TRIM, 0, 512, EINVAL),
            ];
            for (flags, code, offset, length, errno) in calls {
                let reply = client.call(flags, code, offset, length);
                assert_eq!(
                    reply.errno, errno,
                    "the error of command {code} for {length} bytes at {offset:#x}"
                );
            }
            assert_eq!(client.write(0, MIB, &[1; 512]), ENOSPC);
            assert_eq!(client.write(0, MIB - 512, &[1; 1024]), ENOSPC);
            assert_eq!(client.write(DF, 0, &[1; 1024]), EINVAL);
            let errno = client.call(DF, READ, 0, 512).errno;
            assert_eq!(errno, if structured { 0 } else { EINVAL });
            assert_eq!(client.read(0, 4096), [0; 4096], "a refused write changed the disk");
        }
    }
}

fn contexts(export: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let text = |text: &[u8]| [&(text.len() as u32).to_be_bytes()[..], text].concat();
    let mut data = text(export);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(text(query)));
    data
}

#[test]
fn block_status_reports_allocation() {
    const LIST: u32 = 9;
    const SET: u32 = 10;
    const STATUS: u16 = 7;
    let allocation = (4, b"\0\0\0\0base:allocation".to_vec());
    for engine in ENGINES {
        let server = serve(engine, disk("mem:80MiB", 512));
        let mut client = Client::raw(&server);
        client.flags(3);
        client.structure();
        for (code, export, queries, answers) in [
            (LIST, &b"disk"[..], &[][..], 1),
            (LIST, b"", &[&b"base:"[..]], 1),
            (LIST, b"", &[b"other:"], 0),
            (SET, b"disk", &[b"base:other"], 0),
            (SET, b"disk", &[b"other:x", b"base:allocation"], 1),
        ] {
            client.option(code, &contexts(export, queries));
            (0..answers).for_each(|_| assert_eq!(client.option_reply(code), allocation));
            assert_eq!(client.option_reply(code), (1, Vec::new()), "{queries:?}");
        }
        client.option(LIST, &contexts(b"another", &[]));
        assert_eq!(client.option_reply(LIST).0, (1 << 31) + 6, "unknown");
        client.option(LIST, b"malformed");
        assert_eq!(client.option_reply(LIST).0, (1 << 31) + 3, "invalid");
        client.go(b"disk", &[3]).expect("an export");
        for (offset, length) in [(0, 512), (4096, 1 << 20), (0, 80 << 20)] {
            client.request(8, STATUS, 9, offset, length);
            let chunk = client.take(20 + 12);
            assert_eq!(chunk[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5]);
            assert_eq!(number(&chunk[8..16]), 9);
            assert_eq!(chunk[16..24], [0, 0, 0, 12, 0, 0, 0, 0]);
            assert_eq!(
                number(&chunk[24..]),
                u64::from(length) << 32,
                "not all blocks are reported as data"
            );
        }
        for (flags, offset, length) in [(0, 0, 0), (0, 1, 512), (2, 0, 512), (0, 80 << 20, 512)] {
            assert_eq!(client.call(flags, STATUS, offset, length).errno, EINVAL);
        }
        assert_eq!(client.read(0, 512), [0; 512], "the disk still works");
    }
}

#[test]
fn requests_above_the_size_limit_are_refused() {
    let server = serve(ENGINES[0], disk("mem:80MiB", 512));
    let mut client = Client::simple(&server);
    assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 512]), EINVAL);
    assert_eq!(client.call(0, READ, 0, (32 << 20) + 512).errno, EINVAL);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn an_invalid_request_header_ends_the_connection() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 512));
    let mut client = Client::simple(&server);
    client.send(&[0x25; 28]);
    client.expect_end();
}

#[test]
fn a_read_only_export_refuses_writes() {
    for engine in ENGINES {
        let config = farblock_attach::nbd::Config {
            engine,
            read_only: true,
            ..farblock_attach::nbd::Config::new(None)
        };
        let server = farblock_attach::nbd::Server::start(&config, disk("mem:1MiB", 512))
            .expect("the server starts");
        let mut client = Client::raw(&server);
        client.flags(3);
        let (_, flags) = client.go(b"", &[]).expect("an export");
        assert_eq!(
            flags & (1 << 1 | 1 << 5 | 1 << 6),
            1 << 1,
            "a read-only export offers trim or zeroes"
        );
        assert_eq!(client.write(0, 0, &vec![1; 1 << 20]), EPERM);
        assert_eq!(client.call(0, TRIM, 0, 512).errno, EPERM);
        assert_eq!(client.call(0, ZEROES, 0, 512).errno, EPERM);
        assert_eq!(client.call(0, FLUSH, 0, 0).errno, 0);
        assert_eq!(client.read(0, 512), [0; 512]);
    }
}

#[test]
fn disk_errors_reach_the_client() {
    for engine in ENGINES {
        let server = serve(engine, disk("fault:3,mem:8MiB", 512));
        let mut client = Client::structured(&server);
        let mut failed = 0;
        for index in 0..30 {
            // Each request needs three operations, one of which fails.
            let length = 3 << 20;
            let errno = client.call(0, READ, 0, length).errno;
            assert!(errno == 0 || errno == EIO, "{errno}");
            failed += u32::from(errno == EIO);
            assert_eq!(client.call(0, FLUSH, index, 0).errno, 0);
        }
        assert_eq!(failed, 30);
    }
}

#[test]
fn a_client_that_knows_the_block_size_must_align_its_requests() {
    let server = serve(ENGINES[0], disk("mem:1MiB", 4096));
    let mut client = Client::structured(&server);
    assert_eq!(client.write(0, 512, &[1; 4096]), EINVAL);
    assert_eq!(client.write(0, 4096, &[1; 512]), EINVAL);
    assert_eq!(client.call(0, READ, 4096, 512).errno, EINVAL);
    assert_eq!(client.call(0, READ, 1, 4096).errno, EINVAL);
    assert_eq!(client.call(0, ZEROES, 512, 4096).errno, EINVAL);
    assert_eq!(client.read(0, 8192), [0; 8192], "a refused write changed the disk");
}

/// A client writes random ranges of bytes. The test compares the disk with a copy in memory.
#[test]
fn a_client_without_the_block_size_may_write_any_bytes() {
    for (engine, block_size) in ENGINES.into_iter().zip([4096, 512]) {
        let server = serve(engine, disk("delay:20us+50us,mem:1MiB", block_size));
        let mut client = Client::simple(&server);
        let mut random = Random::new(7);
        let mut model = random.bytes(MIB as usize);
        assert_eq!(client.write(0, 0, &model), 0);
        for round in 0..300 {
            let offset = random.below(MIB);
            let most = if round % 10 == 0 { MIB } else { 10_000 };
            let length = random.below(most.min(MIB - offset) + 1);
            let range = offset as usize..(offset + length) as usize;
            match random.below(4) {
                0 => {
                    let data = random.bytes(length as usize);
                    assert_eq!(client.write(FUA, offset, &data), 0);
                    model[range].copy_from_slice(&data);
                }
                1 => {
                    assert_eq!(client.call(0, ZEROES, offset, length as u32).errno, 0);
                    model[range].fill(0);
                }
                2 => {
                    // A trimmed range may read as any bytes, but a trim must not change other data.
                    assert_eq!(client.call(0, TRIM, offset, length as u32).errno, 0);
                    let now = client.read(offset, length as u32);
                    model[range].copy_from_slice(&now);
                }
                _ => assert!(client.read(offset, length as u32) == model[range], "{round}"),
            }
        }
        assert!(client.read(0, MIB as u32) == model);
    }
}

/// Eight connections each write their eighth of every block, while a ninth connection writes whole
/// blocks. No answered write may be lost.
#[test]
fn concurrent_writes_to_one_block_are_all_kept() {
    for engine in ENGINES {
        let server = Arc::new(serve(engine, disk("delay:50us+200us,mem:1MiB", 4096)));
        let writers: Vec<_> = (0..8_u64)
            .map(|part| {
                let server = Arc::clone(&server);
                std::thread::spawn(move || {
                    let mut client = Client::simple(&server);
                    for block in 0..32 {
                        let data = [part as u8 + 1; 512];
                        assert_eq!(client.write(0, block * 4096 + part * 512, &data), 0);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("the writer succeeds"));
        let mut client = Client::simple(&server);
        for (index, part) in client.read(0, 32 * 4096).chunks(512).enumerate() {
            assert_eq!(part, [index as u8 % 8 + 1; 512], "the content of part {index}");
        }
    }
}

/// One client writes a whole block, and another a part of it at the same time. The rest of the
/// block must have the first client's data.
#[test]
fn a_partial_write_keeps_the_rest_of_a_concurrent_whole_write() {
    for engine in ENGINES {
        let server = serve(engine, disk("delay:300us,mem:1MiB", 4096));
        let mut random = Random::new(3);
        let (mut whole, mut part) = (Client::simple(&server), Client::simple(&server));
        for block in 0..200_u64 {
            let offset = block * 4096;
            let mut first = request(0, WRITE, 1, offset, 4096);
            first.extend([1; 4096]);
            let mut second = request(0, WRITE, 2, offset + 512, 512);
            second.extend([2; 512]);
            part.send(&second);
            // About now, the server starts to read the block that it will change and write back.
            // The read takes 300 us.
            std::thread::sleep(std::time::Duration::from_micros(random.below(500)));
            whole.send(&first);
            assert_eq!((whole.reply(0).errno, part.reply(0).errno), (0, 0));
            let read = whole.read(offset, 4096);
            assert!(read[..512].iter().chain(&read[1024..]).all(|&byte| byte == 1), "{block}");
            let written = &read[512..1024];
            assert!(written == [1; 512] || written == [2; 512], "{block}");
        }
    }
}

#[test]
fn all_connections_see_the_same_data() {
    for engine in ENGINES {
        let server = serve_tcp(engine, disk("mem:1MiB", 512));
        let mut clients: Vec<_> = (0..8).map(|_| Client::simple(&server)).collect();
        for round in 0..64_usize {
            let data = vec![round as u8; 2048];
            assert_eq!(clients[round % 8].write(0, 1024, &data), 0);
            for client in &mut clients {
                assert_eq!(client.read(1024, 2048), data);
            }
        }
    }
}
