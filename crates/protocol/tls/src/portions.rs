//! Divides outgoing data into portions. The sender encrypts each portion into one buffer.

/// Returns the first `bytes` bytes of `slices`, or all bytes if there are fewer.
pub fn portion<'a>(
    slices: impl Iterator<Item = &'a [u8]>,
    bytes: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let mut left = bytes;
    slices.map_while(move |slice| {
        let part = &slice[..slice.len().min(left)];
        let is_wanted = left > 0;
        left -= part.len();
        is_wanted.then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_may_end_inside_or_at_the_end_of_a_slice() {
        let slices = [&b"abc"[..], b"", b"defghij", b"k"];
        for bytes in 0..13 {
            let all = portion(slices.into_iter(), bytes).collect::<Vec<_>>().concat();
            assert_eq!(all, &b"abcdefghijk"[..bytes.min(11)]);
        }
    }
}
