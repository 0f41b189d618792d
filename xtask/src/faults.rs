//! Repeats real faults for hours. `make test` causes each fault once, in guests and in the Ceph
//! cluster.

use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The faults: the name, the script, and the effect on targets, disks or hosts.
const FAULTS: [(&str, &str, &str); 5] = [
    ("ceph", "interop/ceph/test.sh", "the cluster's OSD is killed under load"),
    ("multipath", "interop/linux/ceph-multipath.sh", "one of two targets is killed under load"),
    ("fence", "interop/linux/fence.sh", "a node is fenced while it writes, and while it hangs"),
    ("drbd", "interop/linux/drbd.sh", "the primary of two nodes is lost"),
    ("reservations", "interop/linux/reservations.sh", "guests preempt each other"),
];

/// Options of `cargo xtask faults`.
#[derive(Args)]
pub(crate) struct Options {
    /// Duration in hours, for example 0.1; the last round is completed
    #[arg(long, default_value_t = 1.0)]
    hours: f64,
    /// Run only faults whose name contains this (repeatable)
    #[arg(long)]
    only: Vec<String>,
    /// List the faults
    #[arg(long)]
    list: bool,
    /// The farblock binary to test
    #[arg(long, default_value = "target/release/farblock")]
    farblock: PathBuf,
}

/// Causes all faults again and again, for the given hours. Reports how often the test of each fault
/// passed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if !(0.0..=10_000.0).contains(&options.hours) {
        return Err(format!("{} is not a valid number of hours: use 0 to 10000", options.hours));
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
        return Err("this fault does not exist: --list shows the faults".to_owned());
    }
    if !options.farblock.exists() {
        let path = options.farblock.display();
        return Err(format!(
            "{path} does not exist: run `make build`, or name the binary with --farblock"
        ));
    }
    let until = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    let mut rounds = vec![(0, 0); wanted.len()];
    loop {
        for ((name, script, _), (held, failed)) in wanted.iter().zip(&mut rounds) {
            match round(script, &options.farblock)? {
                true => *held += 1,
                false => *failed += 1,
            }
            println!("{name}: {held} rounds passed, {failed} failed");
        }
        if Instant::now() >= until {
            break;
        }
    }
    match rounds.iter().map(|(_, failed)| failed).sum::<u64>() {
        0 => Ok(()),
        failed => Err(format!("{failed} rounds failed: their output is above")),
    }
}

/// Runs a script once, which prints its own failures. Returns whether it passed.
fn round(script: &str, farblock: &Path) -> Result<bool, String> {
    let mut command = Command::new(script);
    command.arg(farblock);
    if script.starts_with("interop/ceph/") {
        // The script uses cargo to run the tests of the Ceph backend.
        command.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    }
    let status = command.status().map_err(|error| {
        format!("cannot start {script}: {error}; run this in the root folder of the repository")
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
