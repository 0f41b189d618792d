//! Why a benchmark does not start, and why a run of it ends early.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farblock_block::{BlockError, Command};
use thiserror::Error;

/// Why a plan cannot be carried out. Found before any I/O is done, except for the last two.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A pattern that makes no sense on any namespace.
    #[error("the pattern {text:?} is not usable: {why}")]
    BadPattern {
        /// The pattern's name or text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A plan that measures nothing.
    #[error("the plan is not usable: {0}")]
    BadPlan(&'static str),
    /// A pattern writes to a namespace that may hold somebody's data.
    #[error(
        "{what} would overwrite data on {namespace}: pass --allow-writes to let it, or choose \
         read patterns only"
    )]
    WritesRefused {
        /// What writes: the pattern `4k random write`.
        what: String,
        /// The namespace's description.
        namespace: String,
    },
    /// A pattern writes to a namespace that cannot be written.
    #[error("{what} needs to write, but {namespace} is read-only")]
    ReadOnly {
        /// What writes.
        what: String,
        /// The namespace's description.
        namespace: String,
    },
    /// A pattern that this namespace is too small or too coarse for.
    #[error("the pattern {pattern} does not fit {namespace}: {why}")]
    DoesNotFit {
        /// The pattern's name.
        pattern: String,
        /// The namespace's description.
        namespace: String,
        /// What does not fit.
        why: String,
    },
    /// Writing data to a fresh namespace, so that there is something to read, failed.
    #[error("filling {namespace} with data failed: {error}")]
    FillFailed {
        /// The namespace's description.
        namespace: String,
        /// What happened.
        #[source]
        error: RunError,
    },
    /// The floor's server cannot be used.
    #[error("the floor at {address}: {}", floor_words(.error))]
    Floor {
        /// Where it should be.
        address: SocketAddr,
        /// What happened.
        #[source]
        error: io::Error,
    },
    /// It was cancelled before anything was measured.
    #[error("cancelled")]
    Cancelled,
}

/// Why a run of a pattern came to an end before its time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An I/O failed. One is enough: a benchmark that goes on over errors measures something else.
    #[error(
        "job {job}: {} of {blocks} blocks at LBA {lba} failed after {completed} good I/Os: {error}",
        command_word(*.command)
    )]
    Io {
        /// The job, from 0.
        job: u32,
        /// What the operation was.
        command: Command,
        /// Its first block.
        lba: u64,
        /// Its number of blocks.
        blocks: u32,
        /// I/Os that the job had completed before.
        completed: u64,
        /// What the namespace said.
        error: BlockError,
    },
    /// A job could not open a queue.
    #[error("job {job}: opening a queue failed: {error}")]
    Open {
        /// The job, from 0.
        job: u32,
        /// What the namespace said.
        error: BlockError,
    },
    /// A job's event loop could not be made or broke.
    #[error("job {job}: the event loop failed: {error}")]
    Reactor {
        /// The job, from 0.
        job: u32,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A job's thread could not be started.
    #[error("job {job}: no thread could be started: {error}")]
    Thread {
        /// The job, from 0.
        job: u32,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// I/Os did not complete in time after the end of the run.
    #[error("job {job}: {in_flight} I/Os did not complete within {limit:?} of the end")]
    Hung {
        /// The job, from 0.
        job: u32,
        /// How many are outstanding.
        in_flight: usize,
        /// How long was waited.
        limit: Duration,
    },
    /// The floor's connection to its server failed.
    #[error("the floor: {}", floor_words(.0))]
    Floor(#[source] io::Error),
    /// The time to begin had passed when everything was ready.
    #[error("the agreed start had passed {0:?} before everything was ready")]
    Late(Duration),
    /// Not one I/O completed in the measured time.
    #[error("not one I/O completed in the measured time")]
    NothingMeasured,
    /// It was cancelled.
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
