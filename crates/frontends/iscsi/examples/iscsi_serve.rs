//! Serves a disk over iSCSI until a line arrives on standard input, or standard input closes.
//!
//!     iscsi_serve SPEC HOST:PORT [--block 512] [--engine auto|uring|portable] [--name IQN]
//!                 [--serial TEXT] [--read-only]
//!
//! SPEC is a disk as in `farblock serve`: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. The
//! program prints `ready URI` when it serves the disk.

use farblock_backends::Spec;
use farblock_iscsi::{Config, Server};
use std::error::Error;
use std::io::{self, BufRead};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let spec = Spec::parse(&word("SPEC")?)?;
    let listen = word("where to listen")?.parse()?;
    let mut config = Config::new(listen, "iqn.2026-11.org.farblock:disk");
    let mut block_size = 512;
    while let Ok(option) = word("option") {
        match option.as_str() {
            "--block" => block_size = word("a size")?.parse()?,
            "--engine" => config.engine = word("an engine")?.parse()?,
            "--name" => config.name = word("a name")?,
            "--serial" => config.serial = word("a serial number")?,
            "--read-only" => config.read_only = true,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let namespace = spec.open(block_size, config.read_only)?;
    let server = Server::start(&config, namespace)?;
    println!("ready {}", server.uri());
    io::stdin().lock().lines().next();
    server.stop(false)?;
    Ok(())
}
