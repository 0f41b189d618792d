//! The charts of the README and of docs/performance.md, which are drawn from data files.

use crate::data::{Data, Head};
use crate::picture::{self, Bar};

/// A chart: its data, its destination, and its contents.
pub(crate) struct Spec {
    /// The path of the picture, relative to docs.
    pub(crate) svg: &'static str,
    /// The path of the data file, relative to docs.
    pub(crate) data: &'static str,
    title: &'static str,
    reference: &'static str,
    unit_length: f64,
    bars: fn(&Data) -> Result<Vec<Bar>, String>,
}

pub(crate) const CHARTS: [Spec; 5] = [
    Spec {
        svg: "remote-and-local.svg",
        data: "performance/six-patterns.csv",
        title: "A remote disk beside the same disk locally: I/Os per second",
        reference: "local",
        unit_length: 390.0,
        bars: remote_and_local,
    },
    Spec {
        svg: "performance/spdk-ram.svg",
        data: "performance/spdk-ram.csv",
        title: "RAM disk: farblock's I/Os per second, SPDK's = 1",
        reference: "SPDK",
        unit_length: 160.0,
        bars: ratios,
    },
    Spec {
        svg: "performance/spdk-file.svg",
        data: "performance/spdk-file.csv",
        title: "Disk file: farblock's I/Os per second, SPDK's = 1",
        reference: "SPDK",
        unit_length: 160.0,
        bars: ratios,
    },
    Spec {
        svg: "performance/processor-time.svg",
        data: "performance/peers-file.csv",
        title: "Disk file: farblock's processor time for an I/O, SPDK's = 1",
        reference: "SPDK",
        unit_length: 320.0,
        bars: processor_time,
    },
    Spec {
        svg: "performance/protocols.svg",
        data: "performance/peers-mem.csv",
        title: "RAM disk: 4k random reads per second, 32 in flight, farblock's = 1",
        reference: "farblock",
        unit_length: 160.0,
        bars: protocols,
    },
];

/// The six patterns: the name of the `bench-peers` row, and the name in the chart.
const PATTERNS: [(&str, &str); 6] = [
    ("4k randread, QD 512, 16 connections", "4k random read"),
    ("4k randwrite, QD 32, 8 connections", "4k random write"),
    ("64k randread, QD 128, 4 connections", "64k random read"),
    ("64k randwrite, QD 4, 4 connections", "64k random write"),
    ("1M read, QD 16, 2 connections", "1M sequential read"),
    ("1M write, QD 8, 1 connection", "1M sequential write"),
];

impl Spec {
    pub(crate) fn draw(&self, data: &Data) -> Result<String, String> {
        let Head { machine, method, .. } = &data.head;
        let day = data.head.day();
        let method = short(method);
        Ok(picture::draw(&picture::Chart {
            title: self.title,
            reference: self.reference,
            unit_length: self.unit_length,
            bars: (self.bars)(data)?,
            source: format!("{machine}, {day}: {method}"),
        }))
    }
}

/// Shortens a text for the line below a chart: keeps the words before the first comma or semicolon.
fn short(text: &str) -> &str {
    text.split([';', ',']).next().unwrap_or_default()
}

fn remote_and_local(data: &Data) -> Result<Vec<Bar>, String> {
    let bar = |row: &Vec<String>| {
        let percent = data.number(row, "% of local")?;
        let [local, remote] =
            [data.number(row, "local IOPS")?, data.number(row, "remote IOPS")?].map(rounded);
        let label = format!("{percent:.0} %  ({remote} of {local})");
        Ok(Bar { name: data.cell(row, "pattern")?.to_owned(), ratio: percent / 100.0, label })
    };
    data.rows.iter().map(bar).collect()
}

fn ratios(data: &Data) -> Result<Vec<Bar>, String> {
    let bar = |row: &Vec<String>| {
        let ratio = data.number(row, "farblock ÷ SPDK")?;
        Ok(Bar { name: data.cell(row, "load")?.to_owned(), ratio, label: format!("{ratio:.2}") })
    };
    data.rows.iter().map(bar).collect()
}

fn processor_time(data: &Data) -> Result<Vec<Bar>, String> {
    let both = |load: &str, side: &str| -> Result<f64, String> {
        let row = data.row(&[("load", load), ("side", side)])?;
        Ok(data.number(row, "host µs/IO")? + data.number(row, "target µs/IO")?)
    };
    let bar = |(load, name): &(&str, &str)| {
        let (farblock, spdk) = (both(load, "farblock")?, both(load, "SPDK")?);
        let ratio = farblock / spdk;
        let label = format!("{ratio:.2}  ({farblock:.0} of {spdk:.0} µs)");
        Ok(Bar { name: (*name).to_owned(), ratio, label })
    };
    PATTERNS.iter().map(bar).collect()
}

fn protocols(data: &Data) -> Result<Vec<Bar>, String> {
    const LOAD: &str = "4k randread, QD 32, 1 connection";
    let iops = |side: &str| data.number(data.row(&[("load", LOAD), ("side", side)])?, "IOPS");
    let farblock = iops("farblock")?;
    let bar = |(side, name): (&str, &str)| {
        let iops = iops(side)?;
        let ratio = iops / farblock;
        let label = format!("{ratio:.2}  ({})", rounded(iops));
        Ok(Bar { name: name.to_owned(), ratio, label })
    };
    let sides = [
        ("local", "no network"),
        ("floor", "bare sockets"),
        ("farblock", "farblock"),
        ("farblock TLS", "farblock with TLS"),
        ("SPDK", "SPDK"),
        ("NBD", "NBD"),
        ("iSCSI", "iSCSI"),
    ];
    sides.into_iter().map(bar).collect()
}

fn rounded(iops: f64) -> String {
    match iops {
        ..10_000.0 => format!("{iops:.0}"),
        ..1e6 => format!("{:.1}k", iops / 1e3),
        _ => format!("{:.2}M", iops / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Data {
        Data::parse(&format!("# w | a machine | 2026-11-26T01:02:03Z | m; more | c\n{text}"))
            .expect("the table is valid")
    }

    #[test]
    fn a_chart_names_its_source() {
        let data = data("load,farblock ÷ SPDK\n4k read,2.43\n");
        let svg = CHARTS[1].draw(&data).expect("the data are complete");
        assert!(svg.contains(">a machine, 2026-11-26: m</text>"), "{svg}");
        assert!(svg.contains("4k read 2.43"), "{svg}");
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        let data = data("load,farblock ÷ SPDK\n4k read,\n");
        let error = CHARTS[1].draw(&data).err();
        let expected = "row \"4k read,\" has no number in column \"farblock ÷ SPDK\"";
        assert_eq!(error.as_deref(), Some(expected));
        assert!(CHARTS[3].draw(&data).is_err(), "a chart needs rows for its loads");
    }

    #[test]
    fn large_numbers_are_rounded() {
        assert_eq!(rounded(972.0), "972");
        assert_eq!(rounded(81_400.0), "81.4k");
        assert_eq!(rounded(1_936_720.0), "1.94M");
    }
}
