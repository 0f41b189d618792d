//! Runs a verified load on a disk for SECONDS and prints the states of the disk's paths. Fails if
//! an operation fails, or if a read returns an older version of a block.
//!
//! ```text
//! paths SECONDS POLICY URL...
//! ```

use farblock_block::nonblocking::{AsyncNamespace, Buffer};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, HostId, Options, Url};
use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Operations in flight.
const DEPTH: u64 = 8;
/// Blocks per operation.
const BLOCKS: u64 = 16;

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Writes increasing versions to `BLOCKS` blocks and checks each version with a read. Returns the
/// number of writes, and the longest time that a read and the following write took together.
async fn load(
    disk: Arc<AsyncNamespace>,
    first: u64,
    until: Instant,
) -> Result<(u64, Duration), Box<dyn Error + Send + Sync>> {
    let size = disk.geometry().block_size as usize;
    let (mut version, mut versions) = (0_u64, [0_u64; BLOCKS as usize]);
    let mut longest = Duration::ZERO;
    let mut data = Buffer::new(size);
    // Overwrites the data of earlier runs.
    for lba in first..first + BLOCKS {
        data.fill(0);
        data = disk.write(lba, data).await?;
    }
    while Instant::now() < until {
        version += 1;
        let at = (version * 5 % BLOCKS) as usize;
        let lba = first + at as u64;
        let begin = Instant::now();
        data = disk.read(lba, data).await?;
        for chunk in data.chunks_exact(8) {
            if chunk != versions[at].to_le_bytes() {
                return Err(format!("block {lba} does not hold version {}", versions[at]).into());
            }
        }
        data.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&version.to_le_bytes()));
        data = disk.write(lba, data).await?;
        versions[at] = version;
        longest = longest.max(begin.elapsed());
    }
    Ok((version, longest))
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: paths SECONDS POLICY URL...";
    let seconds: u64 = arguments.next().ok_or(usage)?.parse()?;
    let policy = arguments.next().ok_or(usage)?.parse()?;
    let urls = arguments.map(|url| url.parse()).collect::<Result<Vec<Url>, _>>()?;
    let connection = Options { hostid: Some(HostId(*b"farblock-testing")), ..Options::default() };
    let options = DiskOptions {
        connection,
        policy,
        reconnect_delay: Duration::from_secs(1),
        ..DiskOptions::default()
    };
    let disk = Disk::connect(&urls, &options)?;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let (paths, states, start) = (disk.clone(), Arc::clone(&seen), Instant::now());
    let told = Arc::new(Mutex::new(false));
    let tell = Arc::clone(&told);
    let _watch = disk.changes().watch(move |_| {
        *tell.lock().expect("the lock is not poisoned") = true;
    });
    let watcher = std::thread::spawn(move || {
        while start.elapsed() < Duration::from_secs(seconds) {
            if std::mem::take(&mut *told.lock().expect("the lock is not poisoned")) {
                for (index, path) in paths.paths().iter().enumerate() {
                    let access = path.access.map_or("none".to_owned(), |access| access.to_string());
                    let error = path.error.as_deref().unwrap_or("no error");
                    let at = start.elapsed();
                    println!("{at:?} path {index}: {:?}, {access}, {error}", path.state);
                    states
                        .lock()
                        .expect("the lock is not poisoned")
                        .insert(format!("path {index} {:?} {access}", path.state));
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let until = Instant::now() + Duration::from_secs(seconds);
    let namespace = Arc::new(AsyncNamespace::new(Arc::new(disk.clone()))?);
    let threads: Vec<_> = (0..DEPTH)
        .map(|number| {
            let disk = Arc::clone(&namespace);
            std::thread::spawn(move || block_on(load(disk, number * BLOCKS, until)))
        })
        .collect();
    let (mut operations, mut longest) = (0, Duration::ZERO);
    for thread in threads {
        let (count, wait) = thread.join().map_err(|_| "a thread panicked")??;
        operations += count * 2;
        longest = longest.max(wait);
    }
    watcher.join().map_err(|_| "the watcher panicked")?;
    for state in &*seen.lock().expect("the lock is not poisoned") {
        println!("seen: {state}");
    }
    let reconnects: Vec<u64> = disk.paths().iter().map(|path| path.reconnects).collect();
    println!("{operations} operations, longest wait {longest:?}, reconnects {reconnects:?}");
    Ok(())
}
