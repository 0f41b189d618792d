//! Speck64/128 (Beaulieu and others, "The SIMON and SPECK Families of Lightweight Block Ciphers",
//! 2013): a keyed permutation of 64-bit numbers. It protects no secrets here. The registry uses it
//! to turn counters into names that peers cannot guess, and to turn names back into counters
//! without a table.

const ROUNDS: usize = 27;

/// The cipher with one key, as round keys.
#[derive(Debug)]
pub(super) struct Cipher {
    round_keys: [u32; ROUNDS],
}

impl Cipher {
    /// Computes the round keys from a key of 128 bits.
    pub(super) fn new(key: [u8; 16]) -> Self {
        let word = |index: usize| {
            u32::from_le_bytes(key[index * 4..][..4].try_into().expect("four of sixteen bytes"))
        };
        let (mut y, mut rest) = (word(0), [word(1), word(2), word(3)]);
        let mut round_keys = [0; ROUNDS];
        for (round, place) in round_keys.iter_mut().enumerate() {
            *place = y;
            (rest[round % 3], y) = turn(rest[round % 3], y, round as u32);
        }
        Self { round_keys }
    }

    /// Returns the enciphered form of `plain`.
    pub(super) fn encipher(&self, plain: u64) -> u64 {
        let halves = ((plain >> 32) as u32, plain as u32);
        let (x, y) = self.round_keys.iter().fold(halves, |(x, y), &key| turn(x, y, key));
        u64::from(x) << 32 | u64::from(y)
    }

    /// Returns the plain form of `enciphered`.
    pub(super) fn decipher(&self, enciphered: u64) -> u64 {
        let halves = ((enciphered >> 32) as u32, enciphered as u32);
        let (x, y) = self.round_keys.iter().rev().fold(halves, |(x, y), &key| turn_back(x, y, key));
        u64::from(x) << 32 | u64::from(y)
    }
}

fn turn(x: u32, y: u32, key: u32) -> (u32, u32) {
    let x = x.rotate_right(8).wrapping_add(y) ^ key;
    (x, y.rotate_left(3) ^ x)
}

fn turn_back(x: u32, y: u32, key: u32) -> (u32, u32) {
    let y = (y ^ x).rotate_right(3);
    ((x ^ key).wrapping_sub(y).rotate_left(8), y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cipher_matches_the_published_example() {
        let key = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27];
        let cipher = Cipher::new(key);
        assert_eq!(cipher.encipher(0x3b72_6574_7475_432d), 0x8c6f_a548_454e_028b);
        assert_eq!(cipher.decipher(0x8c6f_a548_454e_028b), 0x3b72_6574_7475_432d);
    }
}
