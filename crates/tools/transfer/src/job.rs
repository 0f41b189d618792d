//! Runs one transfer: starts or resumes it, moves the data, verifies the copy, and commits it.

use super::place::{Input, Opener, Output};
use super::resume::{self, End, Map, Record};
use super::{Limits, Summary, Transfer, progress, verify};
use crate::error::{Failure, Result};
use crate::signals::Stop;
use farblock_block::size::FullSize;
use std::path::PathBuf;
use std::time::Instant;

/// The source and destination of a transfer, and the range to move.
pub(super) struct Job<'a> {
    pub(super) opener: Opener<'a>,
    pub(super) input: Input,
    /// The offset of the first byte in the input.
    pub(super) from: u64,
    /// The number of bytes to move, if known.
    pub(super) length: Option<u64>,
    pub(super) output: Output,
    /// The offset of the first byte in the output.
    pub(super) to: u64,
}

impl Job<'_> {
    pub(super) fn run(mut self) -> Result<Summary> {
        // `input` and `output` are connected by now. Until here, a signal may simply kill the
        // process.
        let stop = Stop::install_with_hangup()?;
        if self.opener.options.verify && (!self.input.is_repeatable() || self.output.is_stream()) {
            return Err(Failure::usage(
                "--verify reads both ends again, which a pipe cannot do: name a file",
            ));
        }
        let mut map = self.map()?;
        let done = map.as_ref().map_or(0, Map::done);
        let begin = Instant::now();
        let (moved, sink) = self.transfer(done, map.as_mut(), &stop)?;
        let mut summary = Summary::new(moved, begin.elapsed());
        summary.resumed_from = done;
        if self.opener.options.verify {
            self.verify(done + moved, &sink, &stop)?;
            summary.verified = true;
        }
        sink.commit()?;
        if let Some(map) = map {
            map.remove();
        }
        Ok(summary)
    }

    fn transfer(
        &mut self,
        done: u64,
        map: Option<&mut Map>,
        stop: &Stop,
    ) -> Result<(u64, super::Sink)> {
        let left = self.length.map(|length| length - done);
        let room = self.output.capacity.map(|capacity| capacity - self.to - done);
        let from = self.from + done;
        let range = from..left.map_or(u64::MAX, |left| from + left);
        let source = self.input.start(self.opener.global.engine, range)?;
        let sink = self.output.start(&self.opener, (self.to, done), stop)?;
        let bar = progress::bytes(left, self.opener.global.quiet);
        let limits = Limits { exactly: left, room };
        Transfer { source, sink, limits, map, bar: &bar, stop }.run()
    }

    fn verify(&mut self, length: u64, sink: &super::Sink, stop: &Stop) -> Result<()> {
        let engine = self.opener.global.engine;
        let source = self.input.start(engine, self.from..self.from + length)?;
        let copy = self.output.start_reading(engine, sink, self.to..self.to + length)?;
        let bar = progress::bytes(Some(length), self.opener.global.quiet);
        let names = (self.input.name.as_str(), self.output.name.as_str());
        let outcome = verify::compare((source, names.0), (copy, names.1), &bar, stop);
        bar.finish_and_clear();
        outcome.map_err(|failure| match failure {
            Failure::Run(text) => Failure::Run(format!("{text}; {}", sink.state())),
            Failure::Interrupted(_) => {
                Failure::Interrupted(format!("interrupted during --verify: {}", sink.state()))
            }
            other => other,
        })
    }

    /// Returns the record to resume from. Without `--resume`, removes old records and returns
    /// `None`.
    fn map(&self) -> Result<Option<Map>> {
        if self.output.beside("map").is_none()
            && let Some(end) = self.output.end()
        {
            let end_at = self.length.map_or(u64::MAX, |length| self.to.saturating_add(length));
            resume::forget_overwritten(&end, self.to..end_at);
        }
        if !self.opener.options.resume {
            if let Some(end) = self.output.end()
                && let Ok(path) = self.map_path(&end)
            {
                resume::forget(&path);
            }
            return Ok(None);
        }
        let (Some(source), Some(length)) = (self.input.end(), self.length) else {
            return Err(self.cannot_resume(&self.input.name));
        };
        let Some(destination) = self.output.end() else {
            return Err(self.cannot_resume(&self.output.name));
        };
        let path = self.map_path(&destination)?;
        // Remove the record of a complete transfer: an earlier process renamed the new file into
        // place, but ended before it removed the record.
        if resume::read(&path)?.is_some_and(|old| self.output.has_become(&old.destination)) {
            resume::forget(&path);
        }
        let record = Record { source, destination, from: self.from, to: self.to, length, done: 0 };
        let map = Map::open(path.clone(), record)?;
        match self.output.kept_bytes() {
            Some(kept) if kept < map.done() => Err(Failure::run(format_args!(
                "cannot resume: the record says {} of {}, but only {} exist; remove {} to start \
                 again",
                FullSize(map.done()),
                self.output.name,
                FullSize(kept),
                path.display()
            ))),
            _ => Ok(Some(map)),
        }
    }

    fn map_path(&self, destination: &End) -> Result<PathBuf> {
        match self.output.beside("map") {
            Some(path) => Ok(path),
            None => resume::path_for(destination, self.to),
        }
    }

    fn cannot_resume(&self, name: &str) -> Failure {
        Failure::usage(format_args!(
            "--resume cannot check later whether {name} is unchanged: it needs files, block \
             devices or remote namespaces at both ends"
        ))
    }
}
