//! Tests of the conformance suite itself: it must reject namespaces that have one flaw each.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use farblock_backends::mem::Mem;
use farblock_block::conformance::{self, MIN_BYTES};
use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, EngineKind, Reactor, TaskId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    OtherBlockSize,
    AnotherBuffer,
    LosesBufferOfRefused,
    ForgetsToken,
    WriteChangesItsBuffer,
    WritesOneBlockLess,
    WritesOneBlockFurther,
    ReadsLater,
    IgnoresZeroes,
    IgnoresZeroesThatDeallocate,
    ZeroesOneBlockMore,
    DeallocateTouchesNeighbour,
    DeallocatedReadsChange,
    WrapsAddresses,
    RefusesTheLastBlock,
    RefusesNothing,
    ZeroBlocksBeyondTheEnd,
    InFlightForgets,
    InFlightLate,
    FlushFails,
    CompletesOnlyLast,
    SwallowsOne,
    QueuesDoNotShare,
}

const FLAWS: [Flaw; 23] = [
    Flaw::OtherBlockSize,
    Flaw::AnotherBuffer,
    Flaw::LosesBufferOfRefused,
    Flaw::ForgetsToken,
    Flaw::WriteChangesItsBuffer,
    Flaw::WritesOneBlockLess,
    Flaw::WritesOneBlockFurther,
    Flaw::ReadsLater,
    Flaw::IgnoresZeroes,
    Flaw::IgnoresZeroesThatDeallocate,
    Flaw::ZeroesOneBlockMore,
    Flaw::DeallocateTouchesNeighbour,
    Flaw::DeallocatedReadsChange,
    Flaw::WrapsAddresses,
    Flaw::RefusesTheLastBlock,
    Flaw::RefusesNothing,
    Flaw::ZeroBlocksBeyondTheEnd,
    Flaw::InFlightForgets,
    Flaw::InFlightLate,
    Flaw::FlushFails,
    Flaw::CompletesOnlyLast,
    Flaw::SwallowsOne,
    Flaw::QueuesDoNotShare,
];

/// A slow RAM disk with one flaw.
struct Flawed {
    geometry: Geometry,
    flaw: Flaw,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Flawed {
    fn new(block_size: u32, flaw: Flaw) -> Flawed {
        let bytes = Arc::new(Mutex::new(vec![0; MIN_BYTES as usize + 8192]));
        let block_size = if flaw == Flaw::OtherBlockSize { 2048 } else { block_size };
        let geometry = Geometry::new(block_size, MIN_BYTES / u64::from(block_size));
        Flawed { geometry, flaw, bytes }
    }
}

impl Namespace for Flawed {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        format!("memory with the flaw {:?}", self.flaw)
    }

    fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let shared = self.flaw != Flaw::QueuesDoNotShare;
        let bytes = match shared {
            true => Arc::clone(&self.bytes),
            false => Arc::new(Mutex::new(self.bytes.lock().unwrap().clone())),
        };
        let (geometry, flaw) = (self.geometry, self.flaw);
        Ok(Box::new(FlawedQueue { geometry, flaw, bytes, done: Vec::new(), count: 0 }))
    }
}

struct FlawedQueue {
    geometry: Geometry,
    flaw: Flaw,
    bytes: Arc<Mutex<Vec<u8>>>,
    done: Vec<Completion>,
    count: u64,
}

impl FlawedQueue {
    fn check(&self, op: &Op) -> Result<(), BlockError> {
        let end = op.lba.wrapping_add(u64::from(op.blocks));
        match self.flaw {
            Flaw::WrapsAddresses if end < op.lba => Ok(()),
            Flaw::RefusesNothing if op.command == Command::Deallocate => Ok(()),
            Flaw::ZeroBlocksBeyondTheEnd if op.blocks == 0 => Ok(()),
            Flaw::RefusesTheLastBlock if end == self.geometry.blocks => Err(BlockError::OutOfRange),
            Flaw::FlushFails if op.command == Command::Flush && op.lba > 0 => {
                Err(BlockError::OutOfRange)
            }
            _ => op.check(&self.geometry),
        }
    }

    fn execute(&mut self, op: &mut Op) {
        if op.command == Command::Flush || op.lba > self.geometry.blocks || op.blocks == 0 {
            return;
        }
        self.count += 1;
        let mut bytes = self.bytes.lock().unwrap();
        let size = self.geometry.block_size as usize;
        let from = op.lba as usize * size;
        let to = from + self.geometry.bytes(op.blocks);
        match (op.command, &mut op.buffer, self.flaw) {
            (Command::Read, Some(buffer), _) => buffer.copy_from_slice(&bytes[from..to]),
            (Command::Write, Some(buffer), Flaw::WritesOneBlockLess) if op.blocks > 100 => {
                bytes[from..to - size].copy_from_slice(&buffer[..to - size - from]);
            }
            (Command::Write, Some(buffer), Flaw::WritesOneBlockFurther) => {
                bytes[from..to].copy_from_slice(buffer);
                bytes[to..to + size].fill(1);
            }
            (Command::Write, Some(buffer), _) => {
                bytes[from..to].copy_from_slice(buffer);
                if self.flaw == Flaw::WriteChangesItsBuffer {
                    buffer[0] ^= 1;
                }
            }
            (Command::WriteZeroes { deallocate: false }, _, Flaw::IgnoresZeroes) => {}
            (Command::WriteZeroes { deallocate: true }, _, Flaw::IgnoresZeroesThatDeallocate) => {}
            (Command::WriteZeroes { .. }, _, Flaw::ZeroesOneBlockMore) => {
                bytes[from..to + size].fill(0);
            }
            (Command::Deallocate, _, Flaw::DeallocateTouchesNeighbour) => {
                bytes[from.saturating_sub(size)..to].fill(0);
            }
            (Command::Deallocate, _, Flaw::DeallocatedReadsChange) => {
                bytes[from..to].fill(self.count as u8);
            }
            (Command::WriteZeroes { .. } | Command::Deallocate, _, _) => bytes[from..to].fill(0),
            _ => {}
        }
    }
}

impl Queue for FlawedQueue {
    fn submit(&mut self, mut op: Op) {
        let result = self.check(&op);
        if result.is_ok() {
            self.execute(&mut op);
        }
        if self.flaw == Flaw::ReadsLater && op.command == Command::Read && op.lba % 7 == 3 {
            op.buffer.as_deref_mut().unwrap_or_default().fill(0xa5);
        }
        let mut done = op.complete(result);
        match self.flaw {
            Flaw::AnotherBuffer => done.buffer = done.buffer.map(|own| Buffer::copy_of(&own)),
            Flaw::LosesBufferOfRefused if done.result.is_err() => done.buffer = None,
            Flaw::ForgetsToken => done.token &= 0xffff_ffff,
            Flaw::SwallowsOne if self.done.len() == 100 => return,
            _ => {}
        }
        self.done.push(done);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.flaw == Flaw::CompletesOnlyLast {
            done.clear();
        }
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        match self.flaw {
            Flaw::InFlightForgets => 0,
            Flaw::InFlightLate => self.done.len().saturating_sub(1),
            _ => self.done.len(),
        }
    }
}

fn passes(flaw: Flaw) -> bool {
    let make = |block_size| Arc::new(Flawed::new(block_size, flaw)) as Arc<dyn Namespace>;
    let run = || conformance::run(&make, EngineKind::Portable);
    catch_unwind(AssertUnwindSafe(run)).is_ok()
}

#[test]
fn the_conformance_suite_finds_every_flaw() {
    assert!(passes(Flaw::None));
    for flaw in FLAWS {
        // For an operation that never completes, the suite waits its full time limit, so another
        // test checks this flaw.
        if flaw != Flaw::SwallowsOne {
            assert!(!passes(flaw), "the suite does not find {flaw:?}");
        }
    }
}

#[test]
#[ignore = "waits for the suite's full time limit"]
fn the_conformance_suite_finds_a_lost_operation() {
    assert!(!passes(Flaw::SwallowsOne));
}

#[test]
fn the_read_only_suite_fails_for_a_writable_disk() {
    let make = |block_size| Arc::new(Mem::new(block_size, MIN_BYTES).unwrap()) as Arc<_>;
    let run = || conformance::run_read_only(&make, EngineKind::Portable);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}
