//! The map of block sizes, with one line for each block size, depth and direction.

use super::report::RowReport;
use super::sides;

pub(super) const NAME: &str = "block-size-map";

pub(super) const COLUMNS: [&str; 11] = [
    "direction",
    "size",
    "depth",
    "farblock IOPS",
    "SPDK IOPS",
    "floor IOPS",
    "farblock ÷ SPDK",
    "farblock ÷ floor",
    "farblock µs/IO",
    "SPDK µs/IO",
    "farblock p99 µs",
];

/// The cells of a row. If a side did not run, its cells are empty.
pub(super) fn cells(row: &RowReport) -> Vec<String> {
    let [farblock, spdk, floor] =
        [sides::FARBLOCK, sides::SPDK, sides::FLOOR].map(|side| row.of(side));
    let whole = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.0}"));
    let fine = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let [ours, theirs, bare] = [farblock, spdk, floor].map(|side| side.map(|side| side.iops));
    let ratio = |other: Option<f64>| ours.zip(other).map(|(ours, other)| ours / other);
    let both_ends = |side: &super::Figures| side.host_cpu_us + side.target_cpu_us.unwrap_or(0.0);
    vec![
        if row.load.rw.writes() { "write" } else { "read" }.to_owned(),
        row.load.block_size(),
        row.load.depth.to_string(),
        whole(ours),
        whole(theirs),
        whole(bare),
        fine(ratio(theirs)),
        fine(ratio(bare)),
        fine(farblock.map(both_ends)),
        fine(spdk.map(both_ends)),
        fine(farblock.and_then(|side| side.p99_us)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::measure::Figures;
    use super::super::report::SideReport;
    use super::super::work;
    use super::*;

    #[test]
    fn a_side_that_did_not_run_has_empty_cells() {
        let map = work::map();
        let mut ours = SideReport::new(&sides::FARBLOCK);
        ours.median = Some(Figures { iops: 30.0, host_cpu_us: 1.0, ..Figures::default() });
        let mut floor = SideReport::new(&sides::FLOOR);
        floor.median = Some(Figures { iops: 60.0, ..Figures::default() });
        let row = RowReport::new(&map[0], vec![ours, floor]);
        assert_eq!(cells(&row).join(","), "read,512,1,30,,60,,0.50,1.00,,");
        assert_eq!(cells(&row).len(), COLUMNS.len());
    }
}
