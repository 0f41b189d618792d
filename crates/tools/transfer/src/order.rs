//! Tests with a disk that completes operations in reverse order, and fails all operations beyond an
//! offset. A transfer must report the lowest offset that failed, not the failure that came first.

use super::namespace_sink::NamespaceSink;
use super::source::{Next, Source};
use super::{Chunk, PIECE_BYTES, TICK};
use crate::error::Failure;
use crate::signals::Stop;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, EngineKind, Reactor, TaskId, Waker};
use std::sync::Arc;

const BLOCK_BYTES: u32 = 512;
const PIECES: usize = 8;
/// The offset in bytes from which on operations fail.
const BAD: u64 = 2 * PIECE_BYTES as u64;

struct LastFirst;

struct LastFirstQueue {
    waker: Waker,
    submitted: usize,
    waiting: Vec<Op>,
}

impl Namespace for LastFirst {
    fn geometry(&self) -> Geometry {
        Geometry::new(BLOCK_BYTES, (PIECES * PIECE_BYTES) as u64 / u64::from(BLOCK_BYTES))
    }

    fn describe(&self) -> String {
        "a disk that completes last first".to_owned()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let waker = reactor.waker(parent);
        Ok(Box::new(LastFirstQueue { waker, submitted: 0, waiting: Vec::new() }))
    }
}

impl Queue for LastFirstQueue {
    fn submit(&mut self, op: Op) {
        self.submitted += 1;
        self.waiting.push(op);
        self.waker.wake();
    }

    /// Completes the last submitted operation, once all operations have been submitted.
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.submitted < PIECES {
            return;
        }
        let Some(op) = self.waiting.pop() else { return };
        let is_bad = op.lba * u64::from(BLOCK_BYTES) >= BAD;
        let error =
            if op.command.writes() { BlockError::WriteFailed } else { BlockError::ReadFailed };
        done.push(op.complete(if is_bad { Err(error) } else { Ok(()) }));
        self.waker.wake();
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }
}

impl Drop for LastFirstQueue {
    fn drop(&mut self) {
        self.waiting.drain(..).for_each(|op| drop(op.abandon()));
    }
}

fn said(failure: &Failure) -> String {
    format!("{failure:?}")
}

#[test]
fn a_read_delivers_all_bytes_before_the_first_failure() {
    for &engine in EngineKind::HERE {
        let namespace: Arc<dyn Namespace> = Arc::new(LastFirst);
        let range = 0..namespace.geometry().capacity_bytes();
        let mut source = Source::namespace(&namespace, "it".to_owned(), engine, range)
            .expect("the source opens");
        let mut delivered = 0;
        let failure = loop {
            match source.next(TICK) {
                Ok(Next::Chunk(chunk)) => delivered += chunk.len(),
                Ok(Next::Waiting) => {}
                Ok(Next::End) => panic!("the source ends after {delivered} bytes"),
                Err(failure) => break failure,
            }
        };
        assert_eq!(delivered, BAD, "{engine}");
        assert!(said(&failure).contains(&format!("at byte {BAD} failed")), "{}", said(&failure));
    }
}

#[test]
fn a_write_reports_the_first_failed_offset() {
    for &engine in EngineKind::HERE {
        let stop = Stop::install().expect("the signal handlers are installed");
        let (name, place) = ("it".to_owned(), (0, 0));
        let disk: Arc<dyn Namespace> = Arc::new(LastFirst);
        let mut sink =
            NamespaceSink::open(&disk, engine, name, place, stop).expect("the sink opens");
        let chunk = || {
            let mut buffer = Buffer::new(PIECE_BYTES);
            buffer.fill(1);
            Chunk::Data(buffer, 0..PIECE_BYTES)
        };
        let all = (0..PIECES).try_for_each(|_| sink.write(chunk(), &mut drop));
        let failure = all.and_then(|()| sink.finish()).expect_err("some writes fail");
        assert!(said(&failure).contains(&format!("at byte {BAD} failed")), "{}", said(&failure));
    }
}
