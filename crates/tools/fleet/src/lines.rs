//! Lines of JSON over any stream, with a maximum length.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};

/// Reads messages from a stream.
pub(crate) struct Reader<R> {
    stream: BufReader<R>,
    limit: u64,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(stream: R, limit: u64) -> Reader<R> {
        Reader { stream: BufReader::new(stream), limit }
    }

    /// Accepts lines up to this length from now on.
    pub(crate) fn trust(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The next message; `None` at the end of the stream.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(self.limit).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(match read as u64 == self.limit {
                true => invalid("the message is too long".to_owned()),
                false => io::ErrorKind::UnexpectedEof.into(), // the stream ends within a line
            });
        }
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| invalid(format!("the message is invalid: {error}")))
    }
}

pub(crate) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&line(message))?;
    stream.flush()
}

/// The bytes of a message on the wire.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("our own types are JSON");
    line.push(b'\n');
    line
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Ask;

    fn read(text: &[u8], limit: u64) -> io::Result<Option<Ask>> {
        Reader::new(text, limit).next()
    }

    #[test]
    fn messages_are_sent_as_lines() {
        let mut text = Vec::new();
        write(&mut text, &Ask::Clock).unwrap();
        write(&mut text, &Ask::Look).unwrap();
        let mut reader = Reader::new(text.as_slice(), 100);
        let mut next = || reader.next::<Ask>().unwrap();
        assert_eq!((next(), next(), next()), (Some(Ask::Clock), Some(Ask::Look), None));
    }

    #[test]
    fn invalid_and_endless_messages_are_errors() {
        for bad in [&b"{}\n"[..], b"\n", b"{\"ask\":\"burn\"}\n", b"\xff\n", b"{\"ask\":\"clock\"}"]
        {
            assert!(read(bad, 100).is_err(), "{bad:?}");
        }
        let endless = vec![b' '; 1000];
        assert!(read(&endless, 100).is_err_and(|error| error.to_string().contains("too long")));
        assert!(matches!(read(b"", 100), Ok(None)));
    }
}
