//! What is to be sent, cut into portions that are sealed into a buffer each.

/// See the module's text.
pub struct Portions<'a, I> {
    slices: I,
    /// Of the slice that was begun.
    rest: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Portions<'a, I> {
    /// Of these, one behind the other.
    pub fn new(slices: I) -> Self {
        Self { slices, rest: &[] }
    }

    /// The next so many bytes; fewer when there are no more.
    pub fn portion(&mut self, bytes: usize) -> impl Iterator<Item = &'a [u8]> {
        let mut left = bytes;
        std::iter::from_fn(move || {
            while left > 0 && self.rest.is_empty() {
                self.rest = self.slices.next()?;
            }
            let (part, rest) = self.rest.split_at(left.min(self.rest.len()));
            (self.rest, left) = (rest, left - part.len());
            (!part.is_empty()).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_portions() {
        let slices = [&b"abc"[..], b"", b"defghij", b"k"];
        for bytes in 1..13 {
            let mut portions = Portions::new(slices.into_iter());
            let mut all = Vec::new();
            loop {
                let portion = portions.portion(bytes).collect::<Vec<_>>().concat();
                all.extend_from_slice(&portion);
                if portion.len() < bytes {
                    break;
                }
            }
            assert_eq!(all, b"abcdefghijk", "{bytes}");
            assert_eq!(portions.portion(bytes).next(), None);
        }
    }
}
