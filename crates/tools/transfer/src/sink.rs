//! Writes a transfer's data to a namespace, a file or a pipe.

use super::Chunk;
use super::file_sink::{FileSink, Stored};
use super::namespace_sink::NamespaceSink;
use crate::error::{Failure, Result, os};
use farblock_block::size::FullSize;
use farblock_reactor::Buffer;
use std::io::{self, Write};
use std::time::Duration;

/// A destination that accepts chunks in order.
pub(super) enum Sink {
    Namespace(Box<NamespaceSink>),
    File(FileSink),
    /// A pipe, a terminal or another character device.
    Stream {
        output: Box<dyn Write>,
        name: String,
        written: u64,
    },
}

impl Sink {
    pub(super) fn write(&mut self, chunk: Chunk, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.write(chunk, free),
            Sink::File(sink) => sink.write(chunk, free),
            Sink::Stream { output, name, written } => {
                let length = chunk.len();
                let wrote = write_stream(output, chunk, free);
                wrote.map_err(|error| stream_failure(&error, name, *written))?;
                *written += length;
                Ok(())
            }
        }
    }

    /// Makes progress without blocking. Call this while no chunk arrives.
    pub(super) fn poll(&mut self, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.poll(Duration::ZERO, free),
            Sink::File(_) | Sink::Stream { .. } => Ok(()),
        }
    }

    /// Starts to make the data written so far durable. For a file, this call blocks until the data
    /// are durable.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.checkpoint(),
            Sink::File(sink) => sink.checkpoint()?,
            Sink::Stream { .. } => {}
        }
        Ok(())
    }

    /// Whether durable data outlive a failure, so that reporting them is useful.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Sink::File(FileSink { stored: Stored::Beside(new), .. }) => new.is_kept(),
            Sink::Namespace(_) | Sink::File(_) => true,
            Sink::Stream { .. } => false,
        }
    }

    /// The number of bytes from the start of the transfer that are known to be durable.
    pub(super) fn durable(&self) -> u64 {
        match self {
            Sink::Namespace(sink) => sink.durable(),
            Sink::File(sink) => sink.durable,
            Sink::Stream { written, .. } => *written,
        }
    }

    /// After a failure or a signal, makes as much data durable as possible.
    pub(super) fn wind_up(&mut self) {
        match self {
            Sink::Namespace(sink) => sink.wind_up(),
            // If this fails, the sink reports fewer durable bytes.
            Sink::File(sink) => drop(sink.checkpoint()),
            Sink::Stream { output, .. } => drop(output.flush()),
        }
    }

    /// Renames a complete and durable file into place.
    pub(super) fn commit(self) -> Result<()> {
        match self {
            Sink::File(FileSink { stored: Stored::Beside(new), .. }) => new.commit(),
            _ => Ok(()),
        }
    }

    /// Describes the destination after an early end, as part of a sentence.
    pub(super) fn state(&self) -> String {
        let name = match self {
            Sink::File(FileSink { stored: Stored::Beside(new), durable, .. }) if new.is_kept() => {
                let state = new.unchanged();
                return format!(
                    "{state}; the first {} of the new file are kept",
                    FullSize(*durable)
                );
            }
            Sink::File(FileSink { stored: Stored::Beside(new), .. }) => return new.unchanged(),
            Sink::Stream { name, written, .. } => {
                return format!("{} were written to {name}", FullSize(*written));
            }
            Sink::File(sink) => &sink.name,
            Sink::Namespace(sink) => &sink.name,
        };
        match self.durable() {
            0 => format!("nothing is known to be durable in {name}"),
            bytes => format!("the first {} are durable in {name}", FullSize(bytes)),
        }
    }

    /// Waits until all data are written, and durable where possible.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.finish(),
            Sink::File(sink) => sink.checkpoint(),
            Sink::Stream { output, name, written } => {
                output.flush().map_err(|error| stream_failure(&error, name, *written))
            }
        }
    }
}

fn write_stream(
    output: &mut dyn Write,
    chunk: Chunk,
    free: &mut dyn FnMut(Buffer),
) -> io::Result<()> {
    match chunk {
        Chunk::Data(buffer, range) => {
            output.write_all(&buffer[range])?;
            free(buffer);
            Ok(())
        }
        Chunk::Hole(length) => {
            io::copy(&mut io::Read::take(io::repeat(0), length), output).map(drop)
        }
    }
}

fn stream_failure(error: &io::Error, name: &str, written: u64) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::run(format_args!(
            "{name} was closed by its reader after about {}, before everything was written",
            FullSize(written)
        )),
        _ => Failure::run(format_args!("cannot write to {name}: {}", os(error))),
    }
}
