//! Random sends, receives and closes over several streams, from several seeds. The tests check that
//! every operation completes exactly once, that bytes arrive in order, and that `Closed` is the
//! last event. The loop must not write to a buffer after returning it.

mod support;

use farblock_random::Random;
use std::collections::HashMap;
use std::time::Duration;

use farblock_reactor::{Buffer, Event, Reactor, SendBatch, StreamId};
use support::{Loop, socket_pair};

on_both_engines! {
    random_operations_complete_once
}

on_the_simulated_engine! {
    random_operations_complete_once
}

/// The number of seeds. `FARBLOCK_SEEDS` overrides it.
const SEEDS: u64 = 4;
const STEPS: usize = 1000;
const STREAMS: usize = 24;
/// The byte with which the test fills returned buffers. A different byte shows that the reactor
/// wrote to a buffer after returning it.
const POISON: u8 = 0xd7;
/// The number of bytes before and after the range of a receive. These bytes must not change.
const MARGIN: usize = 64;
const MARGIN_BYTE: u8 = 0x5a;

fn random_operations_complete_once(mut event_loop: Loop) {
    let asked = std::env::var("FARBLOCK_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..asked.unwrap_or(SEEDS) {
        let mut chaos = Chaos::new(event_loop.reactor.clone(), seed);
        chaos.run(&mut event_loop);
    }
}

/// The data that the ends of connections send: a repeated pattern. Each flow starts at another
/// byte.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Pattern {
        let mut bytes = vec![0; 65_521];
        Random::new(99).fill(&mut bytes);
        Pattern(bytes)
    }

    fn piece(&self, flow: u64, position: u64, len: usize) -> Vec<u8> {
        let start = (flow * 977 + position) as usize % self.0.len();
        let mut piece = Vec::with_capacity(len);
        piece.extend_from_slice(&self.0[start..self.0.len().min(start + len)]);
        while piece.len() < len {
            piece.extend_from_slice(&self.0[..self.0.len().min(len - piece.len())]);
        }
        piece
    }
}

#[derive(Default)]
struct End {
    /// The number of the flow in which this end sends. A flow is one direction of a connection.
    flow_out: u64,
    flow_in: u64,
    sent: u64,
    received: u64,
    /// The payload lengths of the batch in flight.
    sending: Option<Vec<usize>>,
    receiving: bool,
    ended: bool,
    closing: bool,
}

struct Chaos {
    reactor: Reactor,
    seed: u64,
    random: Random,
    pattern: Pattern,
    ends: HashMap<StreamId, End>,
    flows: u64,
    /// The buffers that operations returned, filled with `POISON`.
    returned: Vec<Buffer>,
}

impl Chaos {
    fn new(reactor: Reactor, seed: u64) -> Chaos {
        Chaos {
            reactor,
            seed,
            random: Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            pattern: Pattern::new(),
            ends: HashMap::new(),
            flows: 0,
            returned: Vec::new(),
        }
    }

    fn run(&mut self, event_loop: &mut Loop) {
        for _ in 0..STEPS {
            if self.ends.len() < STREAMS {
                self.connect(event_loop);
            }
            for _ in 0..self.random.index(8) {
                self.act();
            }
            let is_patient = self.random.index(4) == 0;
            let timeout = Duration::from_micros(if is_patient { 200 } else { 0 });
            while let Some(event) = event_loop.next_within(timeout) {
                self.handle(event);
                if self.random.index(4) == 0 {
                    break;
                }
            }
            if self.random.index(50) == 0 {
                self.check_returned();
            }
        }
        let all: Vec<StreamId> = self.ends.keys().copied().collect();
        for stream in all {
            self.close(stream);
        }
        while !self.ends.is_empty() {
            let event = event_loop.next();
            self.handle(event);
        }
        assert!(event_loop.next_within(Duration::from_millis(5)).is_none(), "{}", self.seed);
        self.check_returned();
    }

    fn connect(&mut self, event_loop: &Loop) {
        let (a, b) = socket_pair();
        let add = |socket| self.reactor.add_stream(event_loop.task, socket).unwrap();
        let (a, b) = (add(a), add(b));
        let (one, other) = (self.flows, self.flows + 1);
        self.flows += 2;
        self.ends.insert(a, End { flow_out: one, flow_in: other, ..End::default() });
        self.ends.insert(b, End { flow_out: other, flow_in: one, ..End::default() });
    }

    fn act(&mut self) {
        let mut streams: Vec<StreamId> = self.ends.keys().copied().collect();
        // Sort the streams: the order of a hash map differs between runs.
        streams.sort_by_key(|stream| self.ends[stream].flow_out);
        let stream = streams[self.random.index(streams.len())];
        match self.random.index(20) {
            0 => self.close(stream),
            1..10 => self.send(stream),
            _ => self.receive(stream),
        }
    }

    fn close(&mut self, stream: StreamId) {
        self.reactor.close(stream);
        self.ends.get_mut(&stream).unwrap().closing = true;
    }

    fn send(&mut self, stream: StreamId) {
        let end = self.ends.get_mut(&stream).unwrap();
        if end.sending.is_some() || end.closing {
            return;
        }
        let mut batch = SendBatch::new();
        let mut payloads = Vec::new();
        for tag in 0..1 + self.random.below(6) {
            let len = match self.random.index(10) {
                0 => self.random.index(400_000),
                1..4 => self.random.index(5000),
                _ => self.random.index(100),
            };
            let content = self.pattern.piece(end.flow_out, end.sent, len);
            end.sent += len as u64;
            if self.random.index(2) == 0 {
                batch.bytes(&content);
            } else {
                batch.payload(tag, Buffer::copy_of(&content), 0..len);
                payloads.push(len);
            }
        }
        end.sending = Some(payloads);
        self.reactor.send(stream, batch);
    }

    fn receive(&mut self, stream: StreamId) {
        let end = self.ends.get_mut(&stream).unwrap();
        if end.receiving || end.closing || end.ended {
            return;
        }
        end.receiving = true;
        if self.random.index(2) == 0 {
            return self.reactor.recv(stream);
        }
        let bound = if self.random.index(3) == 0 { 200_000 } else { 500 };
        let len = 1 + self.random.index(bound);
        let mut buffer = self.reactor.buffers().take(len + 2 * MARGIN);
        buffer.fill(MARGIN_BYTE);
        self.reactor.recv_into(stream, buffer, MARGIN..MARGIN + len);
    }

    fn handle(&mut self, event: Event) {
        let seed = self.seed;
        match event {
            Event::Sent { stream, mut batch, result } => {
                let end = self.ends.get_mut(&stream).expect("no event after Closed");
                let expected = end.sending.take().expect("an operation completed twice");
                let payloads: Vec<Buffer> =
                    batch.take_payloads().map(|(_, buffer)| buffer).collect();
                assert!(payloads.iter().map(|p| p.len()).eq(expected), "seed {seed}");
                if result.is_err() {
                    payloads.into_iter().for_each(|buffer| self.give_back(buffer));
                }
            }
            Event::Received { stream, result } => {
                self.received(stream);
                match result {
                    Ok(buffer) => {
                        self.check_bytes(stream, &buffer);
                        self.give_back(buffer);
                    }
                    Err(_) => self.ends.get_mut(&stream).unwrap().ended = true,
                }
            }
            Event::ReceivedInto { stream, buffer, result } => {
                self.received(stream);
                let margins = buffer[..MARGIN].iter().chain(&buffer[buffer.len() - MARGIN..]);
                assert!(margins.clone().all(|&byte| byte == MARGIN_BYTE), "seed {seed}");
                match result {
                    Ok(count) => {
                        self.check_bytes(stream, &buffer[MARGIN..MARGIN + count]);
                        // A shorter receive is allowed only at the end of the stream.
                        let is_short = count < buffer.len() - 2 * MARGIN;
                        self.ends.get_mut(&stream).unwrap().ended |= is_short;
                    }
                    Err(_) => self.ends.get_mut(&stream).unwrap().ended = true,
                }
                self.give_back(buffer);
            }
            Event::Closed { stream } => {
                let end = self.ends.remove(&stream).expect("a stream was closed twice");
                assert!(end.closing && !end.receiving && end.sending.is_none(), "seed {seed}");
            }
            other => panic!("{other:?}, seed {seed}"),
        }
    }

    fn received(&mut self, stream: StreamId) {
        let end = self.ends.get_mut(&stream).expect("no event after Closed");
        assert!(
            std::mem::take(&mut end.receiving),
            "a receive completed twice, seed {}",
            self.seed
        );
    }

    fn check_bytes(&mut self, stream: StreamId, bytes: &[u8]) {
        let end = self.ends.get_mut(&stream).unwrap();
        assert!(
            !end.ended || bytes.is_empty(),
            "bytes arrived after the end of the stream, seed {}",
            self.seed
        );
        end.ended |= bytes.is_empty();
        let expected = self.pattern.piece(end.flow_in, end.received, bytes.len());
        assert!(bytes == expected, "wrong bytes, seed {}, position {}", self.seed, end.received);
        end.received += bytes.len() as u64;
    }

    fn give_back(&mut self, mut buffer: Buffer) {
        buffer.fill(POISON);
        self.returned.push(buffer);
    }

    fn check_returned(&mut self) {
        for buffer in self.returned.drain(..) {
            assert!(
                buffer[..] == vec![POISON; buffer.len()],
                "a returned buffer changed, seed {}",
                self.seed
            );
            self.reactor.buffers().give(buffer);
        }
    }
}
