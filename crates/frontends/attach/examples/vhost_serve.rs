//! Serves a disk to a virtual machine until standard input ends, or has a line other than `resize`.
//!
//!     vhost_serve SPEC|URL SOCKET [--block 512] [--queues N] [--serial TEXT]
//!                 [--engine auto|uring|portable] [--read-only]
//!
//! SPEC is a disk as in `farblock serve`: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. URL is a
//! disk of another server: `nvme+tcp://HOST:PORT/NQN?ns=1`. Such a disk keeps its block size, and
//! its server may be unreachable for a while. The program prints `ready SOCKET` when it serves the
//! disk. The input line `resize BYTES` shrinks the disk, or restores its size.

mod served;

use farblock_attach::vhost_user::{Config, Server};
use farblock_block::Namespace;
use served::ShownPart;
use std::error::Error;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let disk = word("SPEC or URL")?;
    let mut config = Config::new(word("where to listen")?);
    let mut block_size = 512;
    while let Ok(option) = word("option") {
        match option.as_str() {
            "--block" => block_size = word("a size")?.parse()?,
            "--engine" => config.engine = word("an engine")?.parse()?,
            "--queues" => config.queues = word("a number")?.parse()?,
            "--serial" => config.serial = word("a text")?,
            "--read-only" => config.read_only = true,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let handle = Arc::new(OnceLock::<Weak<Server>>::new());
    let changed = Arc::clone(&handle);
    let resized = move || {
        if let Some(server) = changed.get().and_then(Weak::upgrade) {
            server.resized();
        }
    };
    let (disk, watch) =
        ShownPart::open(&disk, block_size, config.read_only, config.engine, resized)?;
    let server = Arc::new(Server::start(&config, Arc::clone(&disk) as Arc<dyn Namespace>)?);
    handle.set(Arc::downgrade(&server)).expect("set only here");
    println!("ready {}", server.socket().display());
    for line in io::stdin().lines() {
        let line = line?;
        let Some(bytes) = line.strip_prefix("resize ") else { break };
        disk.resize(bytes.parse()?);
        server.resized();
    }
    // The thread of the watch holds the other reference to the server. The drop ends the thread.
    drop(watch);
    while Arc::strong_count(&server) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::into_inner(server).ok_or("another reference to the server exists")?.stop()?;
    Ok(())
}
