//! A connection that receives the available bytes, and sends as many bytes as the socket accepts.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

#[cfg(target_os = "linux")]
use socket2::SockRef;

/// The maximum number of pieces of one gathered send.
const PIECES: usize = 256;
/// The number of sent header bytes above which the unsent headers are moved to the front.
const KEPT_HEAD_BYTES: usize = 64 << 10;

/// An unsent header and its data.
#[derive(Clone, Copy, Debug)]
struct Frame {
    head_bytes: usize,
    data_bytes: usize,
    /// The offset of the data in the sender's memory.
    data_at: usize,
}

/// A connection that never blocks.
pub(super) struct Stream {
    socket: TcpStream,
    /// The bytes of the unsent headers.
    heads: Vec<u8>,
    /// The frames in `heads`, and the data that follow each header.
    frames: VecDeque<Frame>,
    heads_sent: usize,
    /// The number of sent bytes of the first frame, header and data.
    first_sent: usize,
}

impl Stream {
    /// Wraps a connected socket. Over loopback, selects cubic congestion control, as farblock does,
    /// if the system allows it. bbr paces even over loopback, and transfers a fifth less data.
    pub(super) fn new(socket: TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        #[cfg(target_os = "linux")]
        if socket.peer_addr()?.ip().is_loopback() {
            let _ = SockRef::from(&socket).set_tcp_congestion(b"cubic");
        }
        Ok(Stream {
            socket,
            heads: Vec::new(),
            frames: VecDeque::new(),
            heads_sent: 0,
            first_sent: 0,
        })
    }

    /// Receives bytes. Returns zero if none are available.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        received(self.socket.read(into))
    }

    /// Receives bytes into several buffers, one after the other.
    pub(super) fn receive_scattered(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match into {
            [one] => received(self.socket.read(one)),
            several => received(self.socket.read_vectored(several)),
        }
    }

    /// The number of unsent frames.
    pub(super) fn unsent(&self) -> usize {
        self.frames.len()
    }

    /// Queues a header. Data may follow it: `data_bytes` from offset `data_at` in the memory that
    /// [`flush`](Stream::flush) gets.
    pub(super) fn push(&mut self, head: &[u8], data_at: usize, data_bytes: u32) {
        self.heads.extend_from_slice(head);
        let data_bytes = data_bytes as usize;
        self.frames.push_back(Frame { head_bytes: head.len(), data_bytes, data_at });
    }

    /// Sends as many bytes as the socket accepts.
    pub(super) fn flush(&mut self, data: &[u8]) -> io::Result<()> {
        while !self.frames.is_empty() {
            let (sent, all) = match self.send(data) {
                Err(error) if is_transient(&error) => return Ok(()),
                other => other?,
            };
            self.advance(sent);
            if sent < all {
                return Ok(()); // another send would block
            }
        }
        Ok(())
    }

    /// Makes one gathered send. Returns the number of bytes sent and the number of bytes attempted.
    fn send(&self, data: &[u8]) -> io::Result<(usize, usize)> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut all) = (0, 0);
        let mut push = |piece| {
            all += <[u8]>::len(piece);
            pieces[count] = IoSlice::new(piece);
            count += 1;
            count + 2 <= PIECES
        };
        let (mut run_start, mut at) = (self.heads_sent, self.heads_sent);
        let mut skip = self.first_sent;
        for frame in &self.frames {
            at += frame.head_bytes - skip.min(frame.head_bytes);
            skip = skip.saturating_sub(frame.head_bytes);
            if frame.data_bytes > 0 {
                if at > run_start {
                    push(&self.heads[run_start..at]);
                    run_start = at;
                }
                if !push(&data[frame.data_at + skip..frame.data_at + frame.data_bytes]) {
                    break;
                }
            }
            skip = 0;
        }
        if at > run_start {
            push(&self.heads[run_start..at]);
        }
        let sent = match count {
            1 => (&self.socket).write(&pieces[0])?,
            _ => (&self.socket).write_vectored(&pieces[..count])?,
        };
        Ok((sent, all))
    }

    fn advance(&mut self, sent: usize) {
        let mut left = sent;
        while let Some(&Frame { head_bytes, data_bytes, .. }) = self.frames.front() {
            let (whole, before) = (head_bytes + data_bytes, self.first_sent);
            let now = left.min(whole - before);
            self.heads_sent += (before + now).min(head_bytes) - before.min(head_bytes);
            left -= now;
            if before + now < whole {
                self.first_sent = before + now;
                if self.heads_sent > KEPT_HEAD_BYTES {
                    self.heads.drain(..self.heads_sent);
                    self.heads_sent = 0;
                }
                return;
            }
            self.first_sent = 0;
            self.frames.pop_front();
        }
        self.heads.clear();
        self.heads_sent = 0;
    }
}

/// Converts "would block" to zero bytes, and the end of the stream to an error.
fn received(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if is_transient(&error) => Ok(0),
        other => other,
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Splits received bytes into frames: headers of `HEAD` bytes, each with its data.
pub(super) struct Cutter<T, const HEAD: usize> {
    head: [u8; HEAD],
    have: usize,
    /// The parsed last header, until its data are complete.
    frame: Option<T>,
    data_left: usize,
}

impl<T, const HEAD: usize> Cutter<T, HEAD> {
    pub(super) fn new() -> Cutter<T, HEAD> {
        Cutter { head: [0; HEAD], have: 0, frame: None, data_left: 0 }
    }

    /// Splits bytes into frames. `parse` returns the meaning of a header and the length of its
    /// data, or `None` if the header is invalid. `on_frame` gets the meaning once the data are
    /// complete.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        parse: impl Fn(&[u8]) -> Option<(T, u32)>,
        mut on_frame: impl FnMut(T),
    ) -> io::Result<()> {
        loop {
            if let Some(frame) = self.frame.take() {
                let now = self.data_left.min(bytes.len());
                self.data_left -= now;
                bytes = &bytes[now..];
                if self.data_left > 0 {
                    self.frame = Some(frame);
                    return Ok(());
                }
                on_frame(frame);
            }
            let parsed = if self.have == 0 && bytes.len() >= HEAD {
                let (head, rest) = bytes.split_at(HEAD);
                bytes = rest;
                parse(head)
            } else {
                let now = (HEAD - self.have).min(bytes.len());
                self.head[self.have..self.have + now].copy_from_slice(&bytes[..now]);
                self.have += now;
                bytes = &bytes[now..];
                if self.have < HEAD {
                    return Ok(());
                }
                self.have = 0;
                parse(&self.head)
            };
            let (frame, data_bytes) = parsed.ok_or(io::ErrorKind::InvalidData)?;
            self.frame = Some(frame);
            self.data_left = data_bytes as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
        let mut cutter = Cutter::<u8, 2>::new();
        let mut frames = Vec::new();
        for piece in pieces {
            let parse = |head: &[u8]| (head[0] < 100).then_some((head[0], u32::from(head[1])));
            cutter.feed(piece, parse, |frame| frames.push(frame))?;
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_found_however_the_stream_is_split() {
        let all = [1, 0, 2, 3, 9, 9, 9, 3, 1, 200, 4, 0];
        assert_eq!(frames(&[&all]).expect("the headers are valid"), [1, 2, 3, 4]);
        for cut in 0..all.len() {
            let (first, second) = all.split_at(cut);
            assert_eq!(
                frames(&[first, second]).expect("the headers are valid"),
                [1, 2, 3, 4],
                "cut at {cut}"
            );
        }
        let single: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(frames(&single).expect("the headers are valid"), [1, 2, 3, 4]);
        assert_eq!(
            frames(&[&all[..5]]).expect("the headers are valid"),
            [1],
            "a frame without its data was returned"
        );
        assert!(frames(&[&[1, 0, 200, 0]]).is_err());
    }

    #[test]
    fn data_that_the_socket_does_not_accept_are_sent_later_in_order() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let socket = TcpStream::connect(listener.local_addr().expect("the socket has an address"))
            .expect("the server listens");
        let (mut peer, _) = listener.accept().expect("a client connects");
        let mut stream = Stream::new(socket).expect("the socket is created");
        let memory: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let mut expected = Vec::new();
        for index in 0..1000_u32 {
            let (head, data) = (index.to_le_bytes(), index * 37 % 99_000);
            let at = index as usize % 64;
            stream.push(&head, at, data);
            expected.extend_from_slice(&head);
            expected.extend_from_slice(&memory[at..at + data as usize]);
        }
        let size = expected.len();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; size];
            std::thread::sleep(std::time::Duration::from_millis(100));
            peer.read_exact(&mut all).map(|()| all)
        });
        let mut waited = false;
        while stream.unsent() > 0 {
            stream.flush(&memory).expect("the peer reads");
            waited |= stream.unsent() > 0;
        }
        assert!(waited, "the socket accepted 18 MB at once");
        assert!(
            reader.join().expect("the thread does not panic").expect("the peer reads all bytes")
                == expected
        );
        assert!(stream.heads.is_empty());
    }
}
