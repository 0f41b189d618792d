//! Errors that prevent a benchmark, and errors that end one of its runs early.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farblock_block::{BlockError, Command};
use thiserror::Error;

/// The reason why a plan cannot be run. The benchmark returns all errors except `FillFailed` and
/// `Cancelled` before its first I/O.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A pattern is invalid, whatever the namespace.
    #[error("the pattern {text:?} is not usable: {why}")]
    BadPattern {
        /// The name or text of the pattern.
        text: String,
        /// The reason.
        why: String,
    },
    /// The plan measures nothing.
    #[error("the plan is not usable: {0}")]
    BadPlan(&'static str),
    /// A pattern writes to a namespace that may hold user data.
    #[error(
        "{what} would overwrite data on {namespace}: pass --allow-writes to permit that, or choose \
         only read patterns"
    )]
    WritesRefused {
        /// The writer, such as the pattern `4k random write`.
        what: String,
        /// The description of the namespace.
        namespace: String,
    },
    /// A pattern writes to a read-only namespace.
    #[error("{what} needs to write, but {namespace} is read-only")]
    ReadOnly {
        /// The writer, such as the pattern `4k random write`.
        what: String,
        /// The description of the namespace.
        namespace: String,
    },
    /// The namespace is too small for a pattern, or its blocks are too large.
    #[error("the pattern {pattern} does not fit {namespace}: {why}")]
    DoesNotFit {
        /// The name of the pattern.
        pattern: String,
        /// The description of the namespace.
        namespace: String,
        /// The reason.
        why: String,
    },
    /// The benchmark could not fill a fresh namespace with data to read.
    #[error("filling {namespace} with data failed: {error}")]
    FillFailed {
        /// The description of the namespace.
        namespace: String,
        /// The reason.
        #[source]
        error: RunError,
    },
    /// The server of the floor (bare sockets, `farblock bench --floor-serve`) cannot be used.
    #[error("the floor at {address}: {}", floor_words(.error))]
    Floor {
        /// The address of the server.
        address: SocketAddr,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The benchmark was cancelled before the first measurement.
    #[error("cancelled")]
    Cancelled,
}

/// The reason why a run ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An I/O failed. The first failed I/O ends the run: after errors, a benchmark would measure
    /// something else.
    #[error(
        "job {job}: {} of {blocks} blocks at LBA {lba} failed after {completed} good I/Os: {error}",
        command_word(*.command)
    )]
    Io {
        /// The number of the job, from 0.
        job: u32,
        /// The command of the operation.
        command: Command,
        /// The first block of the operation.
        lba: u64,
        /// The number of blocks of the operation.
        blocks: u32,
        /// The number of I/Os that the job had completed before the failure.
        completed: u64,
        /// The error of the namespace.
        error: BlockError,
    },
    /// A job could not open a queue.
    #[error("job {job}: cannot open a queue: {error}")]
    Open {
        /// The number of the job, from 0.
        job: u32,
        /// The error of the namespace.
        error: BlockError,
    },
    /// The event loop of a job failed, or could not be created.
    #[error("job {job}: the event loop failed: {error}")]
    Reactor {
        /// The number of the job, from 0.
        job: u32,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The thread of a job could not be started.
    #[error("job {job}: cannot start a thread: {error}")]
    Thread {
        /// The number of the job, from 0.
        job: u32,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// I/Os did not complete within a time limit after the end of the run.
    #[error("job {job}: {in_flight} I/Os did not complete within {limit:?} of the end")]
    Hung {
        /// The number of the job, from 0.
        job: u32,
        /// The number of I/Os in flight.
        in_flight: usize,
        /// The time limit.
        limit: Duration,
    },
    /// The connection to the floor's server failed.
    #[error("the floor: {}", floor_words(.0))]
    Floor(#[source] io::Error),
    /// The given start time had passed before all jobs were ready.
    #[error("the jobs were ready only {0:?} after the agreed start")]
    Late(Duration),
    /// No I/O completed in the measured time.
    #[error("no I/O completed in the measured time")]
    NothingMeasured,
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
}

fn floor_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "no program listens at this address: start `farblock bench --floor-serve` on that \
             machine"
                .to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the other end closed the connection: check that `farblock bench --floor-serve` runs \
             there"
                .to_owned()
        }
        io::ErrorKind::InvalidData => {
            "the program at this address is not `farblock bench --floor-serve`".to_owned()
        }
        io::ErrorKind::TimedOut => "the other end does not answer: check that `farblock bench \
            --floor-serve` runs on that machine, and that no firewall blocks the port"
            .to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "this machine has no route to that address".to_owned()
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
