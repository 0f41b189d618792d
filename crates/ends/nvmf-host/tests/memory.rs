//! The host over the memory transport. Queues behave in the same way over any transport.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Namespace, Op};
use farblock_host::{Controller, Error, Options};
use farblock_random::Random;
use farblock_reactor::Buffer;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::{Cqe, Status};
use peer::in_memory::{Near, Wired};
use peer::{Capsule, Carries as _, Handled, Script, engines, options};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK_BYTES: usize = 512;

struct Setup {
    driver: Driver,
    controller: Controller,
    near: Near,
}

fn connect(script: Script<Wired>, options: &Options) -> Result<Setup, Error> {
    let near = Near::new(script);
    let controller = near.connect(options)?;
    let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1)?);
    let driver = Driver::with(&namespace, options.engine);
    Ok(Setup { driver, controller, near })
}

/// A script with a hook for commands of I/O queues except Connect.
fn on_io(
    hook: impl Fn(&mut Wired, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) -> Script<Wired> {
    let hook = move |end: &mut Wired, qid: u16, capsule: &Capsule| {
        if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 {
            return Ok(Handled::No);
        }
        hook(end, capsule)
    };
    Script { hook: Box::new(hook), ..Script::default() }
}

fn each(run: impl Fn(&Options)) {
    for engine in engines() {
        run(&Options { engine, ..options() });
    }
}

impl Setup {
    fn results(&mut self, count: usize) -> Vec<Result<(), BlockError>> {
        self.driver.wait(0, count).into_iter().map(|done| done.result).collect()
    }
}

fn read(blocks: u32, token: u64) -> Op {
    Op::read(0, blocks, Buffer::new(blocks as usize * BLOCK_BYTES), token)
}

fn write(blocks: u32, token: u64) -> Op {
    Op::write(0, blocks, Buffer::new(blocks as usize * BLOCK_BYTES), token)
}

/// Writes and reads data of sizes that need a capsule, one command, and several commands that share
/// the buffer.
#[test]
fn reads_return_the_written_data() {
    each(|options| {
        let mut setup = connect(Script::default(), options).unwrap();
        let mut random = Random::new(18);
        for blocks in [1, 16, 17, 256, 257, 4000] {
            let mut buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
            random.fill(&mut buffer);
            let wanted = buffer.to_vec();
            setup.driver.submit(0, Op::write(3, blocks, buffer, 1));
            assert_eq!(setup.results(1), [Ok(())]);
            let buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
            setup.driver.submit(0, Op::read(3, blocks, buffer, 2));
            let done = setup.driver.wait(0, 1).remove(0);
            assert_eq!(done.result, Ok(()));
            assert!(*done.buffer.expect("a buffer") == wanted[..], "{blocks} blocks");
        }
        setup.driver.submit(0, Op::flush(3));
        assert_eq!(setup.results(1), [Ok(())]);
        drop((setup.driver, setup.controller));
        assert!(setup.near.was_shut_down());
    });
}

/// Answers may arrive in any order, even those to commands that share a buffer.
#[test]
fn answers_may_arrive_in_any_order() {
    each(|options| {
        let held = std::sync::Mutex::new(Vec::new());
        let script = on_io(move |end, capsule| {
            let mut held = held.lock().unwrap();
            held.push(capsule.clone());
            if held.len() == 8 {
                for capsule in held.drain(..).rev() {
                    let blocks = (capsule.sqe.cdw12.get() & 0xffff) as usize + 1;
                    let first = capsule.sqe.cdw10.get() as u8;
                    end.push_all(capsule.cid(), &vec![first; blocks * BLOCK_BYTES], 0, false)?;
                }
            }
            Ok(Handled::Yes)
        });
        let mut setup = connect(script, options).unwrap();
        // Each read takes four commands of 128 KiB.
        setup.driver.submit(0, read(1024, 1));
        setup.driver.submit(0, read(1024, 2));
        for done in setup.driver.wait(0, 2) {
            assert_eq!(done.result, Ok(()));
            let buffer = done.buffer.expect("a buffer");
            let starts = [0, 256, 512, 768].map(|block: usize| buffer[block * BLOCK_BYTES]);
            assert_eq!(starts, [0, 256, 512, 768].map(|block| block as u8));
        }
    });
}

/// The controller closes at different commands. Each operation must complete once and return its
/// buffer.
#[test]
fn operations_complete_once_if_the_controller_closes_at_any_command() {
    each(|options| {
        for last in 0..12 {
            let seen = AtomicUsize::new(0);
            let script = on_io(move |_, _| match seen.fetch_add(1, Ordering::AcqRel) {
                count if count == last => Ok(Handled::Close),
                // The target never answers every third command.
                count if count % 3 == 2 => Ok(Handled::Yes),
                _ => Ok(Handled::No),
            });
            let mut setup = connect(script, options).unwrap();
            for token in 0..10 {
                let op = if token % 2 == 0 { read(1024, token) } else { write(1024, token) };
                setup.driver.submit(0, op);
            }
            let done = setup.driver.wait(0, 10);
            let mut tokens: Vec<_> = done.iter().map(|done| done.token).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..10).collect::<Vec<_>>());
            assert!(done.iter().all(|done| done.buffer.is_some()));
            assert!(done.iter().any(|done| done.result == Err(BlockError::Disconnected)));
            setup.driver.submit(0, read(1, 1));
            assert_eq!(setup.results(1), [Err(BlockError::Disconnected)]);
        }
    });
}

/// The buffer of an unanswered command stays registered until the controller has closed the
/// connection, because the controller may still write to the buffer.
#[test]
fn the_buffer_of_an_unanswered_command_stays_registered() {
    each(|options| {
        let options = Options { io_timeout: Duration::from_secs(2), ..options.clone() };
        let script = || on_io(|_, _| Ok(Handled::Yes));
        // The timeout also applies to commands before the first I/O.
        let mut tries = (0..100).map(|_| connect(script(), &options));
        let mut setup = tries.find_map(Result::ok).expect("one of a hundred attempts succeeds");
        setup.driver.submit(0, read(8, 1));
        setup.driver.submit(0, write(64, 2));
        assert_eq!(setup.results(2), [Err(BlockError::Disconnected); 2]);
    });
}

#[test]
fn an_answer_to_an_unknown_command_ends_the_connection() {
    each(|options| {
        let script = on_io(|end, capsule| {
            let stray = capsule.cid() ^ 1;
            end.wire.answer(Cqe::new(stray, 0, Status::SUCCESS, 0));
            Ok(Handled::No)
        });
        let mut setup = connect(script, options).unwrap();
        setup.driver.submit(0, read(8, 1));
        assert_eq!(setup.results(1), [Err(BlockError::Disconnected)]);
        assert_eq!(
            setup.controller.lost().map(|lost| lost.to_string()),
            None,
            "the controller is lost with its queue"
        );
    });
}

/// After a transient failure, the host sends a command again, from the same buffer.
#[test]
fn a_command_is_retried_after_a_transient_failure() {
    each(|options| {
        let seen = AtomicUsize::new(0);
        let script = on_io(move |end, capsule| {
            if seen.fetch_add(1, Ordering::AcqRel) % 4 == 3 {
                return Ok(Handled::No);
            }
            end.respond(capsule.cid(), Status::INTERNAL_ERROR, 0).map(|()| Handled::Yes)
        });
        let mut setup = connect(script, options).unwrap();
        for token in 0..8 {
            setup.driver.submit(0, if token % 2 == 0 { read(64, token) } else { write(64, token) });
            assert_eq!(setup.results(1), [Ok(())], "{token}");
        }
    });
}

/// If the connection closes while the host enables the controller, the attempt to connect fails. If
/// it closes later, the controller's I/O queues close, too.
#[test]
fn a_closed_connection_fails_the_connect_and_a_lost_controller_closes_its_queues() {
    each(|options| {
        for last in 0..8 {
            let seen = AtomicUsize::new(0);
            let hook = move |_: &mut Wired, _: u16, _: &Capsule| {
                let is_last = seen.fetch_add(1, Ordering::AcqRel) == last;
                Ok(if is_last { Handled::Close } else { Handled::No })
            };
            match connect(Script { hook: Box::new(hook), ..Script::default() }, options) {
                Ok(mut setup) => {
                    setup.driver.submit(0, read(8, 1));
                    let _either = setup.results(1);
                }
                Err(error) => assert!(error.to_string().contains("closed"), "{error}"),
            }
        }
        let mut setup = connect(on_io(|_, _| Ok(Handled::Yes)), options).unwrap();
        setup.driver.submit(0, read(8, 1));
        setup.near.cut();
        assert_eq!(setup.results(1), [Err(BlockError::Disconnected)]);
        assert!(setup.controller.namespace(1).is_err());
    });
}
