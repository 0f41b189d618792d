//! Compares any two disks:
//! `cargo run --release --example two_disks -- mem:256MiB disk.img report.html`.
//!
//! The example overwrites the contents of both disks, so create the disks for it.

use std::error::Error;
use std::time::Duration;

use farblock_backends::Spec;
use farblock_bench::{Cancel, Plan, Side, Snapshot, compare, html, table};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [local, remote, page] = &words[..] else {
        return Err("name two disks and the file of the HTML page".into());
    };
    let open = |name: &str| -> Result<Side, Box<dyn Error>> {
        let namespace = name.parse::<Spec>()?.open(512, false)?;
        Ok(Side::new(namespace).scratch().fill())
    };
    let plan = Plan { runtime: Duration::from_secs(2), ..Plan::quick() };
    let mut progress = |s: &Snapshot<'_>| {
        let (name, side, phase) = (&s.pattern.name, s.side.name(), s.phase.name());
        let percent = s.plan_fraction * 100.0;
        eprint!("\r{percent:3.0} % {name}, {side}, {phase}: {:.0} IOPS\x1b[K", s.iops);
    };
    let (local, remote) = (open(local)?, open(remote)?);
    let report = compare(&plan, Some(&local), Some(&remote), &Cancel::new(), &mut progress)?;
    eprintln!();
    print!("{}", table::render(&report));
    std::fs::write(page, html::render(&report))?;
    Ok(())
}
