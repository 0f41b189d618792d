//! The addresses of the I/Os of a job.

use farblock_block::Geometry;

use crate::error::BenchError;
use crate::pattern::Pattern;
use farblock_random::Random;

/// The part of a namespace that a pattern uses, in I/Os of the pattern's block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) io_blocks: u32,
    /// The number of blocks of each operation of an I/O. An I/O is one operation, unless the
    /// namespace accepts fewer blocks in one operation.
    pub(crate) op_blocks: u32,
    /// The number of I/Os that fit into this part of the namespace.
    pub(crate) ios: u64,
}

impl Span {
    /// Divides a namespace, or its first `size` bytes if given, into I/Os of `pattern`.
    pub(crate) fn new(
        geometry: &Geometry,
        pattern: &Pattern,
        size: Option<u64>,
    ) -> Result<Span, String> {
        let bytes = u64::from(pattern.block_size_bytes);
        let block_size = u64::from(geometry.block_size);
        if bytes == 0 || !bytes.is_multiple_of(block_size) {
            return Err(format!(
                "{bytes} bytes are not a whole number of {block_size}-byte blocks"
            ));
        }
        let capacity = geometry.capacity_bytes();
        let used = size.unwrap_or(capacity);
        if used > capacity {
            return Err(format!(
                "the size option is {used} bytes, but the namespace has only {capacity}"
            ));
        }
        let ios = used / bytes;
        let regions = if pattern.rw.is_random() { 1 } else { u64::from(pattern.numjobs) };
        if ios < regions {
            let needed = regions * bytes;
            return Err(format!("it needs at least {needed} bytes, but may use only {used}"));
        }
        let io_blocks = (bytes / block_size) as u32; // at most MAX_BLOCK_SIZE_BYTES / 512
        let op_blocks = match geometry.max_blocks {
            0 => io_blocks,
            max => io_blocks.min(max),
        };
        Ok(Span { io_blocks, op_blocks, ios })
    }

    pub(crate) fn ops_per_io(&self) -> u32 {
        self.io_blocks.div_ceil(self.op_blocks)
    }
}

/// Chooses the addresses of one job.
#[derive(Debug)]
pub(crate) enum Addresses {
    /// Random addresses in the span, with equal probability.
    Random { ios: u64 },
    /// Consecutive addresses in the job's own region. After the last address, the first follows
    /// again.
    Sequential { first: u64, count: u64, next: u64 },
}

impl Addresses {
    pub(crate) fn new(pattern: &Pattern, span: &Span, job: u32) -> Addresses {
        if pattern.rw.is_random() {
            return Addresses::Random { ios: span.ios };
        }
        let count = span.ios / u64::from(pattern.numjobs);
        Addresses::Sequential { first: count * u64::from(job), count, next: 0 }
    }

    /// The number of the next I/O within the span.
    pub(crate) fn next(&mut self, random: &mut Random) -> u64 {
        match self {
            Addresses::Random { ios } => random.below(*ios),
            Addresses::Sequential { first, count, next } => {
                let io = *first + *next;
                *next = if *next + 1 == *count { 0 } else { *next + 1 };
                io
            }
        }
    }
}

/// Checks that a pattern can run on a namespace.
pub(crate) fn check_fit(
    geometry: &Geometry,
    describe: &str,
    pattern: &Pattern,
    size: Option<u64>,
) -> Result<Span, BenchError> {
    Span::new(geometry, pattern, size).map_err(|why| BenchError::DoesNotFit {
        pattern: pattern.name.clone(),
        namespace: describe.to_owned(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Rw;

    fn pattern(rw: Rw, numjobs: u32) -> Pattern {
        Pattern::new(rw, 4096, numjobs, 1)
    }

    #[test]
    fn a_span_is_cut_into_whole_ios() {
        let geometry = Geometry::new(512, 100);
        let span = Span::new(&geometry, &pattern(Rw::RandRead, 1), None);
        assert_eq!(span, Ok(Span { io_blocks: 8, op_blocks: 8, ios: 12 }));
        let span = Span::new(&geometry, &pattern(Rw::RandRead, 1), Some(8192));
        assert_eq!(span.map(|span| span.ios), Ok(2));
    }

    #[test]
    fn ios_above_the_namespace_limit_become_several_operations() {
        let geometry = Geometry { max_blocks: 3, ..Geometry::new(512, 100) };
        let span = Span::new(&geometry, &pattern(Rw::Read, 1), None).expect("the size is valid");
        assert_eq!((span.op_blocks, span.ops_per_io()), (3, 3));
    }

    #[test]
    fn a_pattern_that_does_not_fit_is_refused() {
        let why = |geometry: &Geometry, rw, jobs, size| {
            Span::new(geometry, &pattern(rw, jobs), size).expect_err("the size was accepted")
        };
        let small = Geometry::new(512, 8);
        assert!(why(&Geometry::new(8192, 100), Rw::Read, 1, None).contains("not a whole number"));
        assert!(why(&small, Rw::Read, 2, None).contains("needs at least 8192 bytes"));
        assert!(why(&small, Rw::RandRead, 1, Some(512)).contains("needs at least 4096 bytes"));
        assert!(
            why(&small, Rw::RandRead, 1, Some(8192)).contains("but the namespace has only 4096")
        );
    }

    #[test]
    fn sequential_jobs_have_regions_of_their_own() {
        let mut random = Random::new(0);
        let span = Span { io_blocks: 8, op_blocks: 8, ios: 7 };
        let mut second = Addresses::new(&pattern(Rw::Read, 2), &span, 1);
        let taken: Vec<u64> = (0..5).map(|_| second.next(&mut random)).collect();
        assert_eq!(taken, [3, 4, 5, 3, 4], "the addresses of a job with three blocks");
    }

    #[test]
    fn random_addresses_stay_in_the_span() {
        let mut random = Random::new(1);
        let span = Span { io_blocks: 8, op_blocks: 8, ios: 5 };
        let mut addresses = Addresses::new(&pattern(Rw::RandRead, 4), &span, 3);
        let mut seen = [false; 5];
        (0..1000).for_each(|_| seen[addresses.next(&mut random) as usize] = true);
        assert_eq!(seen, [true; 5]);
    }
}
