//! A small fast random number generator with a seed: xoshiro256++ by Blackman and Vigna, seeded
//! through SplitMix64.
//!
//! Not for secrets. It chooses addresses and fills buffers with data that does not compress.

/// A stream of random numbers that its seed determines.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut mix = seed;
        Random { state: [(); 4].map(|()| split_mix(&mut mix)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, by multiplication: the bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// One seed out of several numbers, so that neighbouring jobs and runs have unrelated streams.
pub(crate) fn mix_seed(parts: &[u64]) -> u64 {
    let mut seed = 0;
    for part in parts {
        seed ^= part;
        seed = split_mix(&mut seed);
    }
    seed
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_generators() {
        // SplitMix64 from 1234567, and xoshiro256++ from the state 1, 2, 3, 4: as in the
        // rand_xoshiro crate's tests.
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut state), 3_203_168_211_198_807_973);
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!(random.next(), 41_943_041);
        assert_eq!(random.next(), 58_720_359);
        assert_eq!(random.next(), 3_588_806_011_781_223);
    }

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn fill_covers_odd_lengths() {
        let mut bytes = [0u8; 13];
        Random::new(1).fill(&mut bytes);
        assert!(bytes.iter().filter(|byte| **byte == 0).count() < 4, "{bytes:?}");
    }

    #[test]
    fn seeds_of_neighbours_differ() {
        assert_ne!(mix_seed(&[1, 0, 0]), mix_seed(&[1, 0, 1]));
        assert_ne!(mix_seed(&[1, 0, 1]), mix_seed(&[1, 1, 0]));
        assert_ne!(Random::new(1).next(), Random::new(2).next());
    }
}
