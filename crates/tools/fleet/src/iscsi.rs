//! Measures the same file over iSCSI, alternating with NVMe. farblock or tgt shares the file over
//! iSCSI.
//!
//! In each round, the NVMe target closes the file, each iSCSI target shares it for one run, and
//! then the NVMe target shares it again. All connections use loopback, since farblock's iSCSI
//! target listens there. Both sides have the same load: one generator, over farblock's host or over
//! farblock's initiator, which has a session for each job.

use crate::error::FleetError;
use crate::fleet::Fleet;
use crate::message::{Ask, Say};
use crate::plan::{IscsiTarget, Plan};
use crate::report::{IscsiReport, IscsiTotal};
use crate::storage::ISCSI_NAME;
use crate::sum::Sum;
use crate::tgt::Tgt;
use farblock_bench::Pattern;

/// Does one run with each iSCSI target of the plan. The NVMe target shares the file before and
/// after.
pub(crate) fn turn(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
    reports: &mut Vec<IscsiReport>,
) -> Result<(), FleetError> {
    done(fleet, true, &Ask::Connect { clients: Vec::new() })?;
    done(fleet, false, &Ask::Unshare)?;
    for (index, &target) in fleet.plan.iscsi.iter().enumerate() {
        let total = match target {
            IscsiTarget::Farblock => by_farblock(fleet, pattern, run)?,
            IscsiTarget::Tgt => by_tgt(fleet, pattern, run)?,
        };
        if reports.len() <= index {
            reports.push(IscsiReport { target, total, runs: Vec::new(), nvme_ratio: 0.0 });
        }
        reports[index].runs.push(total);
    }
    fleet.share(0)
}

fn done(fleet: &mut Fleet<'_>, is_host: bool, ask: &Ask) -> Result<(), FleetError> {
    let peer = if is_host { &mut fleet.hosts[0] } else { &mut fleet.targets[0].peer };
    match peer.ask(ask)? {
        Say::Done => Ok(()),
        other => Err(peer.surprise(&other)),
    }
}

fn by_farblock(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
) -> Result<IscsiTotal, FleetError> {
    let mut share = fleet.targets[0].share.clone();
    share.iscsi = true;
    share.address.set_port(0);
    let peer = &mut fleet.targets[0].peer;
    let url = match peer.ask(&Ask::Share(share))? {
        Say::Sharing { mut namespaces, .. } if namespaces.len() == 1 => namespaces.remove(0).url,
        other => return Err(peer.surprise(&other)),
    };
    let total = one_run(fleet, pattern, run, &url, (None, IscsiTarget::Farblock))?;
    done(fleet, false, &Ask::Unshare)?;
    Ok(total)
}

fn by_tgt(fleet: &mut Fleet<'_>, pattern: &Pattern, run: u32) -> Result<IscsiTotal, FleetError> {
    let drive = fleet.targets[0].share.drives[0].clone();
    let file = drive.strip_prefix("file:").unwrap_or(&drive);
    let mut tgt = Tgt::start(&fleet.programs, &fleet.setting.folder, file).map_err(failed)?;
    let uri = format!("iscsi://{}/{ISCSI_NAME}/1", tgt.address);
    let process = tgt.process();
    let total = one_run(fleet, pattern, run, &uri, (Some(process), IscsiTarget::Tgt));
    // If tgtd exited during the run, the result is invalid.
    tgt.check().map_err(failed)?;
    total
}

/// Runs the load on this target, and returns the result.
fn one_run(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
    url: &str,
    (process, target): (Option<u32>, IscsiTarget),
) -> Result<IscsiTotal, FleetError> {
    fleet.connect_to(pattern, url)?;
    let mut sum = Sum::default();
    let whose = format!(", iSCSI, {}", target.words());
    fleet.one_run(pattern, run, (process, &whose), &mut sum)?;
    done(fleet, true, &Ask::Connect { clients: Vec::new() })?;
    let run = sum.runs.first().ok_or_else(|| failed("nothing was measured".to_owned()))?;
    Ok(IscsiTotal {
        iops: run.iops,
        mib_per_second: run.mib_per_second,
        mean_latency_us: run.latency.mean_ns / 1e3,
        p99_latency_us: Some(run.latency.p99_ns as f64 / 1e3),
        cpu_us_per_io: run.cpu_us_per_io,
    })
}

fn failed(why: String) -> FleetError {
    FleetError::agent("iSCSI", why)
}

/// Fills in the results that depend on all runs.
pub(crate) fn finish(reports: &mut [IscsiReport], nvme_iops: f64) {
    for report in reports {
        let count = report.runs.len().max(1) as f64;
        let mean = |of: fn(&IscsiTotal) -> f64| report.runs.iter().map(of).sum::<f64>() / count;
        report.total = IscsiTotal {
            iops: mean(|run| run.iops),
            mib_per_second: mean(|run| run.mib_per_second),
            mean_latency_us: mean(|run| run.mean_latency_us),
            p99_latency_us: report.runs.iter().map(|run| run.p99_latency_us).sum::<Option<f64>>(),
            cpu_us_per_io: mean(|run| run.cpu_us_per_io),
        };
        report.total.p99_latency_us = report.total.p99_latency_us.map(|sum| sum / count);
        report.nvme_ratio = nvme_iops / report.total.iops.max(f64::MIN_POSITIVE);
    }
}

/// Remarks on the comparison for the reader, one sentence each.
pub(crate) fn remarks(plan: &Plan) -> Vec<String> {
    if plan.iscsi.is_empty() {
        return Vec::new();
    }
    vec![
        "iSCSI and NVMe/TCP used the same file in turn, over the loopback, with the same load \
         generator: NVMe with farblock's host, iSCSI with farblock's initiator and one session per \
         job"
        .to_owned(),
        "the published figure is about 550 % better random I/O over NVMe-oF than over iSCSI, \
         which means 5.5 or 6.5 times; that test used RDMA for both (RoCE, iSER), between machines"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_runs_are_averaged() {
        let one = |iops, p99_latency_us| IscsiTotal {
            iops,
            mib_per_second: iops / 256.0,
            mean_latency_us: 1000.0,
            p99_latency_us,
            cpu_us_per_io: 25.0,
        };
        let of = |runs: [IscsiTotal; 2]| {
            let (target, total, runs) = (IscsiTarget::Tgt, runs[0], runs.to_vec());
            let mut reports = [IscsiReport { target, total, runs, nvme_ratio: 0.0 }];
            finish(&mut reports, 96_000.0);
            (reports[0].total, reports[0].nvme_ratio)
        };
        let (total, ratio) = of([one(64_000.0, Some(10.0)), one(32_000.0, Some(20.0))]);
        assert_eq!((total.iops, ratio, total.p99_latency_us), (48_000.0, 2.0, Some(15.0)));
        assert_eq!((total.mib_per_second, total.cpu_us_per_io), (187.5, 25.0));
        let (total, _) = of([one(64_000.0, Some(10.0)), one(32_000.0, None)]);
        assert_eq!(
            total.p99_latency_us, None,
            "the percentile of an old report without percentiles"
        );
    }
}
