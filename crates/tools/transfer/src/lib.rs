//! `farblock read`, `write` and `copy`: transfers between namespaces, files and pipes.
//!
//! One thread reads ahead ([`source`]), and the calling thread writes ([`sink`]). The reading
//! thread sends chunks of at most [`PIECE_BYTES`] to the writing thread, which returns their
//! memory. With `--resume`, a file records the offset up to which the data are durable
//! ([`resume`]).

pub mod args;
mod chunk;
mod commands;
mod file_sink;
mod job;
mod namespace_sink;
#[cfg(test)]
mod order;
mod place;
mod progress;
mod resume;
mod sink;
mod source;
mod verify;

pub use commands::{copy, read, write};

use chunk::Chunk;
use error::{Failure, Result};
use farblock_block::size::FullSize;
use farblock_block::{Availability, BlockError, Geometry, Namespace, Queue};
use farblock_disks as elsewhere;
use farblock_program::{error, output, remote, replace, signals};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId};
use indicatif::ProgressBar;
use resume::Map;
use serde::Serialize;
use signals::Stop;
use sink::Sink;
use source::{Next, Source};
use std::io;
use std::time::{Duration, Instant};

/// The number of bytes of one operation, unless the namespace limits operations to fewer.
const PIECE_BYTES: usize = 512 << 10;
/// The maximum number of operations in flight and of waiting chunks, on each side.
const DEPTH: usize = 32;
/// The longest wait for a chunk before the writer checks for signals and completions.
const TICK: Duration = Duration::from_millis(50);
/// The interval between flushes. A resumed transfer repeats the work of about this time at most.
const CHECKPOINT: Duration = Duration::from_secs(1);
/// The time limit for making the written data durable after an interruption or a failure.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Summary {
    bytes: u64,
    seconds: f64,
    mib_per_second: f64,
    /// The number of bytes that an earlier attempt had transferred (`--resume`).
    resumed_from: u64,
    /// Whether the command read and compared both ends afterwards (`--verify`).
    verified: bool,
}

impl Summary {
    fn new(bytes: u64, time: Duration) -> Summary {
        let seconds = time.as_secs_f64();
        let mib = bytes as f64 / f64::from(1 << 20);
        let mib_per_second = if seconds > 0.0 { mib / seconds } else { 0.0 };
        Summary { bytes, seconds, mib_per_second, resumed_from: 0, verified: false }
    }
}

/// The size limits of a transfer.
#[derive(Clone, Copy)]
struct Limits {
    /// The exact number of bytes that the source must deliver, if known.
    exactly: Option<u64>,
    /// The space at the destination in bytes; `None`: no limit.
    room: Option<u64>,
}

struct Transfer<'a> {
    source: Source,
    sink: Sink,
    limits: Limits,
    /// The record of the progress; `None` without `--resume`.
    map: Option<&'a mut Map>,
    bar: &'a ProgressBar,
    stop: &'a Stop,
}

impl Transfer<'_> {
    /// Moves all data and makes them durable. Returns the number of bytes, and the sink.
    fn run(mut self) -> Result<(u64, Sink)> {
        let outcome = self.pump();
        // Remove the progress bar before printing a message.
        self.bar.finish_and_clear();
        match outcome {
            Ok(moved) => Ok((moved, self.sink)),
            Err(failure) => Err(self.end_early(failure)),
        }
    }

    fn pump(&mut self) -> Result<u64> {
        let mut moved = 0_u64;
        let mut checkpoint = Instant::now();
        loop {
            if self.stop.requested() {
                return Err(interrupted());
            }
            if self.sink.is_lasting() && checkpoint.elapsed() >= CHECKPOINT {
                self.sink.checkpoint()?;
                checkpoint = Instant::now();
            }
            self.write_down()?;
            let Transfer { source, sink, limits, bar, .. } = self;
            match source.next(TICK)? {
                Next::End => break,
                Next::Waiting => sink.poll(&mut |buffer| source.give_back(buffer))?,
                Next::Chunk(mut chunk) => {
                    let room = limits.room.map_or(u64::MAX, |room| room - moved);
                    let too_long = chunk.len() > room;
                    chunk.truncate(room);
                    moved += chunk.len();
                    bar.inc(chunk.len());
                    sink.write(chunk, &mut |buffer| source.give_back(buffer))?;
                    if too_long {
                        return Err(Failure::run("the input is longer than the destination"));
                    }
                }
            }
        }
        self.sink.finish()?;
        self.write_down()?;
        match self.limits.exactly {
            Some(exactly) if moved < exactly => Err(Failure::run(format_args!(
                "the input ended early, after {} of {}",
                FullSize(moved),
                FullSize(exactly)
            ))),
            _ => Ok(moved),
        }
    }

    fn write_down(&mut self) -> Result<()> {
        match &mut self.map {
            Some(map) => map.reached(self.sink.durable()),
            None => Ok(()),
        }
    }

    /// After a failure, makes as much data durable as possible. Returns the failure with the
    /// destination's state added.
    fn end_early(&mut self, failure: Failure) -> Failure {
        if self.sink.is_lasting() {
            self.sink.wind_up();
        }
        let mut state = self.sink.state();
        if let Some(map) = &mut self.map {
            match map.reached(self.sink.durable()) {
                Ok(()) => state.push_str("; the same command continues from there"),
                Err(error) => tracing::warn!("{error:?}"),
            }
        }
        match failure {
            Failure::Interrupted(_) => Failure::Interrupted(format!("interrupted: {state}")),
            // The message already describes the state of a pipe.
            Failure::Run(text) if matches!(self.sink, Sink::Stream { .. }) => Failure::Run(text),
            Failure::Run(text) => Failure::Run(format!("{text}; {state}")),
            other => other,
        }
    }
}

/// Returns the failure after a signal. The caller adds the state of the transfer.
fn interrupted() -> Failure {
    Failure::Interrupted("interrupted".to_owned())
}

/// Returns the number of bytes of one operation on a namespace.
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

/// Returns the reason for a failed operation, as the end of a sentence.
fn reason(error: BlockError, namespace: &dyn Namespace) -> String {
    match error {
        BlockError::ReadFailed => "its storage cannot be read".to_owned(),
        BlockError::WriteFailed => "its storage cannot be written".to_owned(),
        BlockError::Conflict => {
            "another host has reserved the namespace: release the reservation there, or preempt it"
                .to_owned()
        }
        BlockError::Disconnected => match (namespace.availability(), namespace.trouble()) {
            (Availability::Gone, why) => {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                format!("the namespace is unreachable, and farblock gave it up{why}")
            }
            (_, Some(why)) => format!(
                "the namespace is unreachable for longer than this command waits \
                 (--ctrl-loss-timeout): {why}"
            ),
            (_, None) => "its target answers with path errors for longer than this command waits \
                          (--ctrl-loss-timeout): restore the storage or the legs that \
                          `farblock status` on the target's machine names"
                .to_owned(),
        },
        other => other.to_string(),
    }
}

fn event_loop_failed(error: &io::Error) -> Failure {
    Failure::run(format_args!("the event loop failed: {}", crate::error::os(error)))
}
