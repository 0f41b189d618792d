//! Makes a device of the kernel's NBD client, and serves it until standard input ends.
//!
//!     nbd_kernel SPEC [--block 512] [--engine ENGINE] [--threads N] [--connections N]
//!                [--index N] [--timeout SECONDS] [--wait SECONDS] [--identifier TEXT]
//!                [--reconnect N]
//!
//! SPEC is a disk as in `farblock serve`. The program prints the device's path once the device
//! exists. The input line `resize BYTES` changes the device's size. At the end of the input, the
//! program disconnects the device.

use farblock_attach::nbd::kernel::{self, Device, Options};
use farblock_attach::nbd::{Config, Server};
use farblock_backends::Spec;
use std::error::Error;
use std::io::{self, BufRead};
use std::time::Duration;

fn main() {
    if let Err(error) = run() {
        eprintln!("nbd_kernel: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let spec = Spec::parse(&word("SPEC")?)?;
    let mut config = Config::new(None);
    let mut options = Options::default();
    let (mut block_size, mut reconnect) = (512, None);
    while let Ok(option) = word("option") {
        let value = word("a value")?;
        match option.as_str() {
            "--block" => block_size = value.parse()?,
            "--engine" => config.engine = value.parse()?,
            "--threads" => config.threads = value.parse()?,
            "--connections" => options.connections = value.parse()?,
            "--index" => options.index = Some(value.parse()?),
            "--timeout" => options.timeout = Duration::from_secs(value.parse()?),
            "--wait" => options.dead_connection_timeout = Duration::from_secs(value.parse()?),
            "--identifier" => options.identifier = Some(value),
            "--reconnect" => reconnect = Some(Device { index: value.parse()? }),
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let server = Server::start(&config, spec.open(block_size, false)?)?;
    let device = match reconnect {
        None => kernel::connect(&server, &options)?,
        Some(device) => {
            kernel::reconnect(&server, device, &options)?;
            device
        }
    };
    println!("{}", device.path().display());
    for line in io::stdin().lock().lines() {
        match line?.split_once(' ') {
            Some(("resize", bytes)) => {
                kernel::resize(device, bytes.parse()?, options.identifier.as_deref())?
            }
            _ => return Err("unknown input line: expected resize BYTES".into()),
        }
    }
    kernel::disconnect(device)?;
    server.stop()?;
    Ok(())
}
