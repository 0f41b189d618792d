//! Placement: the order in which members should lead an ANA group.
//!
//! Rendezvous hashing with weights: each member draws a number from its name and the group, and the
//! member with the highest score leads. If a member leaves, only its groups move. A member with
//! twice the weight leads twice as many groups. The score is weight / -ln(u) for a uniform number u
//! between 0 and 1, so scores compare as fractions. The arithmetic uses integers, so that all
//! builds calculate the same order.

use farblock_random::Random;

/// The number of fractional bits of a logarithm.
const FRACTION: u32 = 32;

/// Returns -log2(bits / 2^64), times 2^[`FRACTION`].
fn minus_log2(bits: u64) -> u64 {
    let bits = bits.max(1);
    let zeros = bits.leading_zeros();
    // `mantissa` / 2^63 is in [1, 2). Each squaring yields one bit of its logarithm.
    let mut mantissa = u128::from(bits << zeros);
    let mut fraction = 0u64;
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    (u64::from(zeros + 1) << FRACTION) - fraction
}

fn draw(group: u32, member: &str) -> u64 {
    let mut parts = vec![u64::from(group)];
    for chunk in member.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        parts.push(u64::from_le_bytes(word));
    }
    Random::mix(&parts)
}

/// Returns the members in the order in which they should lead a group, the best first. Leaves out
/// members of weight 0.
pub fn ranking<'a>(group: u32, members: impl Iterator<Item = (&'a str, u32)>) -> Vec<&'a str> {
    let mut scored: Vec<(&str, u32, u64)> = members
        .filter(|(_, weight)| *weight > 0)
        .map(|(name, weight)| (name, weight, minus_log2(draw(group, name)).max(1)))
        .collect();
    scored.sort_by(|one, two| {
        let score = |a: u32, b: u64| u128::from(a) * u128::from(b);
        score(two.1, one.2).cmp(&score(one.1, two.2)).then_with(|| one.0.cmp(two.0))
    });
    scored.into_iter().map(|(name, ..)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn logarithms_have_errors_below_a_millionth() {
        for (bits, expected) in [(1 << 63, 1.0), (1 << 62, 2.0), (3 << 62, 0.415_037_5), (1, 64.0)]
        {
            let found = minus_log2(bits) as f64 / f64::from(1u32 << 16) / f64::from(1u32 << 16);
            assert!((found - expected).abs() < 1e-6, "{bits}: {found}");
        }
    }

    #[test]
    fn members_lead_by_weight_and_only_the_lost_members_groups_move() {
        let members = [("a", 1), ("b", 1), ("c", 2)];
        let mut count = BTreeMap::new();
        for group in 0..4000 {
            let ranks = ranking(group, members.into_iter());
            *count.entry(ranks[0]).or_insert(0) += 1;
            let without = ranking(group, members.into_iter().filter(|(name, _)| *name != "b"));
            let rest: Vec<_> = ranks.into_iter().filter(|name| *name != "b").collect();
            assert_eq!(without, rest, "group {group}: the order of the other members stays");
        }
        assert!(
            (900..1100).contains(&count["a"]) && (1850..2150).contains(&count["c"]),
            "{count:?}"
        );
        assert!(ranking(1, [("a", 0)].into_iter()).is_empty());
    }
}
