//! A seeded fuzzer of the host over RDMA. A scripted controller answers at random: mostly by the
//! rules, sometimes not. Each operation must end once with its buffer, a successful read must have
//! the controller's data, and no registered memory may remain.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_host::Options;
use farblock_random::Random;
use farblock_reactor::Buffer;
use farblock_verbs::{ConnParam, Operation};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::{Cqe, Status};
use peer::over_rdma::{OverRdma, Paired, Reply};
use peer::{Capsule, Carries, Handled, Script, options};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SEEDS: std::ops::Range<u64> = 0..120;
const OPERATIONS: usize = 40;
const BLOCK_BYTES: usize = 512;
/// The byte that all reads of an honest controller return.
const CONTENT: u8 = 0x5c;

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; random.below(most + 1) as usize];
    random.fill(&mut bytes);
    bytes
}

/// The answer to a connection request: one in eight is random.
fn greet(random: &mut Random) -> Reply {
    match random.below(24) {
        0 => Reply::Accept(random_bytes(random, 196), random.below(129) as u16),
        1 => Reply::Reject(random_bytes(random, 148)),
        2 => Reply::reason(random.below(12) as u16),
        _ => Reply::entries(2 + random.below(127) as u16),
    }
}

/// Answers a command in a random way that breaks the rules.
fn misbehave(end: &mut Paired, capsule: &Capsule, random: &mut Random) -> io::Result<Handled> {
    let status = Status(random.below(1 << 15) as u16);
    match random.below(9) {
        0 => end.answer(random.below(1 << 16) as u16, status)?,
        1 => end.answer(random.below(130) as u16, Status::SUCCESS)?,
        2 => {
            end.answer(capsule.cid(), status)?;
            end.answer(capsule.cid(), status)?;
        }
        3 => end.send(&random_bytes(random, 80), None)?,
        4 => {
            let mut message = [0; Cqe::LEN];
            random.fill(&mut message);
            let key = match capsule.sqe.dptr.keyed_block() {
                Some(block) if random.below(2) == 0 => block.key,
                _ => random.below(1 << 32) as u32,
            };
            end.send(&message, Some(key))?;
        }
        5 => {
            let Some(block) = capsule.sqe.dptr.keyed_block() else { return Ok(Handled::No) };
            let address = block.address.wrapping_add(random.below(8 << 20));
            let rkey = block.key ^ (random.below(4) / 3) as u32;
            let mut bytes = vec![0xee; 1 + random.below(8192) as usize];
            let operation = match random.below(2) {
                0 => Operation::Read { address, rkey },
                _ => Operation::Write { address, rkey },
            };
            end.transfer(operation, &mut bytes)?;
            // Other reads may now have wrong data.
            return Ok(Handled::Close);
        }
        6 => return Ok(Handled::Close),
        7 => end.disconnect(),
        // No answer.
        _ => {}
    }
    Ok(Handled::Yes)
}

fn honest(end: &mut Paired, capsule: &Capsule) -> io::Result<Handled> {
    if NvmOpcode(capsule.sqe.opcode) != NvmOpcode::READ {
        return Ok(Handled::No);
    }
    let blocks = (capsule.sqe.cdw12.get() & 0xffff) as usize + 1;
    end.push_all(capsule.cid(), &vec![CONTENT; blocks * BLOCK_BYTES], 0, false)?;
    Ok(Handled::Yes)
}

/// Creates a target for one seed. With `admin`, the target also misbehaves on the admin queue.
fn target(seed: u64, admin: bool) -> OverRdma {
    let random = Arc::new(Mutex::new(Random::new(seed)));
    let for_hook = Arc::clone(&random);
    let hook = move |end: &mut Paired, qid: u16, capsule: &Capsule| {
        let mut random = for_hook.lock().unwrap();
        let is_target = if qid == 0 { admin } else { capsule.sqe.opcode != NvmOpcode::FABRICS.0 };
        match is_target && random.below(12) == 0 {
            true => misbehave(end, capsule, &mut random),
            false if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 => Ok(Handled::No),
            false => honest(end, capsule),
        }
    };
    let script = Script { hook: Box::new(hook), ..Script::default() };
    let greeting = move |_: &ConnParam| greet(&mut random.lock().unwrap());
    OverRdma::greeting(script, Box::new(greeting))
}

/// Submits operations of random sizes; all must end.
fn load(namespace: &Arc<dyn Namespace>, options: &Options, random: &mut Random) {
    let mut driver = Driver::new(options.engine);
    if driver.try_open(namespace).is_err() {
        return;
    }
    for token in 0..OPERATIONS as u64 {
        let blocks = 1 + random.below(300) as u32;
        let buffer = Buffer::new(blocks as usize * BLOCK_BYTES);
        let op = match random.below(3) {
            0 => Op::write(random.below(100), blocks, buffer, token),
            1 => Op::flush(token),
            _ => Op::read(random.below(100), blocks, buffer, token),
        };
        driver.submit(0, op);
    }
    let done = driver.wait(0, OPERATIONS);
    let mut tokens: Vec<u64> = done.iter().map(|one| one.token).collect();
    tokens.sort_unstable();
    assert!(tokens.iter().copied().eq(0..OPERATIONS as u64), "{tokens:?}");
}

fn round(seed: u64) {
    println!("seed {seed}");
    let options = Options {
        io_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(500),
        ..options()
    };
    let target = target(seed, seed.is_multiple_of(3));
    if let Ok(controller) = target.connect(&options)
        && let Ok(namespace) = controller.namespace(1)
    {
        load(&(Arc::new(namespace) as Arc<dyn Namespace>), &options, &mut Random::new(!seed));
    }
    target.expect_nothing_left();
}

#[test]
fn a_random_controller_makes_the_host_leak_no_buffer_and_no_memory() {
    match std::env::var("FARBLOCK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => round(seed),
        None => SEEDS.for_each(round),
    }
}
