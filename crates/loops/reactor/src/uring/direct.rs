//! Sends and receives with plain system calls while the loop busy-polls, that is, *looks* for work
//! again and again.
//!
//! The io_uring is best for many operations, and for sleeping. For a single receive it is slower:
//! if no data has arrived, the kernel registers the receive. The receive then completes only when
//! the loop next enters the kernel. A loop that does not sleep can call the socket directly. So the
//! engine first only records an operation on a stream. Each turn of the loop then decides:
//!
//! ```text
//!                  +--- looking, few streams ---> direct call, no waiting --> event
//!  unsent,         |                              |
//!  unreceived -----+                              | partial send, or no data for long
//!                  |                              v
//!                  +--- sleeping, or many ------> the ring ----------------> completion
//! ```
//!
//! If no data arrives on a stream, the engine soon submits its receive to the ring, where a waiting
//! receive costs nothing. Closing a stream submits its outstanding operations to the ring, and
//! cancels them there.

use std::io;
use std::mem;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Uring;
use super::net::{Recv, Send, Stream, is_transient};
use crate::context::{Context, LARGE_RECV_BYTES, RECV_BYTES, recv_bytes};
use crate::event::Event;
use crate::ids::StreamId;
use crate::slab::Key;
use farblock_mem::Buffer;

/// The maximum number of streams for direct calls. With more, one `io_uring_enter` for all is
/// cheaper than one call for each.
const MOST_STREAMS: usize = 32;
/// The maximum number of direct attempts at one receive (about 50 microseconds). If none found
/// data, the engine submits the receive to the ring.
const WAIT_LIMIT: u16 = 256;

/// The result of a direct attempt to receive.
#[derive(PartialEq, Eq)]
enum Look {
    /// No data is available yet. Try again.
    Nothing,
    /// The operation has completed with an event.
    Done,
    /// The engine must submit the rest of the operation to the ring.
    Ring,
}

impl Uring {
    /// Submits all recorded operations to the ring. Submits receives last: the kernel takes half a
    /// microsecond to arm a receive without data, and sends must not wait for this.
    pub(super) fn submit_streams(&mut self, cx: &mut Context<'_>) {
        self.submit_sends();
        self.submit_receives(cx);
    }

    fn submit_sends(&mut self) {
        let mut unsent = mem::take(&mut self.unsent);
        unsent.drain(..).for_each(|key| self.submit_send(key));
        self.unsent = unsent;
    }

    fn submit_receives(&mut self, cx: &mut Context<'_>) {
        let mut unreceived = mem::take(&mut self.unreceived);
        unreceived.drain(..).for_each(|key| self.submit_recv(cx, key));
        self.unreceived = unreceived;
    }

    /// Submits the recorded operations of one stream to the ring.
    pub(super) fn submit_stream(&mut self, cx: &mut Context<'_>, key: Key) {
        if remove(&mut self.unsent, key) {
            self.submit_send(key);
        }
        if remove(&mut self.unreceived, key) {
            self.submit_recv(cx, key);
        }
    }

    /// Sends the data of the recorded sends with direct calls. If many streams have a send, submits
    /// all sends to the ring instead.
    pub(super) fn send_directly(&mut self, cx: &mut Context<'_>) {
        if self.unsent.len() > MOST_STREAMS {
            return self.submit_sends();
        }
        let mut unsent = mem::take(&mut self.unsent);
        for key in unsent.drain(..) {
            let stream =
                self.streams.find_mut(key).expect("the stream is open while a send is outstanding");
            match stream.send_now() {
                Some(result) => self.end_send(cx, key, result),
                None => self.submit_send(key),
            }
        }
        self.unsent = unsent;
    }

    /// Attempts the recorded receives with direct calls. If many streams have a receive, submits
    /// all receives to the ring instead.
    pub(crate) fn look(&mut self, cx: &mut Context<'_>) {
        if self.unreceived.len() > MOST_STREAMS {
            return self.submit_receives(cx);
        }
        let mut place = 0;
        while let Some(&key) = self.unreceived.get(place) {
            match self.receive_directly(cx, key) {
                Look::Nothing => {
                    place += 1;
                    continue;
                }
                Look::Done => self.end_operation(cx, key),
                Look::Ring => self.submit_recv(cx, key),
            }
            self.unreceived.remove(place);
        }
    }

    fn receive_directly(&mut self, cx: &mut Context<'_>, key: Key) -> Look {
        let stream =
            self.streams.find_mut(key).expect("the stream is open while a receive is outstanding");
        let look = match &mut stream.recv {
            Recv::None => unreachable!("a receive is pending"),
            Recv::Any { .. } => stream.receive_any(cx, key, &mut self.spare, &mut self.large_spare),
            Recv::Into { .. } => stream.receive_into(cx, key),
        };
        if look != Look::Nothing {
            stream.looks = 0;
            return look;
        }
        stream.drained = true;
        stream.looks += 1;
        if stream.looks < WAIT_LIMIT {
            return Look::Nothing;
        }
        Look::Ring
    }
}

impl Stream {
    /// Sends as much as the socket accepts. Returns the result if the send is complete; `None` if
    /// data remains.
    fn send_now(&mut self) -> Option<io::Result<()>> {
        let send = self.send.as_mut().expect("a send is pending");
        let Send { batch, cursor, message } = send;
        message.fill(batch, *cursor);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let fd = self.socket.as_raw_fd();
        let sent = match message.slices[..] {
            // SAFETY: the piece is a slice of the batch.
            [one] => unsafe { libc::send(fd, one.iov_base, one.iov_len, flags) },
            // SAFETY: the gather list consists of slices of the batch, and was filled above.
            _ => unsafe { libc::sendmsg(fd, &raw const message.header, flags) },
        };
        let Ok(sent) = usize::try_from(sent) else {
            let error = io::Error::last_os_error();
            return (!is_transient(error.raw_os_error())).then_some(Err(error));
        };
        batch.advance(cursor, sent).then_some(Ok(()))
    }

    fn receive_any(
        &mut self,
        cx: &mut Context<'_>,
        key: Key,
        spare: &mut Option<Buffer>,
        large: &mut Option<Buffer>,
    ) -> Look {
        let Recv::Any { limit } = self.recv else {
            unreachable!("the outstanding receive is Recv::Any")
        };
        let most = recv_bytes(limit);
        let spare = if most > RECV_BYTES { large } else { spare };
        let size = if most > RECV_BYTES { LARGE_RECV_BYTES } else { RECV_BYTES };
        let buffer = spare.get_or_insert_with(|| cx.pool.take(size));
        let Some(received) = receive(&self.socket, &mut buffer[..most]) else {
            return Look::Nothing;
        };
        let result = received.map(|count| {
            self.drained = count < most;
            let filled = if count > 0 { spare.take() } else { None };
            let mut filled = filled.unwrap_or_else(|| Buffer::new(0));
            filled.truncate(count);
            filled
        });
        self.recv = Recv::None;
        cx.deliver(self.task, Event::Received { stream: StreamId(key), result });
        Look::Done
    }

    fn receive_into(&mut self, cx: &mut Context<'_>, key: Key) -> Look {
        let Recv::Into { buffer, range, done } = &mut self.recv else {
            unreachable!("the outstanding receive is Recv::Into")
        };
        let result = match receive(&self.socket, &mut buffer[range.start + *done..range.end]) {
            None => return Look::Nothing,
            Some(Ok(count)) => {
                *done += count;
                if count > 0 && *done < range.len() {
                    self.drained = true;
                    return Look::Ring;
                }
                self.drained = false;
                Ok(*done)
            }
            Some(Err(_)) if *done > 0 => Ok(*done),
            Some(Err(error)) => Err(error),
        };
        let Recv::Into { buffer, .. } = mem::replace(&mut self.recv, Recv::None) else {
            unreachable!("seen above")
        };
        cx.deliver(self.task, Event::ReceivedInto { stream: StreamId(key), buffer, result });
        Look::Done
    }
}

/// Receives without waiting. `None`: no data is available yet.
fn receive(socket: &TcpStream, into: &mut [u8]) -> Option<io::Result<usize>> {
    match rustix::net::recv(socket, into, RecvFlags::DONTWAIT) {
        Ok((count, _)) => Some(Ok(count)),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Removes a stream from a list. Returns whether the list contained it.
fn remove(list: &mut Vec<Key>, key: Key) -> bool {
    let place = list.iter().position(|&other| other == key);
    place.map(|place| list.remove(place)).is_some()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::batch::SendBatch;
    use crate::context::Wait;
    use crate::ids::TaskId;
    use crate::task::Tasks;
    use crate::waker::WakerShared;
    use farblock_mem::BufferPool;

    const TEST_TIME: Duration = Duration::from_secs(20);

    /// An engine whose test decides when it busy-polls and when it sleeps.
    struct Bench {
        engine: Uring,
        tasks: Tasks,
        pool: BufferPool,
        task: TaskId,
    }

    impl Bench {
        /// Creates the engine. `None` if the system does not support io_uring; panics instead if
        /// `FARBLOCK_NEED_URING` is set.
        fn new() -> Option<Bench> {
            let engine = match Uring::new(&WakerShared::new()) {
                Ok(engine) => engine,
                Err(error) if std::env::var_os("FARBLOCK_NEED_URING").is_none() => {
                    eprintln!("skipped: {error}");
                    return None;
                }
                Err(error) => panic!("{error}"),
            };
            let mut tasks = Tasks::new();
            let task = tasks.add();
            Some(Bench { engine, tasks, pool: BufferPool::new(), task })
        }

        fn stream(&mut self) -> (Key, TcpStream) {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (self.engine.add_stream(self.task, socket).unwrap(), listener.accept().unwrap().0)
        }

        fn with<R>(&mut self, call: impl FnOnce(&mut Uring, &mut Context<'_>) -> R) -> R {
            call(&mut self.engine, &mut Context { tasks: &mut self.tasks, pool: &self.pool })
        }

        fn recv(&mut self, key: Key, limit: u32) {
            self.with(|engine, cx| engine.recv(cx, key, limit));
        }

        /// Runs one turn and returns its events.
        fn turn(&mut self, wait: Wait) -> Vec<Event> {
            self.with(|engine, cx| engine.turn(cx, wait)).unwrap();
            let mut events = Vec::new();
            self.tasks.take_events(self.task, &mut events);
            events
        }

        /// Runs turns until there are `count` events.
        fn events(&mut self, count: usize, wait: impl Fn(Instant) -> Wait) -> Vec<Event> {
            let deadline = Instant::now() + TEST_TIME;
            let mut events = Vec::new();
            while events.len() < count {
                assert!(Instant::now() < deadline, "the loop delivered only {events:?} in time");
                events.append(&mut self.turn(wait(deadline)));
            }
            events
        }

        fn look(&mut self, count: usize) -> Vec<Event> {
            self.events(count, |_| Wait::Look)
        }

        fn sleep(&mut self, count: usize) -> Vec<Event> {
            self.events(count, |deadline| Wait::Until(Some(deadline)))
        }

        /// Returns the number of operations in the kernel.
        fn in_flight(&self) -> usize {
            self.engine.ring.in_flight()
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.with(|engine, cx| engine.shut_down(cx));
        }
    }

    fn received(events: &[Event]) -> &[u8] {
        let [Event::Received { result: Ok(buffer), .. }] = events else { panic!("{events:?}") };
        buffer
    }

    #[test]
    fn a_direct_receive_needs_no_ring_and_obeys_the_limit() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, mut peer) = bench.stream();
        bench.recv(key, 10);
        assert!(bench.turn(Wait::Look).is_empty());
        peer.write_all(b"0123456789abc").unwrap();
        assert_eq!(received(&bench.look(1)), b"0123456789");
        bench.recv(key, 0);
        assert_eq!(received(&bench.look(1)), b"abc");
        bench.recv(key, 0);
        drop(peer);
        assert_eq!(received(&bench.look(1)), b"");
        assert_eq!(bench.in_flight(), 0);
    }

    #[test]
    fn sleeping_submits_outstanding_receives_to_the_ring() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, mut peer) = bench.stream();
        bench.recv(key, 0);
        assert!(bench.turn(Wait::Look).is_empty());
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            peer.write_all(b"wake up").unwrap();
            peer
        });
        assert_eq!(received(&bench.sleep(1)), b"wake up");
        writer.join().unwrap();
    }

    #[test]
    fn a_quiet_stream_uses_the_ring_until_data_arrive() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, mut peer) = bench.stream();
        bench.recv(key, 0);
        let mut looks = 0;
        while bench.in_flight() == 0 {
            assert!(bench.turn(Wait::Look).is_empty());
            looks += 1;
        }
        assert_eq!(looks, super::WAIT_LIMIT);
        peer.write_all(b"later").unwrap();
        assert_eq!(received(&bench.look(1)), b"later");
        bench.recv(key, 0);
        bench.turn(Wait::Look);
        assert_eq!(bench.in_flight(), 0);
    }

    #[test]
    fn many_streams_use_the_ring() {
        let Some(mut bench) = Bench::new() else { return };
        let mut streams: Vec<_> = (0..=MOST_STREAMS).map(|_| bench.stream()).collect();
        let keys: Vec<Key> = streams.iter().map(|&(key, _)| key).collect();
        keys.iter().for_each(|&key| bench.recv(key, 0));
        assert!(bench.turn(Wait::Look).is_empty());
        assert_eq!(bench.in_flight(), keys.len());
        streams.iter_mut().for_each(|(_, peer)| peer.write_all(b"x").unwrap());
        assert_eq!(bench.look(keys.len()).len(), keys.len());
    }

    #[test]
    fn closing_a_stream_ends_its_direct_receive() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, peer) = bench.stream();
        let buffer = bench.pool.take(4096);
        bench.with(|engine, cx| engine.recv_into(cx, key, buffer, 0..4096));
        assert!(bench.turn(Wait::Look).is_empty());
        bench.with(|engine, cx| engine.close(cx, key));
        let mut none = Vec::new();
        bench.tasks.take_events(bench.task, &mut none);
        assert!(
            none.is_empty(),
            "closing the stream delivers no event before the next turn: {none:?}"
        );
        let events = bench.look(2);
        let [Event::ReceivedInto { result: Err(error), .. }, Event::Closed { .. }] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        drop(peer);
        assert!(bench.turn(Wait::Look).is_empty());
    }

    #[test]
    fn data_that_the_socket_does_not_accept_use_the_ring() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, mut peer) = bench.stream();
        let content: Vec<u8> = (0..32_u32 << 20).map(|at| (at >> 3) as u8).collect();
        let mut batch = SendBatch::new();
        batch.bytes(b"head");
        batch.payload(1, Buffer::copy_of(&content), 0..content.len());
        bench.with(|engine, cx| engine.send(cx, key, batch));
        assert_eq!(bench.in_flight(), 0, "the engine submitted the send to the ring too early");
        assert!(bench.turn(Wait::Look).is_empty());
        assert_eq!(bench.in_flight(), 1);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 4 + (32 << 20)];
            peer.read_exact(&mut all).map(|()| all)
        });
        let events = bench.look(1);
        assert!(matches!(&events[..], [Event::Sent { result: Ok(()), .. }]), "{events:?}");
        let all = reader.join().unwrap().unwrap();
        assert!(&all[..4] == b"head" && all[4..] == content);
    }

    #[test]
    fn the_rest_of_a_partial_receive_uses_the_ring() {
        let Some(mut bench) = Bench::new() else { return };
        let (key, mut peer) = bench.stream();
        let buffer = bench.pool.take(4096);
        bench.with(|engine, cx| engine.recv_into(cx, key, buffer, 100..110));
        peer.write_all(b"0123").unwrap();
        while bench.in_flight() == 0 {
            assert!(bench.turn(Wait::Look).is_empty());
        }
        peer.write_all(b"456789abc").unwrap();
        let events = bench.look(1);
        let [Event::ReceivedInto { buffer, result: Ok(10), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(&buffer[100..110], b"0123456789");
        bench.recv(key, 0);
        assert_eq!(received(&bench.look(1)), b"abc");
    }
}
