//! Pseudo-random numbers: SplitMix64, because a seed has to mean the same for ever.

use std::time::Duration;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// True once in `of` times; never if that is 0.
    pub fn one_in(&mut self, of: u64) -> bool {
        of != 0 && self.below(of) == 0
    }

    /// A time up to `longest`.
    pub fn time(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.below((longest.as_nanos() as u64).saturating_add(1).max(1)))
    }
}
