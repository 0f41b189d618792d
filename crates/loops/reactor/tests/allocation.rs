//! Tests that a running loop allocates nothing for its I/O, and that idle streams hold no buffers.
//! This file has a single test, because it counts the allocations of the whole process.

mod support;

use std::time::Duration;

use farblock_reactor::{Buffer, Event, FileId, FileOp, Reactor, SendBatch, StreamId, TaskId};
use farblock_testkit::{Counting, allocations, live_bytes};
use support::Loop;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAIRS: usize = 8;
const PAYLOAD_BYTES: usize = 40_000;
const HEADER: [u8; 24] = [0x42; 24];

/// A client that sends a header and a payload, and a server that writes the payload to a file,
/// reads it from the file, and returns it.
struct Echo {
    reactor: Reactor,
    task: TaskId,
    file: FileId,
    pairs: Vec<(StreamId, StreamId)>,
    batches: Vec<SendBatch>,
    events: Vec<Event>,
    ready: Vec<TaskId>,
    rounds: usize,
}

impl Echo {
    fn send(&mut self, stream: StreamId, payload: Buffer) {
        let mut batch = self.batches.pop().unwrap_or_default();
        batch.bytes(&HEADER);
        let len = payload.len();
        let index = batch.payload(1, payload, 0..len / 2);
        batch.payload_again(index, len / 2..len);
        self.reactor.send(stream, batch);
    }

    fn receive_payload(&mut self, stream: StreamId, front: Buffer) {
        // The header arrived alone or with the first bytes of the payload. Copy these bytes.
        let mut payload = self.reactor.buffers().take(PAYLOAD_BYTES);
        let got = front.len() - HEADER.len();
        payload[..got].copy_from_slice(&front[HEADER.len()..]);
        self.reactor.buffers().give(front);
        if got == PAYLOAD_BYTES {
            self.complete_payload(stream, payload);
        } else {
            self.reactor.recv_into(stream, payload, got..PAYLOAD_BYTES);
        }
    }

    fn complete_payload(&mut self, stream: StreamId, payload: Buffer) {
        let pair = self.pairs.iter().position(|(a, b)| *a == stream || *b == stream).unwrap();
        self.reactor.recv(stream);
        if stream == self.pairs[pair].0 {
            self.rounds += 1;
            self.send(stream, payload);
        } else {
            let op = FileOp::Write { buffer: payload, offset: 0, durable: false };
            self.reactor.file(self.task, self.file, op, pair as u64);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sent { mut batch, result, .. } => {
                result.unwrap();
                batch.take_payloads().for_each(|(_, buffer)| self.reactor.buffers().give(buffer));
                self.batches.push(batch);
            }
            Event::Received { stream, result } => self.receive_payload(stream, result.unwrap()),
            Event::ReceivedInto { stream, buffer, result } => {
                assert!(result.unwrap() > 0);
                self.complete_payload(stream, buffer);
            }
            Event::File { user_data, buffer, result } => {
                result.unwrap();
                let buffer = buffer.unwrap();
                match user_data as usize {
                    pair if pair < PAIRS => {
                        let op = FileOp::Read { buffer, offset: 0 };
                        self.reactor.file(self.task, self.file, op, user_data + PAIRS as u64);
                    }
                    pair => self.send(self.pairs[pair - PAIRS].1, buffer),
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, rounds: usize) {
        let end = self.rounds + rounds;
        let mut events = std::mem::take(&mut self.events);
        let mut ready = std::mem::take(&mut self.ready);
        while self.rounds < end {
            let soon = std::time::Instant::now() + Duration::from_secs(60);
            self.reactor.set_timer(self.task, Some(soon));
            self.reactor.poll(None, &mut ready).unwrap();
            self.reactor.take_events(self.task, &mut events);
            events.drain(..).for_each(|event| self.handle(event));
        }
        (self.events, self.ready) = (events, ready);
    }
}

fn steady_state(event_loop: &Loop) -> usize {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocation");
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let reactor = event_loop.reactor.clone();
    let mut echo = Echo {
        task: event_loop.task,
        file: reactor.add_file(file).unwrap(),
        pairs: (0..PAIRS).map(|_| event_loop.stream_pair()).collect(),
        batches: Vec::new(),
        events: Vec::with_capacity(1024),
        ready: Vec::with_capacity(1024),
        rounds: 0,
        reactor,
    };
    for (client, server) in echo.pairs.clone() {
        echo.reactor.recv(client);
        echo.reactor.recv(server);
        let payload = echo.reactor.buffers().take(PAYLOAD_BYTES);
        echo.send(client, payload);
    }
    echo.run(3000);
    let before = allocations();
    echo.run(3000);
    let made = (allocations() - before) as usize;
    let _ = std::fs::remove_file(path);
    made
}

/// Returns the number of allocated bytes per idle stream.
fn idle_bytes(event_loop: &mut Loop) -> usize {
    const STREAMS: usize = 1000;
    let sockets: Vec<_> = (0..STREAMS).map(|_| event_loop.stream_and_socket()).collect();
    let before = live_bytes();
    sockets.iter().for_each(|(stream, _)| event_loop.reactor.recv(*stream));
    assert!(event_loop.next_within(Duration::from_millis(50)).is_none());
    live_bytes().saturating_sub(before) / STREAMS
}

fn loops() -> [Option<Loop>; 3] {
    [Loop::uring(), Loop::uring_looking(), Some(Loop::portable())]
}

#[test]
fn nothing_is_allocated_per_operation() {
    for event_loop in loops().into_iter().flatten() {
        let engine = event_loop.reactor.engine();
        // On a busy machine, bursts may still make vectors grow (18 times in one run). The test
        // looks for one allocation per round, which would be 3,000.
        let allocations = steady_state(&event_loop);
        assert!(allocations <= 100, "{allocations} allocations in 3000 rounds ({engine})");
        println!("{engine}: {allocations} allocations in 3000 rounds");
        drop(event_loop);
    }
    for mut event_loop in loops().into_iter().flatten() {
        let bytes = idle_bytes(&mut event_loop);
        println!("{}: {bytes} bytes per idle stream", event_loop.reactor.engine());
        assert!(bytes < 1500, "an idle stream holds {bytes} bytes");
    }
}
