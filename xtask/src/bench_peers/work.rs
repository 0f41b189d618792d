//! The loads to measure, their backends, and the sides that run them.

use farblock_bench::{Pattern, Rw};
use serde::Serialize;

use super::sides::{self, Side};

/// The kind of disk that the targets share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    /// Memory.
    Mem,
    /// No storage: reads return arbitrary data, writes are discarded.
    Null,
    /// A file on a disk, without the page cache.
    File,
}

impl Backend {
    pub(crate) const ALL: [Backend; 3] = [Backend::Mem, Backend::Null, Backend::File];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Backend::Mem => "mem",
            Backend::Null => "null",
            Backend::File => "file",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Load {
    pub(crate) rw: Rw,
    pub(crate) block_bytes: u32,
    /// The number of I/Os in flight on all connections together.
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    /// The maximum IOPS; `None` means no limit.
    pub(crate) rate: Option<u32>,
    /// Whether header and data digests are enabled.
    pub(crate) digests: bool,
}

/// The percentage of reads in mixed loads.
pub(crate) const MIX_READ: u8 = 70;

impl Load {
    pub(crate) const fn new(rw: Rw, block_bytes: u32, depth: u32, connections: u32) -> Load {
        Load { rw, block_bytes, depth, connections, rate: None, digests: false }
    }

    /// The load of a pattern of `farblock bench`, with one connection for each job.
    pub(crate) fn of(pattern: &Pattern) -> Load {
        let Pattern { rw, block_size_bytes, numjobs, iodepth, .. } = *pattern;
        Load::new(rw, block_size_bytes, numjobs * iodepth, numjobs)
    }

    /// The number of I/Os in flight on each connection.
    pub(crate) fn depth_each(&self) -> u32 {
        self.depth / self.connections
    }

    pub(crate) fn block_size(&self) -> String {
        match self.block_bytes {
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
            bytes if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
            bytes => format!("{bytes}"),
        }
    }

    /// The name of the load for `--only`, for example `4k-randread-qd32-c1`.
    pub(crate) fn slug(&self) -> String {
        let mut slug =
            format!("{}-{}-qd{}-c{}", self.block_size(), self.rw, self.depth, self.connections);
        if let Some(rate) = self.rate {
            slug += &format!("-rate{rate}");
        }
        if self.digests {
            slug += "-digests";
        }
        slug
    }

    /// The load in words: `4k randread, QD 32, 1 connection`.
    pub(crate) fn words(&self) -> String {
        let connections = match self.connections {
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        };
        let rate = self.rate.map_or(String::new(), |rate| format!(", at most {rate} IOPS"));
        let digests = if self.digests { ", digests" } else { "" };
        format!(
            "{} {}, QD {}, {connections}{rate}{digests}",
            self.block_size(),
            self.rw,
            self.depth
        )
    }
}

/// A load on a backend, and the sides that run it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) backend: Backend,
    pub(crate) load: Load,
    pub(crate) sides: Vec<Side>,
}

impl Row {
    pub(crate) fn slug(&self) -> String {
        format!("{}-{}", self.backend.name(), self.load.slug())
    }
}

/// All rows, in the order of measurement.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for backend in Backend::ALL {
        let mut push = |load: Load, sides: &[Side]| {
            let takes_part = |side: &&Side| side.supports(backend, &load);
            let sides: Vec<Side> = sides.iter().filter(takes_part).copied().collect();
            rows.push(Row { backend, load, sides });
        };
        for rw in [Rw::RandRead, Rw::RandWrite] {
            for depth in [1, 32, 128] {
                push(Load::new(rw, 4 << 10, depth, 1), &sides::ALL);
            }
            for depth in [32, 128] {
                for connections in [4, 16] {
                    push(Load::new(rw, 4 << 10, depth, connections), &sides::PAIRS);
                }
            }
        }
        for (bytes, depth) in [(64 << 10, 32), (1 << 20, 8)] {
            for rw in [Rw::RandRead, Rw::RandWrite] {
                push(Load::new(rw, bytes, depth, 1), &sides::ALL);
            }
        }
        push(Load::new(Rw::RandRw, 4 << 10, 32, 1), &sides::PAIRS);
        if backend == Backend::Mem {
            for rw in [Rw::RandRead, Rw::RandWrite] {
                let load = Load::new(rw, 4 << 10, 32, 1);
                push(Load { digests: true, ..load }, &sides::PAIRS);
                push(Load { rate: Some(RATE), ..load }, &sides::PAIRS);
            }
        }
        if backend == Backend::File {
            for pattern in Pattern::six() {
                push(Load::of(&pattern), &sides::ALL);
            }
        }
    }
    rows
}

/// The maximum number of bytes in flight in the map of block sizes. With more, the speed of the
/// machine's memory would decide the result.
const MAP_BYTES_IN_FLIGHT: u64 = 128 << 20;
const MAP_DEPTHS: [u32; 5] = [1, 4, 8, 32, 128];

/// The rows of the map of block sizes: every power of two from 512 B to 4 MiB at five depths, on a
/// RAM disk.
pub(crate) fn map() -> Vec<Row> {
    let mut rows = Vec::new();
    for rw in [Rw::RandRead, Rw::RandWrite] {
        for block_bytes in (9..=22).map(|power| 1_u32 << power) {
            for depth in MAP_DEPTHS {
                if u64::from(block_bytes) * u64::from(depth) < MAP_BYTES_IN_FLIGHT {
                    let load = Load::new(rw, block_bytes, depth, 1);
                    rows.push(Row { backend: Backend::Mem, load, sides: sides::PAIRS.to_vec() });
                }
            }
        }
    }
    rows
}

/// The rate of the fixed load in IOPS.
pub(crate) const RATE: u32 = 20_000;

/// Selects the rows and sides whose names contain all words of one of `patterns`, which spaces
/// separate. The full name of a side starts with its row: `mem 4k-randread spdk`.
pub(crate) fn choose(mut rows: Vec<Row>, patterns: &[String]) -> Vec<Row> {
    if patterns.is_empty() {
        return rows;
    }
    for row in &mut rows {
        let slug = row.slug();
        row.sides.retain(|side| {
            let name = format!("{slug} {}", side.name);
            patterns.iter().any(|pattern| pattern.split(' ').all(|word| name.contains(word)))
        });
    }
    rows.retain(|row| !row.sides.is_empty());
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_a_name_for_options_and_a_description() {
        let load = Load::new(Rw::RandRead, 4096, 32, 4);
        assert_eq!((load.slug(), load.depth_each()), ("4k-randread-qd32-c4".to_owned(), 8));
        let load = Load { rate: Some(7), digests: true, ..Load::new(Rw::RandRw, 1 << 20, 8, 1) };
        assert_eq!(load.slug(), "1M-randrw-qd8-c1-rate7-digests");
        assert_eq!(load.words(), "1M randrw, QD 8, 1 connection, at most 7 IOPS, digests");
    }

    #[test]
    fn every_row_has_sides_and_a_unique_name() {
        let rows = all();
        let slugs: std::collections::HashSet<_> = rows.iter().map(Row::slug).collect();
        assert_eq!(slugs.len(), rows.len());
        for row in &rows {
            assert!(!row.sides.is_empty(), "{}", row.slug());
            assert_eq!(row.load.depth_each() * row.load.connections, row.load.depth);
        }
    }

    #[test]
    fn the_map_has_every_size_and_depth_once() {
        let rows = map();
        let slugs: std::collections::HashSet<_> = rows.iter().map(Row::slug).collect();
        assert_eq!((slugs.len(), rows.len()), (132, 132));
        for slug in ["mem-512-randread-qd1-c1", "mem-4M-randwrite-qd8-c1"] {
            assert!(slugs.contains(slug), "{slug}");
        }
        let all_run =
            |row: &Row| row.sides.iter().all(|side| side.supports(row.backend, &row.load));
        assert!(rows.iter().all(all_run));
    }

    #[test]
    fn only_rows_and_sides_with_all_words_are_chosen() {
        let chosen = |pattern: &str| choose(all(), &[pattern.to_owned()]);
        assert_eq!(choose(all(), &[]).len(), all().len());
        let rows = chosen("mem-4k-randread-qd32-c1 floor");
        assert!(!rows.is_empty() && rows.iter().all(|row| row.sides.len() == 1), "{rows:?}");
        assert!(chosen("nothing").is_empty());
    }
}
