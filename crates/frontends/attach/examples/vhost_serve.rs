//! Serves a disk to a virtual machine until it is told to stop (a line, or the end of its input).
//!
//!     vhost_serve SPEC|URL SOCKET [--block 512] [--queues N] [--serial TEXT]
//!                 [--engine auto|uring|portable] [--read-only]
//!
//! SPEC is a disk as `farblock serve` takes it: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. URL
//! is one that is served elsewhere: `nvme+tcp://HOST:PORT/NQN?ns=1`; its blocks are what they are,
//! and it may go away for a while. Prints `ready SOCKET` when it serves. The line `resize BYTES`
//! makes the disk smaller, or as large as it was again.

use farblock_attach::vhost_user::{Config, Server};
use farblock_backends::Spec;
use farblock_block::{BlockError, Change, Changes, Geometry, Namespace, Queue, Watch};
use farblock_host::disk::{Disk, DiskOptions};
use farblock_host::{Options, Url, url::SCHEME};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
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
    let (inner, watch) = if disk.starts_with(SCHEME) {
        let (disk, watch) = remote(&disk.parse()?, config.engine, Arc::clone(&handle))?;
        (disk, Some(watch))
    } else {
        (Spec::parse(&disk)?.open(block_size, config.read_only)?, None)
    };
    let disk = Arc::new(Part { inner, blocks: AtomicU64::new(u64::MAX) });
    let server = Arc::new(Server::start(&config, Arc::clone(&disk) as Arc<dyn Namespace>)?);
    handle.set(Arc::downgrade(&server)).expect("set only here");
    println!("ready {}", server.socket().display());
    for line in io::stdin().lines() {
        let line = line?;
        let Some(bytes) = line.strip_prefix("resize ") else { break };
        let geometry = disk.inner.geometry();
        let blocks = bytes.parse::<u64>()? / u64::from(geometry.block_size);
        disk.blocks.store(blocks, Ordering::Relaxed);
        server.resized();
    }
    // Nobody holds the server any more when there are no changes to be told of.
    drop(watch);
    while Arc::strong_count(&server) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    Arc::into_inner(server).ok_or("somebody holds the server")?.stop()?;
    Ok(())
}

/// A disk that is served elsewhere, whose changes the server is told of.
fn remote(
    url: &Url,
    engine: EngineKind,
    server: Arc<OnceLock<Weak<Server>>>,
) -> Result<(Arc<dyn Namespace>, Watch), Box<dyn Error>> {
    let connection = Options { engine, ..Options::default() };
    let reconnect_delay = Duration::from_secs(1);
    let options = DiskOptions { connection, reconnect_delay, ..DiskOptions::default() };
    let disk = Disk::connect(std::slice::from_ref(url), &options)?;
    let watch = disk.changes().watch(move |change| {
        if let (Change::Geometry, Some(server)) = (change, server.get().and_then(Weak::upgrade)) {
            server.resized();
        }
    });
    Ok((Arc::new(disk), watch))
}

/// A namespace of which only a part is shown.
struct Part {
    inner: Arc<dyn Namespace>,
    blocks: AtomicU64,
}

impl Namespace for Part {
    fn geometry(&self) -> Geometry {
        let geometry = self.inner.geometry();
        let blocks = geometry.blocks.min(self.blocks.load(Ordering::Relaxed));
        Geometry { blocks, ..geometry }
    }

    fn changes(&self) -> Option<&Changes> {
        self.inner.changes()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.inner.open(reactor, parent)
    }
}
