//! I/O queues against a target that sends unusual, damaged and hostile answers.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Completion, Namespace, Op};
use farblock_host::{Controller, Error, Options};
use farblock_random::Random;
use farblock_reactor::{Buffer, EngineKind};
use farblock_wire::Status;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::tcp::{FatalErrorStatus, LAST_PDU, SUCCESS};
use peer::{Capsule, Connection, Handled, Peer, SUBSYSTEM, Script, digests, engines, options};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 512;
/// The keep alive timeout: long enough for a busy machine.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A host with one I/O queue that is connected to a target.
struct Setup {
    driver: Driver,
    controller: Controller,
    _peer: Peer,
}

impl Setup {
    fn new(script: Script, options: &Options, engine: EngineKind) -> Setup {
        Setup::connect(script, options, engine).unwrap()
    }

    /// Connects with a short `io_timeout`. Retries, because the timeout also applies to the
    /// commands before the first I/O: a busy machine may need longer for them.
    fn hurried(
        script: impl Fn() -> Script,
        io_timeout: Duration,
        options: &Options,
        engine: EngineKind,
    ) -> Setup {
        let options = Options { io_timeout, ..options.clone() };
        let mut tries = (0..100).map(|_| Setup::connect(script(), &options, engine));
        tries.find_map(Result::ok).expect("one of a hundred attempts succeeds")
    }

    fn connect(script: Script, options: &Options, engine: EngineKind) -> Result<Setup, Error> {
        let peer = Peer::new(script);
        let options = Options { engine, ..options.clone() };
        let controller = Controller::connect(&peer.address(), SUBSYSTEM, &options)?;
        let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1)?);
        let driver = Driver::with(&namespace, engine);
        Ok(Setup { driver, controller, _peer: peer })
    }

    fn submit_read(&mut self, blocks: u32, token: u64) {
        let buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
        self.driver.submit(0, Op::read(0, blocks, buffer, token));
    }

    fn submit_write(&mut self, blocks: u32, token: u64) {
        let buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
        self.driver.submit(0, Op::write(0, blocks, buffer, token));
    }

    fn results(&mut self, count: usize) -> Vec<Result<(), BlockError>> {
        self.driver.wait(0, count).into_iter().map(|done: Completion| done.result).collect()
    }

    fn result(&mut self) -> Result<(), BlockError> {
        self.results(1)[0]
    }
}

/// A script with a hook for commands of I/O queues except Connect.
fn on_io(
    hook: impl Fn(&mut Connection, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) -> Script {
    let hook = move |connection: &mut Connection, qid: u16, capsule: &Capsule| {
        if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 {
            return Ok(Handled::No);
        }
        hook(connection, capsule)
    };
    Script { hook: Box::new(hook), ..Script::default() }
}

/// Returns the results of a read of two blocks, and of a write of 40 blocks (too long for a
/// capsule), with a target that uses this hook.
fn misbehaving(
    hook: impl Fn(&mut Connection, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) -> Vec<[Result<(), BlockError>; 2]> {
    let hook = Arc::new(hook);
    let run = |engine| {
        let one = |write| {
            let hook = Arc::clone(&hook);
            let script = on_io(move |connection, capsule| hook(connection, capsule));
            let mut setup = Setup::new(script, &options(), engine);
            if write {
                setup.submit_write(40, 1)
            } else {
                setup.submit_read(2, 1)
            }
            setup.result()
        };
        [one(false), one(true)]
    };
    engines().into_iter().map(run).collect()
}

/// Checks that the fault that `hook` causes makes operations in flight and all later ones fail.
fn disconnects(
    hook: impl Fn(&mut Connection, &Capsule) -> io::Result<()> + Send + Sync + 'static,
    write: bool,
) {
    for (engine, results) in of_a_fault(hook, write) {
        let lost = |result: &&Result<(), BlockError>| **result == Err(BlockError::Disconnected);
        assert!(results.iter().filter(lost).count() >= 299, "{engine}: {results:?}");
    }
}

/// Returns the results of 300 operations on a target in which `hook` causes a fault. Checks that at
/// most one operation succeeds, and that later operations fail.
fn of_a_fault(
    hook: impl Fn(&mut Connection, &Capsule) -> io::Result<()> + Send + Sync + 'static,
    write: bool,
) -> Vec<(EngineKind, Vec<Result<(), BlockError>>)> {
    let hook = Arc::new(hook);
    let one = |engine| {
        let hook = Arc::clone(&hook);
        let script = on_io(move |connection, capsule| {
            hook(connection, capsule)?;
            // Leave the command unanswered: only the fault ends the operations.
            Ok(Handled::Yes)
        });
        // Disable the timeouts, too.
        let options =
            Options { io_timeout: Duration::ZERO, keep_alive: Duration::ZERO, ..options() };
        let mut setup = Setup::new(script, &options, engine);
        for token in 0..300 {
            if write { setup.submit_write(40, token) } else { setup.submit_read(2, token) }
        }
        let results = setup.results(300);
        let failed = results.iter().filter(|result| result.is_err()).count();
        assert!(failed >= 299, "{engine}: {results:?}");
        setup.submit_read(1, 1);
        assert_eq!(setup.result(), Err(BlockError::Disconnected), "{engine}");
        assert!(setup.controller.lost().is_none(), "the admin connection was lost");
        (engine, results)
    };
    engines().into_iter().map(one).collect()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[test]
fn read_data_may_be_split_at_every_boundary() {
    for engine in engines() {
        for success_flag in [true, false] {
            let at = Mutex::new(0);
            let script = on_io(move |connection, capsule| {
                let mut at = at.lock().unwrap();
                *at += 1;
                connection.split_at = Some(*at);
                connection.push_all(capsule.cid(), &pattern(512), 512, success_flag)?;
                Ok(Handled::Yes)
            });
            let options = Options { tcp: digests(true, true), ..options() };
            let mut setup = Setup::new(script, &options, engine);
            let geometry = farblock_block::Geometry::new(512, 1 << 15);
            // Split after each byte of the header, its digest, the data, and their digest.
            for at in 1..=24 + 4 + 512 + 4 {
                assert_eq!(setup.driver.read(0, geometry, 0, 1), pattern(512), "split at {at}");
            }
        }
    }
}

#[test]
fn large_reads_arrive_in_odd_pdus_and_pieces() {
    for engine in engines() {
        for (piece_bytes, c2h_bytes) in [(9000, 128 << 10), (5001, 8192 + 512), (30000, 70000)] {
            for is_checked in [false, true] {
                let hook = Box::new(move |connection: &mut Connection, qid, capsule: &Capsule| {
                    if qid == 0 || capsule.sqe.opcode != NvmOpcode::READ.0 {
                        return Ok(Handled::No);
                    }
                    let length = capsule.sqe.dptr.length.get() as usize;
                    connection.push_all(capsule.cid(), &pattern(length), c2h_bytes, true)?;
                    Ok(Handled::Yes)
                });
                let script = Script { piece_bytes, hook, ..Script::default() };
                let options = Options { tcp: digests(is_checked, is_checked), ..options() };
                let mut setup = Setup::new(script, &options, engine);
                let geometry = farblock_block::Geometry::new(512, 1 << 15);
                let length = 128 << 10;
                let read = setup.driver.read(0, geometry, 0, (length / 512) as u32);
                assert!(read == pattern(length), "{engine}, {piece_bytes}, {c2h_bytes}");
            }
        }
    }
}

#[test]
fn a_wrong_data_digest_fails_only_its_read() {
    for engine in engines() {
        let options = Options { tcp: digests(false, true), ..options() };
        let script = on_io(|connection, capsule| {
            connection.corrupt_data_digest = capsule.sqe.cdw10.get() == 8;
            Ok(Handled::No)
        });
        let mut setup = Setup::new(script, &options, engine);
        for (lba, blocks) in [(0, 1), (8, 1), (0, 1), (8, 100)] {
            let buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
            let done = setup.driver.run(0, Op::read(lba, blocks, buffer, 1));
            let expected = if lba == 8 { Err(BlockError::ReadFailed) } else { Ok(()) };
            assert_eq!(done.result, expected, "{engine}: the connection stays usable");
        }
    }
}

#[test]
fn a_wrong_header_digest_disconnects() {
    for engine in engines() {
        let options = Options { tcp: digests(true, false), ..options() };
        let script = on_io(|connection, _| {
            connection.corrupt_header_digest = true;
            Ok(Handled::No)
        });
        let mut setup = Setup::new(script, &options, engine);
        setup.submit_read(1, 1);
        assert_eq!(setup.result(), Err(BlockError::Disconnected));
    }
}

#[test]
fn a_status_fails_only_its_operation() {
    for results in misbehaving(|connection, capsule| {
        let status = match NvmOpcode(capsule.sqe.opcode) {
            NvmOpcode::READ => Status::UNRECOVERED_READ_ERROR,
            _ => Status::CAPACITY_EXCEEDED.with_dnr(),
        };
        connection.respond(capsule.cid(), status, 0)?;
        Ok(Handled::Yes)
    }) {
        assert_eq!(results, [Err(BlockError::ReadFailed), Err(BlockError::NoSpace)]);
    }
}

#[test]
fn an_error_after_part_of_the_data_fails_the_operation() {
    for results in misbehaving(|connection, capsule| {
        match NvmOpcode(capsule.sqe.opcode) {
            NvmOpcode::READ => connection.push(capsule.cid(), 0, &[1; 512], 0)?,
            _ => drop(connection.pull(capsule.cid(), 0, 512)?),
        }
        connection.respond(capsule.cid(), Status::INTERNAL_ERROR, 0)?;
        Ok(Handled::Yes)
    }) {
        assert_eq!(results, [Err(BlockError::ReadFailed), Err(BlockError::WriteFailed)]);
    }
}

#[test]
fn success_without_all_data_disconnects() {
    for results in misbehaving(|connection, capsule| {
        match NvmOpcode(capsule.sqe.opcode) {
            NvmOpcode::READ => {
                connection.push(capsule.cid(), 0, &[1; 512], LAST_PDU | SUCCESS)?;
            }
            _ => {
                connection.pull(capsule.cid(), 0, 512)?;
                connection.succeed(capsule.cid())?;
            }
        }
        Ok(Handled::Yes)
    }) {
        assert_eq!(results, [Err(BlockError::Disconnected); 2], "broken protocol");
    }
}

#[test]
fn a_split_operation_returns_its_first_error() {
    for engine in engines() {
        let script = on_io(|connection, capsule| {
            // MDTS is 256 blocks, so the operation has four commands.
            if capsule.sqe.cdw10.get() == 512 {
                connection.respond(capsule.cid(), Status::LBA_OUT_OF_RANGE, 0)?;
                return Ok(Handled::Yes);
            }
            Ok(Handled::No)
        });
        let mut setup = Setup::new(script, &options(), engine);
        setup.submit_write(1000, 1);
        assert_eq!(setup.result(), Err(BlockError::OutOfRange), "{engine}");
        setup.submit_read(1000, 1);
        assert_eq!(setup.result(), Err(BlockError::OutOfRange), "{engine}");
        setup.submit_read(512, 1);
        assert_eq!(setup.result(), Ok(()), "{engine}: the queue continues");
    }
}

#[test]
fn every_operation_fails_when_the_connection_closes() {
    for engine in engines() {
        let mut setup = Setup::new(on_io(|_, _| Ok(Handled::Close)), &options(), engine);
        for token in 0..300 {
            setup.submit_write(if token % 2 == 0 { 1 } else { 400 }, token);
        }
        let results = setup.results(300);
        assert!(results.iter().all(|result| *result == Err(BlockError::Disconnected)));
    }
}

/// The bytes after the answer to Connect arrive before the queue is on its event loop.
#[test]
fn invalid_bytes_after_the_connect_response_disconnect() {
    for engine in engines() {
        let script = Script {
            hook: Box::new(|connection: &mut Connection, qid, capsule| {
                if qid == 0 || capsule.sqe.opcode != NvmOpcode::FABRICS.0 {
                    return Ok(if qid == 0 { Handled::No } else { Handled::Yes });
                }
                connection.hold = Some(Vec::new());
                connection.respond(capsule.cid(), Status::SUCCESS, peer::CNTLID.into())?;
                connection.write(&[0xff; 64])?;
                let together = connection.hold.take().unwrap();
                connection.write(&together)?;
                Ok(Handled::Yes)
            }),
            ..Script::default()
        };
        let mut setup = Setup::new(script, &options(), engine);
        for token in 0..10 {
            setup.submit_write(if token % 2 == 0 { 10 } else { 40 }, token);
        }
        let results = setup.results(10);
        assert!(results.iter().all(|result| *result == Err(BlockError::Disconnected)));
    }
}

#[test]
fn a_termination_request_disconnects() {
    let status = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
    disconnects(move |connection, _| connection.terminate(status), false);
    disconnects(move |connection, _| connection.terminate(status), true);
}

#[test]
fn data_for_an_unknown_command_disconnects() {
    disconnects(|connection, _| connection.push(0xfff0, 0, &[1; 512], LAST_PDU), false);
    disconnects(|connection, _| connection.push(127, 0, &[1; 512], LAST_PDU), false);
}

#[test]
fn data_outside_the_buffer_disconnects() {
    for (offset, length) in [(0, 1025), (512, 513), (1024, 4), (u32::MAX, 512), (4, 4)] {
        disconnects(
            move |connection, capsule| {
                let data = vec![0xee; length];
                connection.push(capsule.cid(), offset, &data, LAST_PDU)
            },
            false,
        );
    }
}

#[test]
fn read_data_for_a_write_disconnects() {
    disconnects(|connection, capsule| connection.push(capsule.cid(), 0, &[1; 512], LAST_PDU), true);
}

#[test]
fn an_r2t_for_a_read_disconnects() {
    disconnects(|connection, capsule| connection.r2t(capsule.cid(), 1, 0, 512), false);
}

#[test]
fn an_r2t_outside_the_data_disconnects() {
    const ALL: u32 = 40 * BLOCK_BYTES as u32;
    for (offset, length) in [(0, ALL + 1), (512, 512), (0, 0), (u32::MAX, 2)] {
        disconnects(
            move |connection, capsule| connection.r2t(capsule.cid(), 1, offset, length),
            true,
        );
    }
    disconnects(|connection, _| connection.r2t(0xffff, 1, 0, 512), true);
}

#[test]
fn a_second_completion_of_a_command_disconnects() {
    // A surplus completion may arrive just after another command got the same identifier, which
    // then fails without its data. So the target sends more completions for one identifier than
    // there are commands: at some time no command uses the identifier.
    const COMPLETIONS: usize = 400;
    let connections = Mutex::new(HashSet::new());
    of_a_fault(
        move |connection, capsule| {
            let is_first =
                connections.lock().expect("not poisoned").insert(connection.stream.peer_addr()?);
            if is_first {
                connection.push_all(capsule.cid(), &[1; 1024], 1024, true)?;
                (0..COMPLETIONS).try_for_each(|_| connection.succeed(capsule.cid()))?;
            }
            Ok(())
        },
        false,
    );
}

#[test]
fn a_completion_of_an_unknown_command_disconnects() {
    disconnects(|connection, _| connection.succeed(0xffff), false);
}

#[test]
fn the_success_flag_before_the_last_data_disconnects() {
    disconnects(|connection, capsule| connection.push(capsule.cid(), 0, &[1; 512], SUCCESS), false);
}

#[test]
fn an_unanswered_command_times_out_and_disconnects() {
    for engine in engines() {
        let timeout = Duration::from_secs(1);
        let script = || {
            on_io(|_, capsule| {
                Ok(if capsule.sqe.cdw10.get() == 0 { Handled::Yes } else { Handled::No })
            })
        };
        let options = Options { keep_alive: Duration::ZERO, ..options() };
        let mut setup = Setup::hurried(script, timeout, &options, engine);
        let start = Instant::now();
        setup.submit_read(1, 1);
        setup.driver.submit(0, Op::read(1, 1, Buffer::new(BLOCK_BYTES), 2));
        let mut results = setup.results(1);
        results.extend(setup.results(1));
        assert_eq!(results, [Ok(()), Err(BlockError::Disconnected)], "{engine}");
        assert!(start.elapsed() >= timeout, "{engine}: {:?}", start.elapsed());
    }
}

#[test]
fn operations_time_out_if_the_target_stops_reading() {
    for engine in engines() {
        // The target stays connected until the end of the test, so only the host can end the
        // operations.
        let (over, is_over) = mpsc::channel::<()>();
        let is_over = Arc::new(Mutex::new(is_over));
        let script = || {
            let is_over = Arc::clone(&is_over);
            let script = on_io(move |connection, capsule| {
                connection.r2t(capsule.cid(), 1, 0, capsule.sqe.dptr.length.get())?;
                let _ = is_over.lock().unwrap().recv();
                Ok(Handled::Close)
            });
            // These operations have more data than the socket buffers can hold.
            Script { mdts: 8, blocks: 1 << 17, ..script }
        };
        let options = Options { keep_alive: Duration::ZERO, ..options() };
        let mut setup = Setup::hurried(script, Duration::from_millis(400), &options, engine);
        for token in 0..20 {
            setup.submit_write(2048 * 4, token);
        }
        let results = setup.results(20);
        assert!(results.iter().all(|result| *result == Err(BlockError::Disconnected)));
        drop(over);
    }
}

#[test]
fn the_loss_of_the_admin_queue_ends_the_io_queues() {
    type Ending = fn(&mut Connection, &Capsule) -> io::Result<Handled>;
    let endings: [(Ending, &str); 4] = [
        (|_, _| Ok(Handled::Close), "closed the connection"),
        (
            |connection, _| connection.write(&[0xff; 64]).map(|()| Handled::Yes),
            "broke the protocol",
        ),
        (
            |connection, capsule| {
                connection.succeed(capsule.cid())?;
                connection.succeed(capsule.cid()).map(|()| Handled::Yes)
            },
            "broke the protocol",
        ),
        (
            |connection, _| {
                let status = FatalErrorStatus::PDU_SEQUENCE_ERROR;
                connection.terminate(status).map(|()| Handled::Yes)
            },
            "PDU sequence error",
        ),
    ];
    for engine in engines() {
        for (ending, reason) in endings {
            // The target never answers a read. A later keep alive ends the connection.
            let has_read = AtomicBool::new(false);
            let script = Script {
                hook: Box::new(move |connection, qid, capsule| match (qid, capsule.sqe.opcode) {
                    (0, 0x18) if has_read.load(Ordering::SeqCst) => ending(connection, capsule),
                    (1, 0x02) => {
                        has_read.store(true, Ordering::SeqCst);
                        Ok(Handled::Yes)
                    }
                    _ => Ok(Handled::No),
                }),
                ..Script::default()
            };
            let options = Options { keep_alive: KEEP_ALIVE, ..options() };
            let mut setup = Setup::new(script, &options, engine);
            setup.submit_read(1, 1);
            assert_eq!(setup.result(), Err(BlockError::Disconnected), "{engine}");
            let lost = setup.controller.lost().expect("the reason of the loss").to_string();
            assert!(lost.contains(reason), "{lost}");
            let error = setup.controller.namespace_ids().unwrap_err().to_string();
            assert_eq!(error, lost);
        }
    }
}

#[test]
fn an_unanswered_keep_alive_ends_the_controller() {
    for engine in engines() {
        let has_read = AtomicBool::new(false);
        let script = Script {
            hook: Box::new(move |_, qid, capsule| {
                let read = qid > 0 && capsule.sqe.opcode == 2;
                has_read.fetch_or(read, Ordering::SeqCst);
                let ignored =
                    qid == 0 && capsule.sqe.opcode == 0x18 && has_read.load(Ordering::SeqCst);
                Ok(if ignored || read { Handled::Yes } else { Handled::No })
            }),
            ..Script::default()
        };
        let keep_alive = KEEP_ALIVE;
        let options = Options { keep_alive, io_timeout: Duration::ZERO, ..options() };
        let mut setup = Setup::new(script, &options, engine);
        setup.submit_read(1, 1);
        assert_eq!(setup.result(), Err(BlockError::Disconnected), "{engine}");
        let lost = setup.controller.lost().expect("the reason of the loss").to_string();
        assert!(lost.contains("keep alive"), "{lost}");
    }
}

#[test]
fn an_idle_controller_is_kept_alive() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let script = Script {
        hook: Box::new(move |_, qid, capsule| {
            let is_one = qid == 0 && capsule.sqe.opcode == 0x18;
            count.fetch_add(usize::from(is_one), Ordering::SeqCst);
            Ok(Handled::No)
        }),
        ..Script::default()
    };
    let options = Options { keep_alive: KEEP_ALIVE, ..options() };
    let mut setup = Setup::new(script, &options, EngineKind::Portable);
    while seen.load(Ordering::SeqCst) < 4 {
        assert!(setup.controller.lost().is_none(), "{:?}", setup.controller.lost());
        std::thread::sleep(Duration::from_millis(10));
    }
    setup.submit_read(1, 1);
    assert_eq!(setup.result(), Ok(()));
}

/// The state of the scripted target in the next test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shrinking {
    /// The namespace has its full size. Contains the event request, if it has arrived.
    Not(Option<u16>),
    /// The namespace shrinks at the next keep alive. Contains the event request.
    Soon(u16),
    Done,
}

#[test]
fn an_event_updates_the_size_of_a_shrunken_namespace() {
    let state = Arc::new(Mutex::new(Shrinking::Not(None)));
    let theirs = Arc::clone(&state);
    let script = Script {
        oaes: 1 << 8,
        hook: Box::new(move |connection: &mut Connection, qid, capsule| {
            let (opcode, cid) = (capsule.sqe.opcode, capsule.cid());
            if qid > 0 {
                return Ok(Handled::No);
            }
            let mut state = theirs.lock().unwrap();
            match (opcode, *state) {
                (0x0c, Shrinking::Not(None)) => *state = Shrinking::Not(Some(cid)),
                (0x18, Shrinking::Soon(event)) => {
                    *state = Shrinking::Done;
                    connection.succeed(cid)?;
                    connection.respond(event, Status::SUCCESS, 0x0004_0002)?;
                }
                (0x02, _) => {
                    assert_eq!(capsule.sqe.cdw10.get() & 0xff, 4);
                    let mut list = vec![0; 4096];
                    list[0] = 1;
                    connection.push_all(cid, &list, 4096, true)?;
                }
                (0x06, Shrinking::Done) if capsule.sqe.cdw10.get() == 0 => {
                    let script: Script = Script { blocks: 5, ..Script::default() };
                    let mut data = vec![0; 4096];
                    peer::identify_namespace(&script, &mut data);
                    connection.push_all(cid, &data, 4096, true)?;
                }
                _ => return Ok(Handled::No),
            }
            Ok(Handled::Yes)
        }),
        ..Script::default()
    };
    let options = Options { keep_alive: KEEP_ALIVE, ..options() };
    let mut setup = Setup::new(script, &options, EngineKind::Portable);
    setup.submit_read(8, 1);
    assert_eq!(setup.result(), Ok(()));
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "the new size is not visible in time");
        let mut now = state.lock().unwrap();
        if let Shrinking::Not(Some(event)) = *now {
            *now = Shrinking::Soon(event);
        }
        drop(now);
        setup.submit_read(8, 1);
        match setup.result() {
            Ok(()) => std::thread::sleep(Duration::from_millis(20)),
            result => {
                assert_eq!(result, Err(BlockError::OutOfRange));
                break;
            }
        }
    }
    setup.submit_read(5, 1);
    assert_eq!(setup.result(), Ok(()));
}

#[test]
fn admin_commands_transfer_data_in_both_directions() {
    use farblock_host::{Command, Data};
    use farblock_wire::Sqe;
    let script = Script {
        hook: Box::new(|connection: &mut Connection, qid, capsule| {
            if qid != 0 || capsule.sqe.opcode < 0xc0 {
                return Ok(Handled::No);
            }
            let length = capsule.sqe.dptr.length.get();
            if capsule.sqe.opcode & 1 != 0 {
                let mut data = capsule.data.clone();
                while data.len() < length as usize {
                    let at = data.len() as u32;
                    data.extend(connection.pull(capsule.cid(), at, (length - at).min(5000))?);
                }
                assert!(data == pattern(length as usize));
                connection.respond(capsule.cid(), Status::SUCCESS, length.into())?;
            } else {
                connection.push_all(capsule.cid(), &pattern(length as usize), 3000, true)?;
            }
            Ok(Handled::Yes)
        }),
        ..Script::default()
    };
    // Disable keep alives, which this target would answer only after its current command.
    let keep_alive = Duration::ZERO;
    let options = Options { tcp: digests(true, true), keep_alive, ..options() };
    let setup = Setup::new(script, &options, EngineKind::Auto);
    let command = |opcode, data| Command::new(Sqe::new(opcode, 0, 0), data);
    for length in [4u32, 8192, 8196, 1 << 20] {
        let bytes = pattern(length as usize);
        let write = command(0xc1, Data::ToController(length));
        let (cqe, _) = setup.controller.admin(&write, &bytes).unwrap();
        assert_eq!(cqe.result(), u64::from(length));
        let read = command(0xc2, Data::FromController(length));
        let (_, data) = setup.controller.admin(&read, &[]).unwrap();
        assert!(data == bytes, "{length}");
    }
    let wrong = setup.controller.admin(&command(0xc1, Data::ToController(8)), &[0; 4]);
    assert!(wrong.unwrap_err().to_string().contains("for 8 bytes came with 4 bytes"));
    let huge = command(0xc2, Data::FromController(u32::MAX));
    assert!(setup.controller.admin(&huge, &[]).unwrap_err().to_string().contains("too many"));
    let unknown = setup.controller.admin(&command(0x99, Data::None), &[]).unwrap().0;
    assert_eq!(unknown.status().code(), Status::INVALID_OPCODE.0);
}

/// Arbitrary bytes cause no panic and no hang, and every operation completes once.
#[test]
fn arbitrary_answers_cause_no_panic_and_no_hang() {
    let seed = std::env::var("FARBLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        now.as_nanos() as u64
    });
    println!("FARBLOCK_SEED={seed}");
    for engine in engines() {
        for round in 0..40 {
            let script = || {
                let random = Mutex::new(Random::new(seed + round));
                on_io(move |connection, capsule| {
                    let mut random = random.lock().unwrap();
                    let random = &mut *random;
                    noisy_answer(connection, capsule, random)?;
                    Ok(if random.within(0..20) == 0 { Handled::Close } else { Handled::Yes })
                })
            };
            let timeout = Duration::from_millis(100);
            let mut setup = Setup::hurried(script, timeout, &options(), engine);
            for token in 0..20 {
                if token % 3 == 0 {
                    setup.submit_write(40, token)
                } else {
                    setup.submit_read(2, token)
                }
            }
            setup.results(20);
        }
    }
}

/// Sends a PDU that is valid except for a few bytes.
fn noisy_answer(
    connection: &mut Connection,
    capsule: &Capsule,
    random: &mut Random,
) -> io::Result<()> {
    let cid = if random.within(0..10) == 0 { random.within(0..200) as u16 } else { capsule.cid() };
    let offset = if random.within(0..5) == 0 { random.within(0..2048) as u32 } else { 0 };
    match random.within(0..6) {
        0 => connection.succeed(cid),
        1 => connection.push(
            cid,
            offset,
            &vec![7; 1 + random.within(0..1500) as usize],
            random.within(0..16) as u8 & 0xc,
        ),
        2 => connection.r2t(cid, 3, offset, random.within(0..30000) as u32),
        3 => {
            let mut bytes = vec![0; random.within(0..100) as usize];
            random.fill(&mut bytes);
            connection.write(&bytes)
        }
        _ => connection.push_all(cid, &[9; 1024], 512, random.within(0..2) == 0),
    }
}

#[test]
fn write_zeroes_and_deallocate_obey_the_limits_of_the_controller() {
    for engine in engines() {
        // The target allows 8 KiB per Write Zeroes command and 300 blocks per deallocation, and
        // checks both limits.
        let script = Script { most: (1, 300), ..Script::default() };
        let mut setup = Setup::new(script, &options(), engine);
        let ones = || {
            let mut buffer = Buffer::new(1024 * BLOCK_BYTES);
            buffer.fill(1);
            buffer
        };
        let zero = |first| match first {
            3 => Op::deallocate(3, 1000, 2),
            _ => Op::write_zeroes(first, 1000, false, 2),
        };
        for first in [3, 5] {
            setup.driver.submit(0, Op::write(0, 1024, ones(), 1));
            assert_eq!(setup.result(), Ok(()));
            setup.driver.submit(0, zero(first));
            assert_eq!(setup.result(), Ok(()));
            setup.driver.submit(0, Op::read(0, 1024, ones(), 3));
            let data = setup.driver.wait(0, 1).remove(0).buffer.expect("the buffer of the read");
            let (start, end) =
                (first as usize * BLOCK_BYTES, (first as usize + 1000) * BLOCK_BYTES);
            assert!(data[start..end].iter().all(|&byte| byte == 0), "{engine}: old bytes");
            assert!(data[..start].iter().chain(&data[end..]).all(|&byte| byte == 1), "{engine}");
        }
    }
}
