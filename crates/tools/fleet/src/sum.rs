//! Sums the results of all runs of an action (a load of the plan).

use crate::message::Measured;
use crate::report::{ActionReport, Total};
use farblock_bench::{Latencies, Pattern, RecordedLatencies};
use std::collections::BTreeMap;

const MIB: f64 = (1 << 20) as f64;

/// The summed results of the runs so far.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) runs: Vec<Total>,
    latencies: Latencies,
    /// For each agent, the sum of its processor use in percent over all runs.
    cpu: BTreeMap<String, f64>,
}

impl Sum {
    /// Adds a run: the results of all clients, and the processor time of each agent in nanoseconds.
    ///
    /// # Errors
    /// A client has sent an invalid histogram.
    pub(crate) fn add(
        &mut self,
        pattern: &Pattern,
        results: &[Measured],
        cpu: &[(String, u64)],
    ) -> Result<(), String> {
        let mut latencies = Latencies::new();
        for result in results {
            latencies.merge(&result.latencies.latencies()?);
        }
        let iops: f64 = results.iter().map(|result| result.iops).sum();
        let seconds = results.iter().map(|result| result.seconds).fold(0.0, f64::max);
        let used: u64 = cpu.iter().map(|(_, ns)| ns).sum();
        for (name, ns) in cpu {
            let percent = *ns as f64 / 1e7 / seconds.max(f64::MIN_POSITIVE);
            *self.cpu.entry(name.clone()).or_default() += percent;
        }
        self.runs.push(Total {
            iops,
            mib_per_second: iops * f64::from(pattern.block_size_bytes) / MIB,
            latency: latencies.summary(),
            cpu_us_per_io: used as f64 / 1e3 / (iops * seconds).max(f64::MIN_POSITIVE),
            reads: results.iter().map(|result| result.reads).sum(),
            writes: results.iter().map(|result| result.writes).sum(),
        });
        self.latencies.merge(&latencies);
        Ok(())
    }

    /// The report of the action. Rates are means of the runs, and latencies cover all I/Os.
    pub(crate) fn report(
        self,
        pattern: &Pattern,
        clients: u32,
        alone_iops: Option<f64>,
    ) -> ActionReport {
        let count = self.runs.len().max(1) as f64;
        let mean = |of: fn(&Total) -> f64| self.runs.iter().map(of).sum::<f64>() / count;
        let total = Total {
            iops: mean(|run| run.iops),
            mib_per_second: mean(|run| run.mib_per_second),
            latency: self.latencies.summary(),
            cpu_us_per_io: mean(|run| run.cpu_us_per_io),
            reads: self.runs.iter().map(|run| run.reads).sum(),
            writes: self.runs.iter().map(|run| run.writes).sum(),
        };
        let of_alone = alone_iops.filter(|alone| *alone > 0.0);
        ActionReport {
            pattern: pattern.clone(),
            clients,
            vm: false,
            guests: false,
            alone_iops,
            percent_of_theoretical: of_alone.map(|alone| total.iops / alone * 100.0),
            total,
            runs: self.runs,
            documents: None,
            iscsi: Vec::new(),
            cpu: self.cpu.into_iter().map(|(name, percent)| (name, percent / count)).collect(),
            latencies: RecordedLatencies::of(&self.latencies),
        }
    }
}
