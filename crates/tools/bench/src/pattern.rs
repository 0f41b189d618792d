//! The load of a job: direction, order, block size, depth and number of jobs, in fio's terms.

use farblock_block::size;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::limits::{MAX_BLOCK_SIZE_BYTES, MAX_IODEPTH, MAX_NUMJOBS};

/// The direction and order of a pattern's I/Os, with fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads and writes, mixed by [`Pattern::rwmixread`].
    RandRw,
    /// Sequential reads and writes, mixed by [`Pattern::rwmixread`].
    Rw,
}

impl Rw {
    /// All variants, in the order of the documentation.
    pub const ALL: [Rw; 6] = [Rw::RandRead, Rw::RandWrite, Rw::Read, Rw::Write, Rw::RandRw, Rw::Rw];

    /// Whether the pattern chooses addresses at random.
    pub fn is_random(self) -> bool {
        matches!(self, Rw::RandRead | Rw::RandWrite | Rw::RandRw)
    }

    /// Whether some I/Os are reads.
    pub fn reads(self) -> bool {
        !matches!(self, Rw::RandWrite | Rw::Write)
    }

    /// Whether some I/Os are writes.
    pub fn writes(self) -> bool {
        !matches!(self, Rw::RandRead | Rw::Read)
    }

    /// The name in fio.
    pub fn name(self) -> &'static str {
        match self {
            Rw::RandRead => "randread",
            Rw::RandWrite => "randwrite",
            Rw::Read => "read",
            Rw::Write => "write",
            Rw::RandRw => "randrw",
            Rw::Rw => "rw",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Rw::RandRead => "random read",
            Rw::RandWrite => "random write",
            Rw::Read => "sequential read",
            Rw::Write => "sequential write",
            Rw::RandRw => "random mixed",
            Rw::Rw => "sequential mixed",
        }
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rw {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Rw, BenchError> {
        let found = Rw::ALL.into_iter().find(|rw| rw.name() == text);
        found.ok_or_else(|| BenchError::BadPattern {
            text: text.to_owned(),
            why: "rw is one of randread, randwrite, read, write, randrw, rw".to_owned(),
        })
    }
}

/// A pattern of load.
///
/// Its text form follows fio: `randrw,bs=4k,iodepth=32,numjobs=2,rwmixread=70`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// The name of the pattern for people, such as `4k random read`.
    pub name: String,
    /// The direction and order of the I/Os.
    pub rw: Rw,
    /// The size of one I/O, in bytes.
    pub block_size_bytes: u32,
    /// The number of I/Os that each job keeps in flight.
    pub iodepth: u32,
    /// The number of jobs. Each is a thread with its own queues.
    pub numjobs: u32,
    /// The percentage of reads among all I/Os, for the mixed patterns.
    pub rwmixread: u8,
    /// The maximum number of I/Os that each job starts in a second. `None` means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_iops: Option<u32>,
    /// A note on how the pattern was changed to fit the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Pattern {
    /// A pattern whose name consists of its block size and direction.
    pub fn new(rw: Rw, block_size_bytes: u32, numjobs: u32, iodepth: u32) -> Pattern {
        let name = format!("{} {}", size_words(block_size_bytes), rw.words());
        let (rwmixread, rate_iops, note) = (50, None, None);
        Pattern { name, rw, block_size_bytes, iodepth, numjobs, rwmixread, rate_iops, note }
    }

    /// The six patterns of StarWind's published test, with its numbers of jobs and depths for a
    /// Linux host.
    pub fn six() -> Vec<Pattern> {
        vec![
            Pattern::new(Rw::RandRead, 4 << 10, 16, 32),
            Pattern::new(Rw::RandWrite, 4 << 10, 8, 4),
            Pattern::new(Rw::RandRead, 64 << 10, 4, 32),
            Pattern::new(Rw::RandWrite, 64 << 10, 4, 1),
            Pattern::new(Rw::Read, 1 << 20, 2, 8),
            Pattern::new(Rw::Write, 1 << 20, 1, 8),
        ]
    }

    /// The same pattern with at most `cores` jobs. If this reduces the jobs, a note says so.
    ///
    /// A job is a thread that can use a whole core. More jobs than cores would measure the
    /// scheduler. The depth of each job stays, because it determines the latency.
    pub fn scaled_to(&self, cores: u32) -> Pattern {
        let cores = cores.max(1);
        let mut scaled = self.clone();
        if self.numjobs > cores {
            let plural = if cores == 1 { "core" } else { "cores" };
            scaled.note =
                Some(format!("{} jobs scaled to {cores} ({cores} {plural})", self.numjobs));
            scaled.numjobs = cores;
        }
        scaled
    }

    /// The name as one word, to select the pattern: `4k-random-read`.
    pub fn slug(&self) -> String {
        self.name.to_lowercase().split_whitespace().collect::<Vec<_>>().join("-")
    }

    /// Checks everything that does not depend on a namespace.
    pub fn validate(&self) -> Result<(), BenchError> {
        let wrong = |why: &str| {
            Err(BenchError::BadPattern { text: self.name.clone(), why: why.to_owned() })
        };
        if self.block_size_bytes == 0 || self.block_size_bytes > MAX_BLOCK_SIZE_BYTES {
            return wrong("the block size is between 512 bytes and 64 MiB");
        }
        if self.iodepth == 0 || self.iodepth > MAX_IODEPTH {
            return wrong("iodepth is between 1 and 65535");
        }
        if self.numjobs == 0 || self.numjobs > MAX_NUMJOBS {
            return wrong("numjobs is between 1 and 1024");
        }
        if self.rwmixread > 100 {
            return wrong("rwmixread is at most 100");
        }
        if self.rate_iops == Some(0) {
            return wrong("rate_iops is at least 1");
        }
        Ok(())
    }
}

impl FromStr for Pattern {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Pattern, BenchError> {
        let bad = |why: String| BenchError::BadPattern { text: text.to_owned(), why };
        let mut words = text.split(',').map(str::trim);
        let rw: Rw = words.next().unwrap_or_default().parse()?;
        let mut pattern = Pattern::new(rw, 4096, 1, 1);
        let mut name = None;
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| bad(format!("{word:?} is not of the form key=value")))?;
            let number =
                || value.parse::<u32>().map_err(|_| bad(format!("{key}={value} is not a number")));
            match key {
                "bs" => {
                    pattern.block_size_bytes = size::parse(value)
                        .ok()
                        .and_then(|bytes| u32::try_from(bytes).ok())
                        .ok_or_else(|| bad(format!("bs={value} is not a size such as 4k or 1m")))?;
                }
                "iodepth" => pattern.iodepth = number()?,
                "numjobs" => pattern.numjobs = number()?,
                "rate_iops" => pattern.rate_iops = Some(number()?),
                "rwmixread" => {
                    pattern.rwmixread = u8::try_from(number()?)
                        .map_err(|_| bad("rwmixread is at most 100".to_owned()))?;
                }
                "name" => name = Some(value.to_owned()),
                _ => {
                    let known = "bs, iodepth, numjobs, rate_iops, rwmixread and name";
                    return Err(bad(format!("{key} is not one of {known}")));
                }
            }
        }
        let derived = Pattern::new(rw, pattern.block_size_bytes, 1, 1).name;
        pattern.name = name.unwrap_or(derived);
        pattern.validate()?;
        Ok(pattern)
    }
}

/// Formats a block size as in `4k`, `64k`, `1M`, or in bytes if it is not a multiple of 1 KiB.
pub(crate) fn size_words(bytes: u32) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}k", b >> 10),
        b => format!("{b}-byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_six_patterns_match_the_published_ones() {
        let rows: Vec<String> = Pattern::six()
            .iter()
            .map(|p| format!("{} {} {}x{}", p.name, p.rw, p.numjobs, p.iodepth))
            .collect();
        assert_eq!(
            rows,
            [
                "4k random read randread 16x32",
                "4k random write randwrite 8x4",
                "64k random read randread 4x32",
                "64k random write randwrite 4x1",
                "1M sequential read read 2x8",
                "1M sequential write write 1x8",
            ]
        );
    }

    #[test]
    fn scaling_keeps_the_depth_and_adds_a_note() {
        let pattern = &Pattern::six()[0];
        let scaled = pattern.scaled_to(2);
        assert_eq!((scaled.numjobs, scaled.iodepth), (2, 32));
        assert_eq!(scaled.note.as_deref(), Some("16 jobs scaled to 2 (2 cores)"));
        let one = pattern.scaled_to(0);
        assert_eq!(one.note.as_deref(), Some("16 jobs scaled to 1 (1 core)"));
        assert_eq!(pattern.scaled_to(16), *pattern);
        assert_eq!(pattern.scaled_to(64), *pattern);
    }

    #[test]
    fn patterns_are_parsed_in_the_syntax_of_fio() {
        let pattern: Pattern =
            "randrw,bs=16k,iodepth=8,numjobs=3,rwmixread=70".parse().expect("the pattern is valid");
        let expected = Pattern { rwmixread: 70, ..Pattern::new(Rw::RandRw, 16384, 3, 8) };
        assert_eq!(pattern, expected);
        assert_eq!(pattern.slug(), "16k-random-mixed");
        let named: Pattern = "read,name=my scan,bs=1MiB".parse().expect("the pattern is valid");
        assert_eq!((named.name.as_str(), named.block_size_bytes), ("my scan", 1 << 20));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let why =
            |text: &str| text.parse::<Pattern>().expect_err("the pattern was accepted").to_string();
        assert!(why("trim").contains("rw is one of randread"));
        assert!(why("read,bs").contains("key=value"));
        assert!(why("read,bs=4x").contains("4k or 1m"));
        assert!(why("read,bs=8g").contains("4k or 1m"));
        assert!(why("read,iodepth=0").contains("iodepth is between"));
        assert!(why("read,numjobs=9999").contains("numjobs is between"));
        assert!(why("rw,rwmixread=101").contains("rwmixread is at most 100"));
        assert!(why("rw,rwmixread=300").contains("rwmixread is at most 100"));
        assert!(why("rw,depth=3").contains("depth is not one of"));
    }

    #[test]
    fn block_sizes_are_shown_in_words() {
        assert_eq!(size_words(4608), "4608-byte");
    }
}
