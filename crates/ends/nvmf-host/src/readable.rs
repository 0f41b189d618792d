//! Opens files for reading, including pipes (`<(pass show key)`, `/dev/stdin`). The standard call
//! to open a pipe blocks until a writer opens the pipe, possibly forever.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// A file open for reading. If the file is a pipe, a writer has opened it.
#[derive(Debug)]
pub struct Readable {
    file: File,
    /// The first byte of the pipe, read in order to detect a writer.
    first: Option<u8>,
}

impl Readable {
    /// Opens a file.
    ///
    /// # Errors
    /// Fails if the system cannot open the file, or if the file is a pipe that no writer opens
    /// within 3 seconds.
    pub fn open(path: &Path) -> io::Result<Self> {
        #[cfg(unix)]
        return unix::open(path);
        #[cfg(not(unix))]
        File::open(path).map(|file| Self { file, first: None })
    }

    /// The metadata of the open file.
    ///
    /// # Errors
    /// Fails with the system's error if the system cannot read the metadata.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}

impl Read for Readable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (buffer.first_mut(), self.first) {
            (Some(place), Some(byte)) => {
                *place = byte;
                self.first = None;
                Ok(1)
            }
            _ => self.file.read(buffer),
        }
    }
}

#[cfg(unix)]
mod unix {
    use super::Readable;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::fs::File;
    use std::io::{self, ErrorKind, Read};
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    use std::path::Path;
    use std::time::Duration;

    /// Time limit for the writer to open the pipe: a shell may start the writer at the same time.
    const GRACE: Duration = Duration::from_secs(3);
    const STEP: Duration = Duration::from_millis(20);

    /// Opens a file. If it is a pipe, waits for a writer at most [`GRACE`]. Later reads wait for
    /// data without a limit.
    pub(super) fn open(path: &Path) -> io::Result<Readable> {
        let without_waiting = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(without_waiting).open(path)?;
        let first = match file.metadata()?.file_type().is_fifo() {
            true => first(&file)?,
            false => None,
        };
        let flags = fcntl_getfl(&file)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(Readable { file, first })
    }

    /// Waits for a writer of the pipe. Returns the pipe's first byte, if the writer has sent any.
    fn first(mut pipe: &File) -> io::Result<Option<u8>> {
        let mut byte = [0];
        for _ in 0..GRACE.as_millis() / STEP.as_millis() {
            match pipe.read(&mut byte) {
                // A read of zero bytes means that no writer has opened the pipe yet.
                Ok(0) => std::thread::sleep(STEP),
                Ok(_) => return Ok(Some(byte[0])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(
            "it is a pipe without a writer: use a file, or start the writer first",
        ))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    #[test]
    fn a_pipe_opens_only_with_a_writer() {
        let path = std::env::temp_dir().join(format!("farblock-pipe-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
        let refused = Readable::open(&path).expect_err("no process writes").to_string();
        assert!(refused.contains("a pipe without a writer"), "{refused}");
        for (late, said) in [(false, "at once"), (true, "later")] {
            let writer = std::thread::spawn({
                let path = path.clone();
                move || {
                    // This open blocks until the reader has opened its end.
                    let mut pipe = File::options().write(true).open(path).expect("the pipe opens");
                    if late {
                        std::thread::sleep(std::time::Duration::from_millis(100));
                    }
                    pipe.write_all(said.as_bytes()).expect("a reader");
                }
            });
            let mut text = String::new();
            let mut pipe = Readable::open(&path).expect("a writer opens the pipe");
            pipe.read_to_string(&mut text).expect("UTF-8");
            assert_eq!(text, said);
            writer.join().expect("the writer does not panic");
        }
        std::fs::remove_file(path).expect("the file exists");
    }
}
