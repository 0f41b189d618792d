//! Serves a disk over NBD until standard input has a line or ends.
//!
//!     nbd_serve SPEC unix:PATH|HOST:PORT [--block 512] [--engine auto|uring|portable]
//!               [--threads N] [--export NAME] [--read-only]
//!
//! SPEC is a disk as in `farblock serve`: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. The
//! program prints `ready URI` when it serves the disk.

use farblock_attach::nbd::{Address, Config, Server};
use farblock_backends::Spec;
use std::error::Error;
use std::io::{self, BufRead};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let spec = Spec::parse(&word("SPEC")?)?;
    let listen = address(&word("where to listen")?)?;
    let mut config = Config::new(Some(listen));
    let mut block_size = 512;
    while let Ok(option) = word("option") {
        match option.as_str() {
            "--block" => block_size = word("a size")?.parse()?,
            "--engine" => config.engine = word("an engine")?.parse()?,
            "--threads" => config.threads = word("a number")?.parse()?,
            "--export" => config.export = word("a name")?,
            "--read-only" => config.read_only = true,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let namespace = spec.open(block_size, config.read_only)?;
    let server = Server::start(&config, namespace)?;
    let address = server.address().ok_or("the server has no listening address")?;
    println!("ready {}", address.uri(&config.export));
    io::stdin().lock().lines().next();
    server.stop()?;
    Ok(())
}

fn address(text: &str) -> Result<Address, Box<dyn Error>> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(Address::Unix(path.into())),
        None => Ok(Address::Tcp(text.parse()?)),
    }
}
