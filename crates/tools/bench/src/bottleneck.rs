//! The bottleneck of a pattern, judged only from the figures of the pattern.
//!
//! ```text
//!  remote is as fast as local ──────────────────────────────► the disk
//!  else, processors are used up ────────────────────────────► the host's, the target's, or all
//!  else, bare sockets explain most of the additional latency ► the network
//!  else, remote sleeps more often than local ───────────────► wake-ups
//!  else ────────────────────────────────────────────────────► the round trip
//! ```

use crate::cpu::CpuUse;
use crate::format;
use crate::result::{Figures, PatternReport};

/// From this percentage of the local IOPS, the remote disk counts as fast as the local one.
const AS_FAST_PERCENT: f64 = 95.0;
/// Processors count as used up from this utilization in percent.
const USED_UP_PERCENT: f64 = 90.0;
/// If the remote side sleeps more often per I/O than the local side, but by less than this, sleeps
/// do not count as the reason.
const FEW_SLEEPS: f64 = 0.1;

impl PatternReport {
    /// The bottleneck of the remote side, as far as the figures show it, on a machine with this
    /// many `cores`. `None` unless both sides were measured.
    pub fn bottleneck(&self, cores: u32) -> Option<String> {
        let (local, remote) = (self.local.as_ref()?, self.remote.as_ref()?);
        if self.remote_percent_of_local?.iops >= AS_FAST_PERCENT {
            return Some("the disk: remote is as fast as local".to_owned());
        }
        let own = self.pattern.numjobs.min(cores);
        if let Some(used_up) = used_up(remote, own, cores) {
            return Some(used_up);
        }
        let longer_ns = (remote.latency.mean_ns - local.latency.mean_ns).max(0.0);
        let longer = format!("{} µs longer", format::us(longer_ns));
        let floor = self.floor.as_ref().filter(|_| self.floor_doubt().is_none());
        let floor_ns = floor.map(|floor| floor.latency.mean_ns);
        if let Some(floor_ns) = floor_ns.filter(|floor_ns| floor_ns * 2.0 >= longer_ns) {
            let floor = format::us(floor_ns);
            return Some(format!("the network: {longer}, and bare sockets alone take {floor} µs"));
        }
        let busy = busy(remote, cores);
        let sleeps = local.sleeps_per_io.zip(remote.sleeps_per_io);
        let most = match sleeps.filter(|(local, remote)| remote - local >= FEW_SLEEPS) {
            Some((local, remote)) => {
                format!("wake-ups: {longer}{busy}, {remote:.1} sleeps per I/O (local {local:.1})")
            }
            None => format!("the round trip: {longer}{busy}"),
        };
        let floor = floor_ns.map(|floor_ns| format!("; bare sockets: {} µs", format::us(floor_ns)));
        Some(most + &floor.unwrap_or_default())
    }
}

/// Names the processors that are used up: all `cores`, or the processors of one end of the
/// connection. One end can use `own` processors, one for each job. `None` if none are used up.
fn used_up(remote: &Figures, own: u32, cores: u32) -> Option<String> {
    let percent = |cpu: Option<CpuUse>| cpu.map_or(0.0, |cpu| cpu.percent_of_core);
    let (host, target) = (percent(remote.host_cpu), percent(remote.target_cpu));
    let is_used_up = |used: f64, of: u32| used >= USED_UP_PERCENT * f64::from(of);
    let whose = if is_used_up(host + target, cores) {
        "all processors"
    } else if is_used_up(host, own) {
        "the host's processors"
    } else if is_used_up(target, own) {
        "the target's processors"
    } else {
        return None;
    };
    Some(format!(
        "{whose}: host {host:.0} %, target {target:.0} %, where 100 % is one of {cores} processors"
    ))
}

fn busy(remote: &Figures, cores: u32) -> String {
    let all = [remote.host_cpu, remote.target_cpu].into_iter().flatten();
    let Some(used) = all.map(|cpu| cpu.percent_of_core).reduce(|a, b| a + b) else {
        return String::new();
    };
    format!(", processors {:.0} % busy", used / f64::from(cores.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{Pattern, Rw};
    use crate::result::Percent;
    use crate::testing::{compared, figures};

    /// A pattern of two jobs of 4k writes. The tuples contain IOPS and the mean latency in µs. For
    /// the remote side they also contain the processor time per I/O of host and target.
    fn measured(local: (f64, f64), remote: (f64, f64, f64, f64)) -> PatternReport {
        let (iops, mean_us) = local;
        let local = figures(iops, 4096, mean_us * 1e3, Some((5.0, None)));
        let (iops, mean_us, host, target) = remote;
        let remote = figures(iops, 4096, mean_us * 1e3, Some((host, Some(target))));
        compared(Pattern::new(Rw::RandWrite, 4096, 2, 4), local, remote)
    }

    /// The remote side is half as fast as the local side, and the processors are half idle.
    fn slow() -> PatternReport {
        measured((40_000.0, 200.0), (20_000.0, 400.0, 10.0, 40.0))
    }

    fn says(report: &PatternReport, cores: u32, start: &str) -> String {
        let text = report.bottleneck(cores).expect("both sides are measured");
        assert!(text.starts_with(start), "{text:?} should start with {start:?}");
        text
    }

    #[test]
    fn the_disk_limits_a_remote_side_that_is_as_fast_as_local() {
        // Processor use does not matter here, because the event loops may be spinning.
        says(&measured((40_000.0, 200.0), (38_000.0, 210.0, 26.0, 26.0)), 2, "the disk");
        says(&measured((40_000.0, 200.0), (37_900.0, 211.0, 5.0, 5.0)), 2, "the round trip");
    }

    #[test]
    fn busy_processors_are_named_as_the_bottleneck() {
        let both = measured((40_000.0, 200.0), (20_000.0, 400.0, 45.0, 45.0));
        let text = says(&both, 2, "all processors: ");
        assert!(
            text.ends_with("host 90 %, target 90 %, where 100 % is one of 2 processors"),
            "{text}"
        );
        let host = measured((40_000.0, 200.0), (20_000.0, 400.0, 90.0, 30.0));
        says(&host, 16, "the host's processors");
        let target = measured((40_000.0, 200.0), (20_000.0, 400.0, 30.0, 90.0));
        says(&target, 16, "the target's processors");
        // The machine is as busy as above, but each end uses only half of the processors of the two
        // jobs.
        let neither = measured((40_000.0, 200.0), (20_000.0, 400.0, 45.0, 45.0));
        says(&neither, 16, "the round trip");
    }

    #[test]
    fn more_sleeps_than_on_the_local_disk_are_named_as_the_bottleneck() {
        let mut report = slow();
        let sleep = |figures: &mut Option<Figures>, sleeps| {
            figures.as_mut().expect("the pattern was measured").sleeps_per_io = Some(sleeps);
        };
        sleep(&mut report.local, 0.9);
        sleep(&mut report.remote, 2.4);
        let text = says(&report, 2, "wake-ups: 200.0 µs longer, processors");
        assert!(text.ends_with("50 % busy, 2.4 sleeps per I/O (local 0.9)"), "{text}");
        sleep(&mut report.remote, 0.9);
        says(&report, 2, "the round trip");
    }

    #[test]
    fn a_slow_floor_names_the_network_as_the_bottleneck() {
        let mut report = slow();
        report.floor = Some(figures(50_000.0, 4096, 100_000.0, None));
        let text = says(&report, 2, "the network");
        assert!(text.ends_with("bare sockets alone take 100.0 µs"), "{text}");
        report.floor = Some(figures(500_000.0, 4096, 99_000.0, None));
        let text = says(&report, 2, "the round trip");
        assert!(text.ends_with("; bare sockets: 99.0 µs"), "{text}");
        // Bare sockets (the floor) that are slower than the remote disk explain nothing.
        let slow_floor = figures(10_000.0, 4096, 700_000.0, None);
        let remote = report.remote.as_ref().expect("the pattern was measured");
        report.remote_percent_of_floor = Percent::new(&slow_floor, remote);
        report.floor = Some(slow_floor);
        let text = says(&report, 2, "the round trip");
        assert!(!text.contains("sockets"), "{text}");
    }

    #[test]
    fn one_side_alone_has_no_bottleneck() {
        let mut report = slow();
        report.local = None;
        assert_eq!(report.bottleneck(2), None);
    }
}
