//! Commands for a running mirror.

use super::{ask, namespace_at};
use crate::error::{Failure, Result};
use crate::output;
use farblock_admin_api::{Difference, MirrorOrder, MirrorStatus, Status};
use farblock_admin_client::Client;
use farblock_block::size::Size;
use serde_json::json;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(200);

fn order(client: &Client, nqn: &str, nsid: u32, order: &MirrorOrder) -> Result<MirrorStatus> {
    let uri = format!("{}/mirror", namespace_at(nqn, nsid));
    let answer = ask(client, "POST", &uri, None, Some(&json!(order)))?;
    serde_json::from_str(&answer.body).map_err(other_version)
}

fn other_version(error: serde_json::Error) -> Failure {
    Failure::run(format_args!("the target has a different version of farblock: {error}"))
}

/// Runs `farblock ctl copy-speed`: limits the speed at which a mirror fills and compares its legs.
pub(super) fn copy_speed(client: &Client, nqn: &str, nsid: u32, mib: u32) -> Result<()> {
    let speed = Some(u64::from(mib) << 20);
    order(client, nqn, nsid, &MirrorOrder { copy_bytes_per_second: speed, verify: false })?;
    output::print(&match mib {
        0 => "the mirror resyncs and compares its legs without a speed limit\n".to_owned(),
        mib => format!("the mirror resyncs and compares its legs at most at {mib} MiB/s\n"),
    })
}

/// Runs `farblock ctl verify`: makes a mirror compare its legs. With `waits`, waits for the result.
pub(super) fn verify(client: &Client, nqn: &str, nsid: u32, waits: bool) -> Result<()> {
    let asked = MirrorOrder { verify: true, copy_bytes_per_second: None };
    let mut mirror = order(client, nqn, nsid, &asked)?;
    if !waits {
        return output::print(
            "the mirror compares its legs: `farblock status` shows the progress\n",
        );
    }
    while mirror.verifying {
        std::thread::sleep(LOOK_EVERY);
        mirror = look(client, nqn, nsid)?;
    }
    told(&mirror)
}

fn look(client: &Client, nqn: &str, nsid: u32) -> Result<MirrorStatus> {
    let answer = ask(client, "GET", "/v1/status", None, None)?;
    let status: Status = serde_json::from_str(&answer.body).map_err(other_version)?;
    let namespaces = status.subsystems.into_iter().filter(|subsystem| subsystem.nqn == nqn);
    let mut namespaces = namespaces.flat_map(|subsystem| subsystem.namespaces);
    let found = namespaces.find(|namespace| namespace.nsid == nsid).and_then(|it| it.mirror);
    found.ok_or_else(|| Failure::run("the mirror was removed during the comparison"))
}

fn told(mirror: &MirrorStatus) -> Result<()> {
    let compared = Size(mirror.verified_bytes);
    let uncompared = (mirror.uncompared_bytes > 0).then(|| uncompared(mirror));
    if mirror.differing_bytes == 0 {
        return match uncompared {
            Some(why) => Err(Failure::run(format_args!("{compared} are identical; {why}"))),
            None => {
                output::print(&format!("{compared} compared: all legs in sync are identical\n"))
            }
        };
    }
    let place = |(lba, blocks): &(u64, u64)| format!("{blocks} blocks at {lba}");
    let places: Vec<String> = joined(&mirror.differences).iter().map(place).collect();
    let also = uncompared.map(|why| format!("; {why}")).unwrap_or_default();
    Err(Failure::run(format_args!(
        "{compared} compared: legs in sync differ within {} ({}); find the leg with wrong data, \
         and resync it (docs/mirror.md){also}",
        Size(mirror.differing_bytes),
        places.join(", ")
    )))
}

/// Merges adjacent ranges. Returns the first block and the number of blocks of each merged range.
fn joined(differences: &[Difference]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for next in differences {
        match ranges.last_mut() {
            Some((lba, blocks)) if *lba + *blocks == next.lba => *blocks += u64::from(next.blocks),
            _ => ranges.push((next.lba, next.blocks.into())),
        }
    }
    ranges
}

/// Says why the mirror could not compare some bytes, and what the user can do.
fn uncompared(mirror: &MirrorStatus) -> String {
    let bytes = Size(mirror.uncompared_bytes);
    match &mirror.unread_legs[..] {
        [] => format!(
            "{bytes} could not be compared, because only one leg was in sync: verify again once \
             `farblock status` shows a second leg in sync"
        ),
        legs => format!(
            "{bytes} could not be compared, because reads failed on {}: check the disk under it, \
             and resync this leg if it has lost data (docs/mirror.md)",
            legs.join(" and ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_differences_are_merged() {
        let differences = [(0, 128), (128, 128), (512, 8)];
        let differences = differences.map(|(lba, blocks)| Difference { lba, blocks });
        assert_eq!(joined(&differences), [(0, 256), (512, 8)]);
        assert_eq!(joined(&[]), []);
    }
}
