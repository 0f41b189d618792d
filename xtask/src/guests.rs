//! Runs the tests in Linux guests that take too long for `make test`.

use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tests: the name, the script, and what the script checks.
const TESTS: [(&str, &str, &str); 3] = [
    (
        "shutdown",
        "interop/linux/shutdown.sh",
        "a machine with LVM, RAID, LUKS and loop devices on attached disks shuts down",
    ),
    (
        "namespaces",
        "interop/linux/namespaces.sh",
        "the kernel's host uses a target with 2,000 namespaces",
    ),
    (
        "nvme-vs-iscsi",
        "interop/linux/nvme-vs-iscsi.sh",
        "iSCSI, iSER, NVMe/TCP and NVMe/RDMA carry the same load; prints their ratios",
    ),
];

/// Options of `cargo xtask guests`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only tests whose name contains this (repeatable)
    #[arg(long)]
    only: Vec<String>,
    /// List the tests
    #[arg(long)]
    list: bool,
    /// The farblock binary to test
    #[arg(long, default_value = "target/release/farblock")]
    farblock: PathBuf,
}

/// Runs the tests one after the other. Reports the tests that failed.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let is_wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
    };
    let wanted: Vec<_> = TESTS.into_iter().filter(|(name, ..)| is_wanted(name)).collect();
    if options.list {
        wanted.iter().for_each(|(name, _, checks)| println!("{name}: {checks}"));
        return Ok(());
    }
    if wanted.is_empty() {
        return Err("this test does not exist: use a name that --list shows".to_owned());
    }
    let farblock = &options.farblock;
    if !farblock.exists() {
        let path = farblock.display();
        return Err(format!("{path} does not exist: run `make build`, or use --farblock"));
    }
    let mut failed = Vec::new();
    for (name, script, _) in wanted {
        if !passes(script, farblock)? {
            failed.push(name);
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!("failed: {}; the scripts' output is above", failed.join(", "))),
    }
}

/// Runs a script, which prints its own failures. Returns whether it passed.
fn passes(script: &str, farblock: &Path) -> Result<bool, String> {
    let status = Command::new(script).arg(farblock).status().map_err(|error| {
        format!("cannot start {script}: {error}; run this in the repository's root folder")
    })?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_its_script() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (name, script, _) in TESTS {
            assert!(root.join(script).is_file(), "{name}: {script}");
        }
    }
}
