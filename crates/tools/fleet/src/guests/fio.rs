//! The arguments and the output of fio in a guest.

use crate::message::Measured;
use farblock_bench::{Latencies, Pattern, RecordedLatencies};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The block sizes to write and read back.
const VERIFY_SIZES: &str = "4k-64k";

pub(super) fn load(pattern: &Pattern, ramp: Duration, runtime: Duration) -> String {
    let Pattern { rw, block_size_bytes, iodepth, numjobs, rwmixread, rate_iops, .. } = pattern;
    let rate = rate_iops.map(|rate| format!(" --rate_iops={rate}")).unwrap_or_default();
    format!(
        "--rw={rw} --bs={block_size_bytes} --iodepth={iodepth} --numjobs={numjobs} \
         --rwmixread={rwmixread} --norandommap --time_based --ramp_time={}ms --runtime={}ms{rate}",
        ramp.as_millis(),
        runtime.as_millis()
    )
}

/// The arguments of fio for `verify`: write a part of the disk, and read it back.
pub(super) fn verify(offset: u64, bytes: u64) -> String {
    format!(
        "--rw=randwrite --bsrange={VERIFY_SIZES} --iodepth=16 --offset={offset} --size={bytes} \
         --verify=crc32c --verify_fatal=1 --do_verify=1"
    )
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    iops: f64,
    runtime: u64,
    #[serde(default)]
    clat_ns: Completions,
}

#[derive(Default, Deserialize)]
struct Completions {
    /// The number of I/Os by latency in nanoseconds, with an error of at most 1 %.
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

/// Parses the output of `--output-format=json+`. The result has no processor time.
pub(super) fn parse(text: &str) -> Result<Measured, String> {
    let wrong = |why: String| format!("the output of fio cannot be parsed: {why}");
    let output: Output = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let [job] = output.jobs.as_slice() else {
        return Err(wrong(format!("{} jobs instead of one", output.jobs.len())));
    };
    if job.error != 0 {
        return Err(format!("fio reports error {}", job.error));
    }
    let mut latencies = Latencies::new();
    for (ns, &count) in [&job.read, &job.write].into_iter().flat_map(|it| &it.clat_ns.bins) {
        let ns: u64 = ns.parse().map_err(|_| wrong(format!("a latency of \"{ns}\" ns")))?;
        latencies.record_many(Duration::from_nanos(ns), count);
    }
    Ok(Measured {
        reads: job.read.total_ios,
        writes: job.write.total_ios,
        iops: job.read.iops + job.write.iops,
        latencies: RecordedLatencies::of(&latencies),
        cpu_ns: 0,
        seconds: job.read.runtime.max(job.write.runtime) as f64 / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_fio_is_parsed() {
        let text = r#"{"fio version":"fio-3.39","jobs":[{"jobname":"guest","error":0,
            "read":{"total_ios":3,"iops":1.5,"runtime":2000,"clat_ns":{"min":1,
                "bins":{"1000":1,"2000":2}}},
            "write":{"total_ios":1,"iops":0.5,"runtime":1999,"clat_ns":{"bins":{"9000":1}}},
            "trim":{"total_ios":0}}]}"#;
        let measured = parse(text).unwrap();
        assert_eq!((measured.reads, measured.writes), (3, 1));
        assert_eq!((measured.iops, measured.seconds), (2.0, 2.0));
        let latencies = measured.latencies.latencies().unwrap();
        assert_eq!((latencies.count(), latencies.mean_ns()), (4, 3500.0));
        assert!(parse("{\"jobs\":[]}").unwrap_err().contains("0 jobs"));
        assert!(parse("fio: no").unwrap_err().contains("cannot be parsed"));
        let failed = text.replace("\"error\":0", "\"error\":5");
        assert_eq!(parse(&failed).unwrap_err(), "fio reports error 5");
    }

    #[test]
    fn a_load_becomes_fio_options() {
        let pattern: Pattern = "randrw,bs=4k,iodepth=16,numjobs=2,rwmixread=70".parse().unwrap();
        let words = load(&pattern, Duration::from_millis(1500), Duration::from_secs(5));
        for word in ["--rw=randrw", "--bs=4096", "--iodepth=16", "--numjobs=2", "--rwmixread=70"] {
            assert!(words.split(' ').any(|it| it == word), "{word} in {words}");
        }
        assert!(words.ends_with("--ramp_time=1500ms --runtime=5000ms"), "{words}");
    }
}
