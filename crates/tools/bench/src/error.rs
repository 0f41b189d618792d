//! Errors that prevent a benchmark, and errors that end a run of it early.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farblock_block::{BlockError, Command};
use thiserror::Error;

/// Why a plan cannot be run. All but the last two are found before the first I/O.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A pattern that is invalid on any namespace.
    #[error("the pattern {text:?} is not usable: {why}")]
    BadPattern {
        /// The pattern's name or text.
        text: String,
        /// The reason.
        why: String,
    },
    /// A plan that measures nothing.
    #[error("the plan is not usable: {0}")]
    BadPlan(&'static str),
    /// A pattern writes to a namespace that may hold user data.
    #[error(
        "{what} would overwrite data on {namespace}: pass --allow-writes to let it, or choose \
         read patterns only"
    )]
    WritesRefused {
        /// The writer: the pattern `4k random write`.
        what: String,
        /// The namespace's description.
        namespace: String,
    },
    /// A pattern writes to a read-only namespace.
    #[error("{what} needs to write, but {namespace} is read-only")]
    ReadOnly {
        /// The writer.
        what: String,
        /// The namespace's description.
        namespace: String,
    },
    /// The namespace is too small for a pattern, or its blocks are too large.
    #[error("the pattern {pattern} does not fit {namespace}: {why}")]
    DoesNotFit {
        /// The pattern's name.
        pattern: String,
        /// The namespace's description.
        namespace: String,
        /// The reason.
        why: String,
    },
    /// Filling a fresh namespace with data to read failed.
    #[error("filling {namespace} with data failed: {error}")]
    FillFailed {
        /// The namespace's description.
        namespace: String,
        /// The reason.
        #[source]
        error: RunError,
    },
    /// The floor's server is unusable.
    #[error("the floor at {address}: {}", floor_words(.error))]
    Floor {
        /// The server's address.
        address: SocketAddr,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The benchmark was cancelled before the first measurement.
    #[error("cancelled")]
    Cancelled,
}

/// Why a run ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An I/O failed. One failed I/O is enough: a benchmark that continues after errors measures
    /// something else.
    #[error(
        "job {job}: {} of {blocks} blocks at LBA {lba} failed after {completed} good I/Os: {error}",
        command_word(*.command)
    )]
    Io {
        /// The job, from 0.
        job: u32,
        /// The operation's command.
        command: Command,
        /// The operation's first block.
        lba: u64,
        /// The operation's number of blocks.
        blocks: u32,
        /// I/Os that the job had completed before the failure.
        completed: u64,
        /// The namespace's error.
        error: BlockError,
    },
    /// A job could not open a queue.
    #[error("job {job}: opening a queue failed: {error}")]
    Open {
        /// The job, from 0.
        job: u32,
        /// The namespace's error.
        error: BlockError,
    },
    /// A job's event loop could not be created, or failed.
    #[error("job {job}: the event loop failed: {error}")]
    Reactor {
        /// The job, from 0.
        job: u32,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A job's thread could not be started.
    #[error("job {job}: no thread could be started: {error}")]
    Thread {
        /// The job, from 0.
        job: u32,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// I/Os did not complete in time after the end of the run.
    #[error("job {job}: {in_flight} I/Os did not complete within {limit:?} of the end")]
    Hung {
        /// The job, from 0.
        job: u32,
        /// The number of outstanding I/Os.
        in_flight: usize,
        /// The time waited.
        limit: Duration,
    },
    /// The floor's connection to its server failed.
    #[error("the floor: {}", floor_words(.0))]
    Floor(#[source] io::Error),
    /// The start time had passed before everything was ready.
    #[error("the agreed start had passed {0:?} before everything was ready")]
    Late(Duration),
    /// No I/O completed in the measured time.
    #[error("not one I/O completed in the measured time")]
    NothingMeasured,
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
}

fn floor_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "nothing listens there: start `farblock bench --floor-serve` on that machine".to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the other end closed the connection; is it `farblock bench --floor-serve`?".to_owned()
        }
        io::ErrorKind::InvalidData => {
            "what listens there is no `farblock bench --floor-serve`".to_owned()
        }
        io::ErrorKind::TimedOut => "the other end does not answer; is that machine up, does a \
                                    firewall let the port through, and is it `farblock bench \
                                    --floor-serve`?"
            .to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no way to that address from here".to_owned()
        }
        _ => error.to_string(),
    }
}

fn command_word(command: Command) -> &'static str {
    match command {
        Command::Read => "a read",
        Command::Write => "a write",
        Command::Flush => "a flush",
        Command::WriteZeroes { .. } => "a write-zeroes",
        Command::Deallocate => "a deallocate",
    }
}
