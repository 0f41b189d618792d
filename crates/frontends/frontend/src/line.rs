//! Detects whether a client has disconnected.

use std::net::TcpStream;

/// A second descriptor of a connection's socket. Through it the server notices that the client has
/// disconnected, even if it has not read the client's last data. The socket closes only after both
/// descriptors are dropped.
#[derive(Debug)]
pub struct Line(Option<TcpStream>);

impl Line {
    /// Duplicates the descriptor. If that fails, the client counts as connected until the server
    /// has read the end of the stream.
    #[must_use]
    pub fn of(stream: &TcpStream) -> Line {
        let copy = stream.try_clone().ok();
        // `Line::is_cut` reads from the socket on this system, which must not block.
        #[cfg(not(target_os = "linux"))]
        let copy = copy.filter(|copy| copy.set_nonblocking(true).is_ok());
        Line(copy)
    }

    /// True if the system has seen the client disconnect. A client that sends nothing counts as
    /// connected.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(stream) = &self.0 else { return false };
        let mut looked = [PollFd::new(stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut looked, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// True if the system has seen the client disconnect, and the server has read all its data. A
    /// client that sends nothing counts as connected.
    #[cfg(not(target_os = "linux"))]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let Some(stream) = &self.0 else { return false };
        match stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client =
            TcpStream::connect(listener.local_addr().expect("the listener has an address"))
                .expect("the listener accepts the connection");
        (client, listener.accept().expect("a connection").0)
    }

    /// Waits until the system reports the disconnection.
    fn becomes_cut(line: &Line) {
        while !line.is_cut() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_silent_client_counts_as_connected() {
        let (client, server) = pair();
        let line = Line::of(&server);
        assert!(!line.is_cut());
        drop(client);
        becomes_cut(&line);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_disconnection_is_noticed_despite_unread_data() {
        use std::io::{Read, Write};
        let (mut client, mut server) = pair();
        let line = Line::of(&server);
        client.write_all(b"unread").expect("the socket has room");
        assert!(!line.is_cut());
        client.shutdown(std::net::Shutdown::Write).expect("the stream shuts down");
        becomes_cut(&line);
        let mut rest = String::new();
        server.read_to_string(&mut rest).expect("the unread bytes");
        assert_eq!(rest, "unread");
    }

    #[test]
    fn a_client_sees_the_close_after_both_descriptors_are_dropped() {
        use std::io::Read;
        let (mut client, server) = pair();
        drop((Line::of(&server), server));
        assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    }
}
