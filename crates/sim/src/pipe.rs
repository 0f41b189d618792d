//! One direction of a connection: bytes in order, each piece with the moment of its arrival.

use crate::random::Random;
use farblock_proto::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Pipe {
    pieces: VecDeque<(Instant, Vec<u8>)>,
}

impl Pipe {
    /// Sends `bytes` in pieces of random sizes with random delays, never out of order.
    pub(crate) fn send(
        &mut self,
        bytes: &[u8],
        now: Instant,
        max_delay: Duration,
        random: &mut Random,
    ) {
        let mut rest = bytes;
        while !rest.is_empty() {
            // Mostly whole, sometimes single bytes, sometimes anything.
            let length = match random.below(4) {
                0 => 1,
                1 => 1 + random.below(rest.len() as u64) as usize,
                _ => rest.len(),
            };
            let (piece, later) = rest.split_at(length.min(rest.len()));
            rest = later;
            let delay = Duration::from_nanos(random.below(max_delay.as_nanos() as u64 + 1));
            let earliest = self.pieces.back().map_or(now, |(at, _)| *at);
            self.pieces.push_back((earliest.max(now.saturating_add(delay)), piece.to_vec()));
        }
    }

    /// When the next piece arrives.
    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.pieces.front().map(|(at, _)| *at)
    }

    /// Everything that has arrived, merged.
    pub(crate) fn receive(&mut self, now: Instant) -> Vec<u8> {
        let mut received = Vec::new();
        while self.next_arrival().is_some_and(|at| at <= now) {
            received.extend(self.pieces.pop_front().expect("it has a front").1);
        }
        received
    }
}
