//! Runs either end of the floor (the same transfers over bare sockets) as a separate process.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use farblock_bench::floor::{Drive, Server};
use farblock_bench::{Cancel, Meters, Pattern, Rw};
use farblock_block::size;

/// Answer `floor-drive` until killed
#[derive(Args)]
pub(crate) struct ServeOptions {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Processors for the threads
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
}

/// Measure the throughput of bare sockets; prints figures as JSON
#[derive(Args)]
pub(crate) struct DriveOptions {
    /// Address of a `floor-serve`
    server: SocketAddr,
    /// randread, randwrite or randrw
    #[arg(long)]
    rw: Rw,
    /// Block size
    #[arg(long, default_value = "4k")]
    bs: String,
    /// I/Os in flight on each connection
    #[arg(long, default_value_t = 1)]
    iodepth: u32,
    /// Number of connections
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Percentage of reads, for randrw
    #[arg(long, default_value_t = 50)]
    rwmixread: u8,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Processors for the threads
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Measured seconds
    #[arg(long, default_value_t = 3.0)]
    runtime: f64,
    /// Warm-up seconds before the measurement
    #[arg(long, default_value_t = 0.5)]
    ramp_time: f64,
}

pub(crate) fn serve(options: &ServeOptions) -> Result<(), String> {
    let server = Server::start(options.listen, options.threads, &options.cpus)
        .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
    println!("listening on {}", server.address());
    loop {
        std::thread::park();
    }
}

pub(crate) fn drive(options: &DriveOptions) -> Result<(), String> {
    let bytes = size::parse(&options.bs).ok().and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| format!("{} is not a size such as 4k or 1M", options.bs))?;
    let mut pattern = Pattern::new(options.rw, bytes, options.connections, options.iodepth);
    pattern.rwmixread = options.rwmixread;
    pattern.validate().map_err(|error| error.to_string())?;
    let seconds = |value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| format!("{value} is not a number of seconds"))
    };
    let load = Drive {
        pattern,
        threads: options.threads,
        cpus: options.cpus.clone(),
        ramp: seconds(options.ramp_time)?,
        runtime: seconds(options.runtime)?,
        meters: Meters::default(),
    };
    let figures = farblock_bench::floor::drive(options.server, &load, &Cancel::new())
        .map_err(|error| error.to_string())?;
    let json = serde_json::to_string(&figures).expect("figures are plain data");
    println!("{json}");
    Ok(())
}
