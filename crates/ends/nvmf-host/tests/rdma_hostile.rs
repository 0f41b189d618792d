//! Controllers that break the rules of NVMe/RDMA. The host must report an error, return each
//! buffer once, and free its registered memory.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Namespace, Op};
use farblock_host::{Controller, Error, Options};
use farblock_reactor::Buffer;
use farblock_verbs::Operation;
use farblock_wire::fabrics::ConnectCommand;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::rdma::CmAccept;
use farblock_wire::{Cqe, Status};
use peer::over_rdma::{Greeting, OverRdma, Paired, Reply};
use peer::{Capsule, Handled, Script, options};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK_BYTES: usize = 512;
/// A number of blocks that is too large for in-capsule data.
const LARGE: u32 = 64;

/// A script with a hook for commands of I/O queues except Connect.
fn on_io(
    hook: impl Fn(&mut Paired, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) -> Script<Paired> {
    let hook = move |end: &mut Paired, qid: u16, capsule: &Capsule| {
        if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 {
            return Ok(Handled::No);
        }
        hook(end, capsule)
    };
    Script { hook: Box::new(hook), ..Script::default() }
}

/// Returns options with a short timeout, for targets that leave I/O commands unanswered.
fn impatient() -> Options {
    Options { io_timeout: Duration::from_millis(500), ..options() }
}

struct Setup {
    driver: Driver,
    controller: Controller,
}

fn open(target: &OverRdma, options: &Options) -> Result<Setup, Error> {
    let controller = target.connect(options)?;
    let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1)?);
    let driver = Driver::with(&namespace, options.engine);
    Ok(Setup { driver, controller })
}

fn write(blocks: u32) -> Op {
    Op::write(0, blocks, Buffer::new(blocks as usize * BLOCK_BYTES), 1)
}

fn read(blocks: u32) -> Op {
    Op::read(0, blocks, Buffer::new(blocks as usize * BLOCK_BYTES), 2)
}

impl Setup {
    /// Runs operations, and checks that each returns its buffer.
    fn run(&mut self, ops: Vec<Op>) -> Vec<Result<(), BlockError>> {
        let count = ops.len();
        ops.into_iter().for_each(|op| self.driver.submit(0, op));
        let done = self.driver.wait(0, count);
        assert!(done.iter().all(|one| one.buffer.is_some()), "a buffer is missing");
        done.into_iter().map(|one| one.result).collect()
    }
}

/// Checks that the host loses the queue with one command in flight, and frees all memory.
fn assert_ends_the_queue(
    op: Op,
    options: &Options,
    hook: impl Fn(&mut Paired, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) {
    let target = OverRdma::new(on_io(hook));
    let mut setup = open(&target, options).expect("the host connects");
    assert_eq!(setup.run(vec![op]), [Err(BlockError::Disconnected)]);
    // Later operations fail at once.
    assert_eq!(setup.run(vec![read(1)]), [Err(BlockError::Disconnected)]);
    drop(setup);
    target.expect_nothing_left();
}

fn refused(greeting: Greeting) -> String {
    let target = OverRdma::greeting(Script::default(), greeting);
    let error = target
        .connect(&options())
        .map(drop)
        .expect_err("the host refuses the controller")
        .to_string();
    target.expect_nothing_left();
    error
}

#[test]
fn a_controller_that_follows_the_rules_is_served() {
    let target = OverRdma::new(Script::default());
    let mut setup = open(&target, &options()).expect("the host connects");
    let shown = setup.controller.namespace(1).expect("a namespace").describe();
    assert!(shown.starts_with("nvme+rdma://192.0.2.2/nqn."), "{shown}");
    for blocks in [1, 16, 17, 256, 257, 4000] {
        let bytes: Vec<u8> =
            (0..blocks as usize * BLOCK_BYTES).map(|at| (at % 253) as u8).collect();
        let mut buffer = Buffer::new(bytes.len());
        buffer.copy_from_slice(&bytes);
        assert_eq!(setup.run(vec![Op::write(3, blocks, buffer, 1)]), [Ok(())]);
        setup.driver.submit(0, Op::read(3, blocks, Buffer::new(bytes.len()), 2));
        let done = setup.driver.wait(0, 1).remove(0);
        assert_eq!(done.result, Ok(()));
        assert!(*done.buffer.expect("a buffer") == bytes[..], "{blocks} blocks");
    }
    drop(setup);
    assert!(target.was_shut_down());
    target.expect_nothing_left();
}

#[test]
fn a_lost_answer_to_the_resolution_of_an_address_is_requested_again() {
    let target = OverRdma::new(Script::default());
    target.network.lose_answers(target.address(), 2);
    let setup = open(&target, &options()).expect("the host connects");
    drop(setup);
    target.network.lose_answers(target.address(), u32::MAX);
    let error =
        target.connect(&options()).map(drop).expect_err("the target is unreachable").to_string();
    assert!(error.contains("timed out") && error.contains("the RDMA address"), "{error}");
    target.expect_nothing_left();
}

#[test]
fn each_reason_of_a_rejection_is_reported_in_words() {
    let reasons = [
        "invalid private data length",
        "invalid RECFMT",
        "invalid QID",
        "invalid HSQSIZE",
        "invalid HRQSIZE",
        "no RDMA resources",
        "invalid number of RDMA READs to answer (IRD)",
        "invalid number of RDMA READs to start (ORD)",
    ];
    for (code, words) in (1..).zip(reasons) {
        let error = refused(Box::new(move |_| Reply::reason(code)));
        assert!(error.contains(words), "reason {code}: {error}");
    }
    let error = refused(Box::new(|_| Reply::reason(9)));
    assert!(error.contains("rejected the connection") && error.contains('9'), "{error}");
}

#[test]
fn private_data_of_a_rejection_may_have_any_length_and_content() {
    for bytes in (0..8).chain([147, 148]) {
        for fill in [0, 1, 0xff] {
            let error = refused(Box::new(move |_| Reply::Reject(vec![fill; bytes])));
            assert!(error.contains("192.0.2.2"), "{bytes} bytes of {fill}: {error}");
        }
    }
}

#[test]
fn private_data_of_an_answer_are_checked() {
    let with = |recfmt: u16, entries: u16| {
        let mut data = vec![0; CmAccept::LEN];
        data[..2].copy_from_slice(&recfmt.to_le_bytes());
        data[2..4].copy_from_slice(&entries.to_le_bytes());
        data
    };
    for (data, words) in [
        (with(1, 32), "unknown format 1"),
        (with(0xffff, 32), "unknown format 65535"),
        (with(0, 0), "a queue of 0 entries"),
        (with(0, 1), "a queue of 1 entries"),
        // In an admin queue of three entries, a keep alive and an event request leave no room for
        // other commands.
        (with(0, 3), "a queue of 3 entries"),
        // The fabric pads short data with zeroes, as RoCE does.
        (Vec::new(), "a queue of 0 entries"),
    ] {
        let error = refused(Box::new(move |_| Reply::Accept(data.clone(), 32)));
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_host_announces_its_queues_and_its_reads() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let greeting = Box::new(move |param: &farblock_verbs::ConnParam| {
        let field =
            |at: usize| u16::from_le_bytes([param.private_data[at], param.private_data[at + 1]]);
        // The target's event swaps the host's initiator depth and responder resources.
        let reads = (param.initiator_depth, param.responder_resources);
        let queue = [field(0), field(2), field(4), field(6), field(8)];
        record.lock().unwrap().push((queue, reads, param.rnr_retry_count));
        Reply::entries(128)
    });
    let target = OverRdma::greeting(Script::default(), greeting);
    let setup = open(&target, &options()).expect("the host connects");
    drop(setup);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen[0], ([0, 0, 32, 31, 0], (16, 0), 7), "the admin queue");
    assert_eq!(seen[1], ([0, 1, 128, 127, peer::CNTLID], (16, 0), 7), "the I/O queue");
}

#[test]
fn a_shorter_receive_queue_of_the_controller_is_obeyed() {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let held = std::sync::Mutex::new(Vec::new());
    let hook = move |end: &mut Paired, qid: u16, capsule: &Capsule| {
        if capsule.sqe.opcode == NvmOpcode::FABRICS.0 && capsule.sqe.fctype() == 1 {
            let connect = ConnectCommand::from_sqe(&capsule.sqe);
            let expected = if qid == 0 { 7 } else { 3 };
            assert_eq!(connect.sqsize_z.get(), expected, "SQSIZE of queue {qid}");
        }
        if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 {
            return Ok(Handled::No);
        }
        let mut held = held.lock().unwrap();
        held.push(capsule.cid());
        if held.len() == 3 {
            // The fabric delivers at once, so a fourth command would be there by now.
            std::thread::sleep(Duration::from_millis(2));
            let more = usize::from(end.next().is_some());
            seen.fetch_max(held.len() + more, Ordering::AcqRel);
            held.drain(..).try_for_each(|cid| end.answer(cid, Status::SUCCESS))?;
        }
        Ok(Handled::Yes)
    };
    let script = Script { hook: Box::new(hook), ..Script::default() };
    let greeting = |param: &farblock_verbs::ConnParam| {
        let is_admin = param.private_data[2] == 0;
        Reply::entries(if is_admin { 8 } else { 4 })
    };
    let target = OverRdma::greeting(script, Box::new(greeting));
    let mut setup = open(&target, &options()).expect("the host connects");
    let ops = (0..60).map(|_| write(LARGE)).collect();
    assert_eq!(setup.run(ops), vec![Ok(()); 60]);
    assert_eq!(most.load(Ordering::Acquire), 3, "commands in flight");
    assert_eq!(setup.controller.queue_depth(), 3, "the reported depth");
    drop(setup);
    target.expect_nothing_left();
}

#[test]
fn a_controller_that_never_accepts_is_given_up() {
    let options = Options { connect_timeout: Duration::from_millis(300), ..options() };
    let target = OverRdma::greeting(Script::default(), Box::new(|_| Reply::Silence));
    let error = target.connect(&options).map(drop).expect_err("no answer").to_string();
    assert!(error.contains("answer"), "{error}");
    target.expect_nothing_left();
}

#[test]
fn responses_to_unknown_commands_end_the_queue() {
    for cid in [1, 127, 128, 0x7fff, 0xffff] {
        assert_ends_the_queue(read(LARGE), &options(), move |end, capsule| {
            assert_ne!(capsule.cid(), cid);
            end.answer(cid, Status::SUCCESS)?;
            Ok(Handled::Yes)
        });
    }
}

#[test]
fn a_second_response_to_a_command_ends_the_queue() {
    let target = OverRdma::new(on_io(|end, capsule| {
        end.answer(capsule.cid(), Status::SUCCESS)?;
        end.answer(capsule.cid(), Status::SUCCESS)?;
        Ok(Handled::Yes)
    }));
    let mut setup = open(&target, &options()).expect("the host connects");
    assert_eq!(setup.run(vec![write(LARGE)]), [Ok(())], "the first response counts");
    // The next command may start before or after the second response arrives.
    while setup.run(vec![write(LARGE)]) == [Ok(())] {}
    drop(setup);
    target.expect_nothing_left();
}

#[test]
fn messages_that_are_no_responses_end_the_queue() {
    for bytes in [0, 1, 15, 17, 64, 4096] {
        assert_ends_the_queue(write(LARGE), &options(), move |end, _| {
            // If the message is longer than the host's receive, the receive fails.
            let _ = end.send(&vec![0xff; bytes], None);
            Ok(Handled::Yes)
        });
    }
}

#[test]
fn an_invalidated_key_ends_the_queue() {
    for is_own in [true, false] {
        assert_ends_the_queue(read(LARGE), &options(), move |end, capsule| {
            let key = capsule.sqe.dptr.keyed_block().expect("a keyed block").key;
            let mut message = [0; Cqe::LEN];
            Cqe::new(capsule.cid(), peer::SQHD, Status::SUCCESS, 0).emit(&mut message);
            let _ = end.send(&message, Some(if is_own { key } else { key ^ 0x1000 }));
            Ok(Handled::Yes)
        });
    }
}

#[test]
fn a_controller_reaches_no_memory_but_the_queues() {
    for (is_read, key_mask, offset) in [
        (true, 0x5555_0000, 0),
        (false, 0x5555_0000, 0),
        // Memory beyond the registration, before it, and around the end of the address space.
        (true, 0, 64 << 20),
        (false, 0, 64 << 20),
        (false, 0, u64::MAX - 4095),
        (true, 0, 1 << 63),
    ] {
        assert_ends_the_queue(read(LARGE), &options(), move |end, capsule| {
            let block = capsule.sqe.dptr.keyed_block().expect("a keyed block");
            let address = block.address.wrapping_add(offset);
            let rkey = block.key ^ key_mask;
            let operation = match is_read {
                true => Operation::Read { address, rkey },
                false => Operation::Write { address, rkey },
            };
            end.transfer(operation, &mut [0xaa; 4096]).expect_err("the host's device refuses");
            Err(io::ErrorKind::BrokenPipe.into())
        });
    }
}

#[test]
fn the_keys_of_one_queue_do_not_open_another() {
    let first = std::sync::Mutex::new(None::<farblock_wire::sgl::KeyedBlock>);
    let target = OverRdma::new(on_io(move |end, capsule| {
        let block = capsule.sqe.dptr.keyed_block().expect("a keyed block");
        let other = *first.lock().unwrap().get_or_insert(block);
        if other.key == block.key {
            return Ok(Handled::No);
        }
        let operation = Operation::Read { address: other.address, rkey: other.key };
        end.transfer(operation, &mut [0; 512]).expect_err("the host's device refuses");
        Ok(Handled::Close)
    }));
    let controller = target.connect(&options()).expect("the host connects");
    let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1).expect("a namespace"));
    let mut driver = Driver::with(&namespace, options().engine);
    driver.open(&namespace);
    for (queue, result) in [(0, Ok(())), (1, Err(BlockError::Disconnected)), (0, Ok(()))] {
        driver.submit(queue, read(LARGE));
        assert_eq!(driver.wait(queue, 1).remove(0).result, result, "queue {queue}");
    }
}

#[test]
fn commands_to_a_controller_without_receives_time_out() {
    // Connect uses the only receive of the I/O queue, and the controller posts no other.
    let greeting = |param: &farblock_verbs::ConnParam| {
        let mut data = vec![0; CmAccept::LEN];
        CmAccept::new(128).emit(&mut data);
        let is_admin = param.private_data[2] == 0;
        Reply::Accept(data, if is_admin { 128 } else { 1 })
    };
    let script = on_io(|end, _| {
        while end.look() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Handled::Close)
    });
    let target = OverRdma::greeting(script, Box::new(greeting));
    let mut setup = open(&target, &impatient()).expect("the host connects");
    let results = setup.run((0..100).map(|_| write(LARGE)).collect());
    assert_eq!(results, vec![Err(BlockError::Disconnected); 100]);
    drop(setup);
    target.expect_nothing_left();
}

#[test]
fn a_controller_that_leaves_in_the_middle_flushes_all_commands() {
    for how in 0..3 {
        let target = OverRdma::new(on_io(move |end, capsule| {
            match how {
                0 => return Ok(Handled::Close),
                1 => end.disconnect(),
                _ => {
                    // Transfer half of the data, and then disconnect.
                    if let Some(block) = capsule.sqe.dptr.keyed_block() {
                        let (address, rkey) = (block.address, block.key);
                        end.transfer(Operation::Write { address, rkey }, &mut [7; 512])?;
                    }
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            Ok(Handled::Yes)
        }));
        let mut setup = open(&target, &options()).expect("the host connects");
        let results = setup.run((0..200).map(|_| read(LARGE)).collect());
        assert!(results.iter().all(|one| *one == Err(BlockError::Disconnected)), "way {how}");
        drop(setup);
        target.expect_nothing_left();
    }
}

#[test]
fn a_removed_device_of_the_host_ends_its_controller() {
    let target = OverRdma::new(on_io(|_, _| Ok(Handled::Yes)));
    let mut setup = open(&target, &options()).expect("the host connects");
    (0..8).for_each(|_| setup.driver.submit(0, read(LARGE)));
    target.network.remove_device(target.host());
    let done = setup.driver.wait(0, 8);
    assert!(done.iter().all(|one| one.result == Err(BlockError::Disconnected)));
    while setup.controller.lost().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((done, setup));
    target.expect_nothing_left();
}

#[test]
fn errors_of_commands_leave_the_queue_open() {
    let target = OverRdma::new(on_io(|end, capsule| match NvmOpcode(capsule.sqe.opcode) {
        NvmOpcode::WRITE => {
            end.answer(capsule.cid(), Status::INVALID_FIELD.with_dnr())?;
            Ok(Handled::Yes)
        }
        _ => Ok(Handled::No),
    }));
    let mut setup = open(&target, &options()).expect("the host connects");
    for _ in 0..40 {
        assert!(setup.run(vec![write(LARGE)])[0].is_err());
        assert_eq!(setup.run(vec![read(LARGE)]), [Ok(())]);
    }
    drop(setup);
    target.expect_nothing_left();
}
