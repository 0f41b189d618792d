//! Serves a disk as a file in a FUSE mount until standard input ends.
//!
//!     fuse_serve SPEC MOUNTPOINT [--block 512] [--engine auto|uring|portable]
//!                [--threads N] [--name NAME] [--read-only true] [--allow-other true]
//!                [--loop true]
//!
//! SPEC is a disk as in `farblock serve`: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. The
//! program prints `ready PATH` when it serves the disk, or `ready DEVICE` with `--loop true`. It
//! reads these input lines: `users` prints the users of the disk. `stop` stops the server if the
//! disk has no users. `force` stops the server in any case.

use farblock_attach::fuse::{Config, Server, loop_device};
use farblock_backends::Spec;
use std::error::Error;
use std::io;
use std::path::PathBuf;

fn main() {
    if let Err(error) = run() {
        eprintln!("fuse_serve: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let spec = Spec::parse(&word("SPEC")?)?;
    let mut config = Config::new(word("MOUNTPOINT")?.into());
    let (mut block_size, mut with_loop) = (512, false);
    while let Ok(option) = word("option") {
        let value = word("a value")?;
        match option.as_str() {
            "--block" => block_size = value.parse()?,
            "--engine" => config.engine = value.parse()?,
            "--threads" => config.threads = value.parse()?,
            "--name" => config.name = value,
            "--read-only" => config.read_only = value.parse()?,
            "--allow-other" => config.allow_other = value.parse()?,
            "--loop" => with_loop = value.parse()?,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let namespace = spec.open(block_size, config.read_only)?;
    let mut server = Server::start(&config, namespace)?;
    let mut device = None;
    if with_loop {
        device = Some(loop_device::attach(server.path(), block_size, config.read_only)?);
    }
    println!("ready {}", device.as_deref().unwrap_or(server.path()).display());
    for line in io::stdin().lines() {
        match line?.as_str() {
            "users" => server.users().iter().for_each(|user| println!("{user}")),
            "stop" => match stop(&mut server, &mut device) {
                Ok(()) => return Ok(()),
                Err(error) => println!("{error}"),
            },
            "force" => break,
            _ => return Err("unknown input line: expected users, stop or force".into()),
        }
    }
    Ok(server.stop(true)?)
}

fn stop(server: &mut Server, device: &mut Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    if let Some(path) = device {
        loop_device::detach(path, false)?;
        *device = None;
    }
    Ok(server.stop(false)?)
}
