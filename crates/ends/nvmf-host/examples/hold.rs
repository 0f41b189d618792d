//! Connects I/O queues and keeps them idle, to measure what they cost the host and the target.
//!
//! `cargo run --release -p farblock-host --example hold -- URL QUEUES SECONDS`

use farblock_block::Namespace;
use farblock_host::{Controller, Options, Url};
use farblock_reactor::{Config, Reactor};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: hold URL QUEUES SECONDS";
    let mut arguments = std::env::args().skip(1);
    let url: Url = arguments.next().ok_or(usage)?.parse()?;
    let queues: u16 = arguments.next().ok_or(usage)?.parse()?;
    let seconds: u64 = arguments.next().ok_or(usage)?.parse()?;
    let options = Options { queues, ..Options::default() };
    let controller = Controller::connect_url(&url, &options)?;
    let namespace = controller.namespace(url.namespace.unwrap_or(1))?;
    let reactor = Reactor::new(&Config::default())?;
    let task = reactor.add_task();
    let held =
        (0..queues).map(|_| namespace.open(&reactor, task)).collect::<Result<Vec<_>, _>>()?;
    println!("holding {} queues for {seconds} s", held.len());
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut ready = Vec::new();
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        reactor.poll(Some(left), &mut ready)?;
    }
    Ok(())
}
