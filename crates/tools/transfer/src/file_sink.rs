//! Writes a transfer's data to a regular file or block device.

use super::Chunk;
use super::chunk::is_zero;
use crate::error::{Failure, Result, os};
use crate::replace::Replacement;
use farblock_reactor::Buffer;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// The granularity of zero detection: a new file gets holes of this size instead of zeroes.
const HOLE_BYTES: usize = 64 << 10;
static ZEROES: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

pub(super) enum Stored {
    /// A new regular file next to the old one.
    Beside(Replacement),
    /// A block device.
    InPlace(File),
}

impl Stored {
    pub(super) fn file(&self) -> &File {
        match self {
            Stored::Beside(new) => new.file(),
            Stored::InPlace(file) => file,
        }
    }
}

/// A regular file or block device as a destination.
pub(super) struct FileSink {
    pub(super) stored: Stored,
    pub(super) name: String,
    position: u64,
    /// The number of durable bytes.
    pub(super) durable: u64,
}

impl FileSink {
    /// Opens the sink of a transfer whose first `done` bytes an earlier attempt has written.
    pub(super) fn new(stored: Stored, name: String, done: u64) -> Result<FileSink> {
        let sink = FileSink { stored, name, position: done, durable: done };
        let mut file = sink.stored.file();
        // Truncate the temporary file of an earlier attempt after the durable bytes. Otherwise its
        // old data would appear where this attempt leaves holes.
        let length = if sink.is_new() { file.set_len(done) } else { Ok(()) };
        let begun = length.and_then(|()| file.seek(SeekFrom::Start(done)));
        begun.map_err(|error| sink.failure(&error))?;
        Ok(sink)
    }

    /// Whether the file is new, so that holes replace zeroes.
    fn is_new(&self) -> bool {
        matches!(self.stored, Stored::Beside(_))
    }

    pub(super) fn write(&mut self, chunk: Chunk, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let length = chunk.len();
        let done = match &chunk {
            Chunk::Data(buffer, range) => self.write_bytes(&buffer[range.clone()]),
            Chunk::Hole(length) => self.write_hole(*length),
        };
        done.map_err(|error| self.failure(&error))?;
        self.position += length;
        if let Chunk::Data(buffer, _) = chunk {
            free(buffer);
        }
        Ok(())
    }

    fn write_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.stored.file();
        if !self.is_new() {
            return file.write_all(bytes);
        }
        for part in bytes.chunks(HOLE_BYTES) {
            match is_zero(part) {
                true => drop(file.seek(SeekFrom::Current(part.len() as i64))?),
                false => file.write_all(part)?,
            }
        }
        Ok(())
    }

    fn write_hole(&self, length: u64) -> io::Result<()> {
        let mut file = self.stored.file();
        if self.is_new() {
            return file.seek(SeekFrom::Start(self.position + length)).map(drop);
        }
        let mut left = length;
        while left > 0 {
            let part = left.min(HOLE_BYTES as u64);
            file.write_all(&ZEROES[..part as usize])?;
            left -= part;
        }
        Ok(())
    }

    /// Makes all bytes written so far durable.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        let file = self.stored.file();
        // Extend the file, since it may end with a hole.
        let length = if self.is_new() { file.set_len(self.position) } else { Ok(()) };
        length.and_then(|()| file.sync_all()).map_err(|error| self.failure(&error))?;
        self.durable = self.position;
        Ok(())
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ": make room, or choose another place"
            }
            io::ErrorKind::FileTooLarge => ": the system limits the size of files",
            _ => "",
        };
        let (name, at, error) = (&self.name, self.position, os(error));
        Failure::run(format_args!("cannot write to {name} at byte {at}: {error}{hint}"))
    }
}
