//! The real faults for hours: what the guests and the Ceph cluster of `make test` go through once,
//! again and again, until the time is over.

use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Each, and what it does to the targets, their disks and their hosts.
const FAULTS: [(&str, &str, &str); 5] = [
    ("ceph", "interop/ceph/test.sh", "the cluster's OSD is killed under load"),
    ("multipath", "interop/linux/ceph-multipath.sh", "one of two targets is killed under load"),
    ("fence", "interop/linux/fence.sh", "a node is fenced while it writes, and while it hangs"),
    ("drbd", "interop/linux/drbd.sh", "the primary of two nodes is lost"),
    ("reservations", "interop/linux/reservations.sh", "guests preempt each other"),
];

/// How long, and which.
#[derive(Args)]
pub(crate) struct Options {
    /// How long; a part of an hour is 0.1, for example. A round that was begun is ended
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// Only those whose name contains this; several times: each of these
    #[arg(long)]
    only: Vec<String>,
    /// Say which there are
    #[arg(long)]
    list: bool,
    /// The binary that goes through this
    #[arg(long, default_value = "target/release/farblock")]
    farblock: PathBuf,
}

/// Runs rounds, and says how many of each held.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !(0.0..=10_000.0).contains(&options.hours) {
        return Err(format!("{} hours are not possible: use 0 to 10000", options.hours));
    }
    let is_wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let wanted: Vec<_> = FAULTS.into_iter().filter(|(name, ..)| is_wanted(name)).collect();
    if options.list {
        wanted.iter().for_each(|(name, _, does)| println!("{name}: {does}"));
        return Ok(());
    }
    if wanted.is_empty() {
        return Err("there is no such fault: --list says which there are".to_owned());
    }
    if !options.farblock.exists() {
        let path = options.farblock.display();
        return Err(format!("{path} does not exist: say make build, or name it with --farblock"));
    }
    let until = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    let mut rounds = vec![(0, 0); wanted.len()];
    loop {
        for ((name, script, _), (held, failed)) in wanted.iter().zip(&mut rounds) {
            match round(script, &options.farblock)? {
                true => *held += 1,
                false => *failed += 1,
            }
            println!("{name}: {held} rounds held, {failed} did not");
        }
        if Instant::now() >= until {
            break;
        }
    }
    match rounds.iter().map(|(_, failed)| failed).sum::<u64>() {
        0 => Ok(()),
        failed => Err(format!("{failed} rounds did not hold: what they said is above")),
    }
}

/// One run of a script, which says itself what does not hold.
fn round(script: &str, farblock: &Path) -> Result<bool, String> {
    let mut command = Command::new(script);
    command.arg(farblock);
    if script.starts_with("interop/ceph/") {
        // Its backend's own tests are run by cargo.
        command.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    }
    let status = command.status().map_err(|error| {
        format!("cannot start {script}: {error}; run this where the repository's files are")
    })?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_script() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (name, script, _) in FAULTS {
            assert!(root.join(script).is_file(), "{name}: {script}");
        }
    }
}
