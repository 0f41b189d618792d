//! Splits a stream of concatenated JSON values into requests, and scans each byte only once. The
//! parser checks later whether a request is valid JSON.

use super::limits::{MAX_DEPTH, MAX_REQUEST_BYTES};
use std::fmt;

/// The reason why the stream contains no further request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameError {
    NoRequest,
    TooDeep,
    TooLong,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRequest => f.write_str("a request is a JSON object, or an array of them"),
            Self::TooDeep => write!(f, "a request is nested more than {MAX_DEPTH} levels deep"),
            Self::TooLong => write!(f, "a request has more than {MAX_REQUEST_BYTES} bytes"),
        }
    }
}

/// The state of the scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FramePlace {
    /// Not within a string literal: between requests, or in other parts of a request.
    Outside,
    InString,
    AfterBackslash,
}

/// The bytes that have not been returned yet. At most the first request among them has been
/// scanned.
#[derive(Debug)]
pub(super) struct Framer {
    bytes: Vec<u8>,
    /// The number of bytes that have been scanned.
    seen: usize,
    place: FramePlace,
    depth: usize,
}

impl Framer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), seen: 0, place: FramePlace::Outside, depth: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete request, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if self.seen == 0 {
            let blank = self.bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.bytes.drain(..blank);
        }
        while let Some(&byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            if self.step(byte)? {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
            if self.seen >= MAX_REQUEST_BYTES {
                return Err(FrameError::TooLong);
            }
        }
        Ok(None)
    }

    /// Scans one byte. Returns true if the byte ends a request.
    fn step(&mut self, byte: u8) -> Result<bool, FrameError> {
        match (self.place, byte) {
            (FramePlace::AfterBackslash, _) => self.place = FramePlace::InString,
            (FramePlace::InString, b'\\') => self.place = FramePlace::AfterBackslash,
            (FramePlace::InString, b'"') => self.place = FramePlace::Outside,
            (FramePlace::InString, _) => {}
            (FramePlace::Outside, b'{' | b'[') if self.depth == MAX_DEPTH => {
                return Err(FrameError::TooDeep);
            }
            (FramePlace::Outside, b'{' | b'[') => self.depth += 1,
            (FramePlace::Outside, _) if self.depth == 0 => return Err(FrameError::NoRequest),
            (FramePlace::Outside, b'}' | b']') => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            (FramePlace::Outside, b'"') => self.place = FramePlace::InString,
            (FramePlace::Outside, _) => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(text: &str, step: usize) -> Result<Vec<String>, FrameError> {
        let (mut framer, mut found) = (Framer::new(), Vec::new());
        for bytes in text.as_bytes().chunks(step) {
            framer.push(bytes);
            while let Some(request) = framer.next()? {
                found.push(String::from_utf8(request).unwrap());
            }
        }
        Ok(found)
    }

    #[test]
    fn requests_are_found_however_the_stream_is_split() {
        let text = " {\"a\": \"}\\\"{[\"}\n[{}, {\"b\": [1]}]{}  {\"part\": ";
        for step in 1..text.len() {
            let found = frames(text, step).unwrap();
            assert_eq!(found, ["{\"a\": \"}\\\"{[\"}", "[{}, {\"b\": [1]}]", "{}"], "{step}");
        }
    }

    #[test]
    fn invalid_deep_and_long_requests_are_refused() {
        assert_eq!(frames("{} 7", 1), Err(FrameError::NoRequest));
        assert_eq!(frames("]", 1), Err(FrameError::NoRequest));
        let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(frames(&deep(MAX_DEPTH), 7).unwrap().len(), 1);
        assert_eq!(frames(&deep(MAX_DEPTH + 1), 7), Err(FrameError::TooDeep));
        let long = |length| format!("[\"{}\"]", "x".repeat(length - 4));
        assert_eq!(frames(&long(MAX_REQUEST_BYTES), 8192).unwrap().len(), 1);
        assert_eq!(frames(&long(MAX_REQUEST_BYTES + 1), 8192), Err(FrameError::TooLong));
        let (mut framer, blank) = (Framer::new(), vec![b' '; 8192]);
        for _ in 0..1000 {
            framer.push(&blank);
            assert_eq!(framer.next(), Ok(None));
            assert!(framer.bytes.is_empty());
        }
    }
}
