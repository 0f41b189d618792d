//! Connects disks, opens queues on them, and prints their resource use in this process.
//!
//! `cargo run --release -p farblock-host --example footprint -- DISKS QUEUES URL...`
//!
//! All queues run on one event loop. The output shows how much each value grew: threads by name,
//! io_uring instances, descriptors, and private memory (`Private_Clean` and `Private_Dirty`).

use farblock_block::Namespace;
use farblock_host::{Disk, DiskOptions, Url};
use farblock_reactor::{Config, Reactor};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: footprint DISKS QUEUES URL...";
    let mut arguments = std::env::args().skip(1);
    let disks: usize = arguments.next().ok_or(usage)?.parse()?;
    let queues: usize = arguments.next().ok_or(usage)?.parse()?;
    let urls: Vec<Url> = arguments.map(|url| url.parse()).collect::<Result<_, _>>()?;
    let reactor = Reactor::new(&Config::default())?;
    let task = reactor.add_task();
    let (mut ready, mut done) = (Vec::new(), Vec::new());
    let before = Footprint::now()?;
    let begin = Instant::now();
    let connect = || Disk::connect(&urls, &DiskOptions::default());
    let disks = (0..disks).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    println!("connected in {:?}", begin.elapsed());
    let opened = disks.iter().flat_map(|disk| (0..queues).map(|_| disk.open(&reactor, task)));
    let mut opened = opened.collect::<Result<Vec<_>, _>>()?;
    let end = Instant::now() + Duration::from_secs(3);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        reactor.poll(Some(left), &mut ready)?;
        opened.iter_mut().for_each(|queue| queue.poll(&mut done));
    }
    before.print_difference(&Footprint::now()?);
    Ok(())
}

struct Footprint {
    threads: BTreeMap<String, i64>,
    rings: i64,
    descriptors: i64,
    private_kib: i64,
}

impl Footprint {
    fn now() -> std::io::Result<Footprint> {
        let mut threads = BTreeMap::new();
        for thread in fs::read_dir("/proc/self/task")? {
            let name = fs::read_to_string(thread?.path().join("comm"))?;
            *threads.entry(name.trim_end().to_owned()).or_default() += 1;
        }
        let (mut rings, mut descriptors) = (0, 0);
        for descriptor in fs::read_dir("/proc/self/fd")? {
            descriptors += 1;
            let target = fs::read_link(descriptor?.path()).unwrap_or_default();
            rings += i64::from(target.to_string_lossy().contains("io_uring"));
        }
        let memory = fs::read_to_string("/proc/self/smaps_rollup")?;
        let private = memory.lines().filter(|line| line.starts_with("Private_"));
        let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<i64>().ok());
        Ok(Footprint { threads, rings, descriptors, private_kib: kib.sum() })
    }

    fn print_difference(&self, now: &Footprint) {
        for (name, count) in &now.threads {
            let more = count - self.threads.get(name).unwrap_or(&0);
            if more != 0 {
                println!("{more} threads {name}");
            }
        }
        println!("{} rings", now.rings - self.rings);
        println!("{} descriptors", now.descriptors - self.descriptors);
        println!("{} KiB", now.private_kib - self.private_kib);
    }
}
