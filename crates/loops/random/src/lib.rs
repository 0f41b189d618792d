//! Pseudo-random numbers: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
//! Generators", 2014). The algorithm never changes, so a seed reproduces a failure in any later
//! version.
//!
//! Do not use these numbers for secrets: they are predictable.

use std::ops::Range;
use std::time::Duration;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Combines several numbers into one seed. Similar numbers give unrelated sequences.
    #[must_use]
    pub fn mix(parts: &[u64]) -> u64 {
        parts.iter().fold(0, |seed, part| Random::new(seed ^ part).bits())
    }

    /// Returns element `index` of the sequence of `seed`, without computing the earlier elements.
    #[must_use]
    pub fn nth(seed: u64, index: u64) -> u64 {
        Random::new(seed.wrapping_add(index.wrapping_mul(GAMMA))).bits()
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`. The bias is below `bound` / 2^64.
    ///
    /// # Panics
    ///
    /// Panics if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound is zero");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Like [`below`](Self::below), for lengths and indices.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// Returns a number within `range`.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        assert!(!range.is_empty(), "the range {range:?} is empty");
        range.start + self.below(range.end - range.start)
    }

    /// Returns `true` with probability 1 in `of`; never if `of` is 0.
    pub fn one_in(&mut self, of: u64) -> bool {
        of != 0 && self.below(of) == 0
    }

    /// Returns a duration of at most `longest`.
    pub fn time(&mut self, longest: Duration) -> Duration {
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.below(longest_ns.saturating_add(1)))
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_matches_the_published_values() {
        // The values are from Rosetta Code, "Pseudo-random numbers/Splitmix64".
        let mut random = Random::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.bits(), random.bits()], first);
        assert_eq!([0, 1].map(|index| Random::nth(1_234_567, index)), first);
    }

    #[test]
    fn numbers_stay_below_the_bound_and_reach_every_value() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(1), 0);
        assert_eq!(random.within(5..6), 5);
        assert!(!random.one_in(0) && random.one_in(1));
        assert!(random.time(Duration::MAX) > Duration::ZERO);
        assert_eq!(random.time(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn byte_arrays_of_odd_lengths_are_filled() {
        let bytes = Random::new(1).bytes(13);
        assert!(bytes.iter().filter(|byte| **byte == 0).count() < 4, "{bytes:?}");
    }

    #[test]
    fn mixing_similar_inputs_gives_different_numbers() {
        let mut all = [[1, 0, 0], [1, 0, 1], [1, 1, 0], [2, 0, 0]].map(|parts| Random::mix(&parts));
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
