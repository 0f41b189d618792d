//! `farblock read`, `write` and `copy`: bytes between namespaces, files and pipes.
//!
//! One thread reads ahead ([`source`]), the calling one writes ([`sink`]); between them are chunks
//! of at most [`PIECE_BYTES`], whose memory goes round.

mod commands;
mod place;
mod progress;
mod sink;
mod source;

pub(crate) use commands::{copy, read, write};

use crate::error::{Failure, Result};
use crate::signals::Stop;
use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::{Buffer, Config, EngineKind, Reactor, TaskId};
use indicatif::ProgressBar;
use serde::Serialize;
use sink::Sink;
use source::{Next, Source};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of one operation, if the namespace takes as many.
const PIECE_BYTES: usize = 512 << 10;
/// Operations in flight, and chunks waiting, on each side.
const DEPTH: usize = 16;
/// How often a transfer looks for signals and completions while no chunk comes.
const TICK: Duration = Duration::from_millis(50);

/// Some of a transfer's bytes.
struct Chunk {
    buffer: Buffer,
    range: Range<usize>,
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

/// What a transfer did.
#[derive(Serialize)]
pub(crate) struct Summary {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) mib_per_second: f64,
}

impl Summary {
    fn new(bytes: u64, time: Duration) -> Summary {
        let seconds = time.as_secs_f64();
        let mib = bytes as f64 / f64::from(1 << 20);
        let mib_per_second = if seconds > 0.0 { mib / seconds } else { 0.0 };
        Summary { bytes, seconds, mib_per_second }
    }
}

/// How much a transfer may move.
#[derive(Clone, Copy)]
struct Limits {
    /// Exactly this much has to come.
    exactly: Option<u64>,
    /// No more than this fits where it goes.
    room: Option<u64>,
}

/// Moves everything from `source` to `sink` and makes it durable.
fn transfer(
    mut source: Source,
    mut sink: Sink,
    limits: Limits,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<Summary> {
    let start = Instant::now();
    let outcome = pump(&mut source, &mut sink, limits, bar, stop);
    // The bar goes before anything is said.
    bar.finish_and_clear();
    let moved = outcome?;
    Ok(Summary::new(moved, start.elapsed()))
}

fn pump(
    source: &mut Source,
    sink: &mut Sink,
    limits: Limits,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<u64> {
    let mut moved = 0_u64;
    loop {
        if stop.requested() {
            // What is in flight is finished, so that no block is half-written.
            sink.finish()?;
            return Err(Failure::Interrupted(format!("interrupted after {moved} bytes")));
        }
        match source.next(TICK)? {
            Next::End => break,
            Next::Waiting => sink.poll(&mut |buffer| source.give_back(buffer))?,
            Next::Chunk(mut chunk) => {
                let room = limits.room.map_or(u64::MAX, |room| room - moved);
                let too_long = chunk.range.len() as u64 > room;
                if too_long {
                    chunk.range.end = chunk.range.start + room as usize;
                }
                moved += chunk.range.len() as u64;
                bar.inc(chunk.range.len() as u64);
                sink.write(chunk, &mut |buffer| source.give_back(buffer))?;
                if too_long {
                    sink.finish()?;
                    return Err(Failure::run(format_args!(
                        "the input is longer than what it goes to: the first {moved} bytes fit \
                         and are written, the rest is not"
                    )));
                }
            }
        }
    }
    sink.finish()?;
    match limits.exactly {
        Some(exactly) if moved < exactly => Err(Failure::run(format_args!(
            "the input ended early: {moved} bytes of {exactly} came, and are written"
        ))),
        _ => Ok(moved),
    }
}

/// Bytes of one operation on a namespace.
fn piece_bytes(geometry: &Geometry) -> usize {
    match geometry.max_blocks {
        0 => PIECE_BYTES,
        blocks => PIECE_BYTES.min(geometry.bytes(blocks)),
    }
}

fn open_queue(
    namespace: &dyn Namespace,
    engine: EngineKind,
) -> Result<(Reactor, TaskId, Box<dyn Queue>)> {
    let config = Config { engine, ..Config::default() };
    let reactor = Reactor::new(&config).map_err(|error| {
        let error = crate::error::os(&error);
        Failure::run(format_args!("cannot start the {engine} engine: {error}"))
    })?;
    let task = reactor.add_task();
    let queue = namespace.open(&reactor, task).map_err(|error| {
        let name = namespace.describe();
        Failure::run(format_args!("cannot open a queue into {name}: {error}"))
    })?;
    Ok((reactor, task, queue))
}

/// Why an operation failed, behind the word `failed`.
fn reason(error: BlockError) -> String {
    match error {
        BlockError::ReadFailed => "what stores it cannot be read there".to_owned(),
        BlockError::WriteFailed => "what stores it cannot be written there".to_owned(),
        other => other.to_string(),
    }
}

fn event_loop_failed(error: &io::Error) -> Failure {
    Failure::run(format_args!("the event loop failed: {}", crate::error::os(error)))
}
