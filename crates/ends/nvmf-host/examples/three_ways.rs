//! The three ways to use a disk: blocking calls, futures, and submit and poll.
//!
//! `cargo run --release -p farblock-host --example three_ways -- URL...`: several URLs are paths to
//! the same disk. The example overwrites the disk's first 64 blocks. It waits up to 60 s if the
//! target or the network fails.

use farblock_block::blocking::Blocking;
use farblock_block::nonblocking::{AsyncNamespace, Buffer};
use farblock_block::{Namespace, Op};
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::{Disk, Url};
use farblock_reactor::{Config, Reactor};
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let urls = std::env::args().skip(1).map(|url| url.parse()).collect::<Result<Vec<Url>, _>>()?;
    use_disk(&urls)
}

/// Uses the disk in all three ways.
pub(crate) fn use_disk(urls: &[Url]) -> Result<(), Box<dyn Error>> {
    let options = DiskOptions {
        policy: Policy::RoundRobin,
        reconnect_delay: Duration::from_secs(1),
        ctrl_loss_timeout: Some(Duration::from_secs(60)),
        ..DiskOptions::default()
    };
    let disk = Disk::connect(urls, &options)?;
    println!("{}", disk.describe());
    with_calls_that_block(&disk)?;
    block_on(with_futures(disk.clone()))?;
    with_submit_and_poll(&disk)?;
    for path in disk.paths() {
        println!("{}: {:?}, reconnected {} times", path.url, path.state, path.reconnects);
    }
    Ok(())
}

/// Blocking calls are for tools and tests: each call copies its data.
fn with_calls_that_block(disk: &Disk) -> Result<(), Box<dyn Error>> {
    let mut blocks = Blocking::new(disk)?;
    let wrote: Vec<u8> = (0..blocks.geometry().block_size).map(|byte| byte as u8).collect();
    let mut read = vec![0; wrote.len()];
    blocks.write(0, &wrote)?;
    blocks.flush()?;
    blocks.read(0, &mut read)?;
    check(&read, &wrote)
}

/// Futures run on any executor and copy no data: an operation owns its buffer until it completes.
async fn with_futures(disk: Disk) -> Result<(), Box<dyn Error>> {
    let disk = AsyncNamespace::new(Arc::new(disk))?;
    let size = disk.geometry().block_size as usize;
    // A call starts its operation at once, even before the caller awaits it, so these two
    // operations run concurrently.
    let first = disk.read(0, Buffer::new(size));
    let zeroes = disk.write_zeroes(1, 1, true);
    let first = disk.write(2, first.await?).await?;
    zeroes.await?;
    disk.flush().await?;
    check(&disk.read(2, Buffer::new(size)).await?, &first)?;
    check(&disk.read(1, Buffer::new(size)).await?, &vec![0; size])
}

/// Submit and poll is for high loads. It uses no other thread, and no lock, copy or allocation per
/// operation.
fn with_submit_and_poll(disk: &Disk) -> Result<(), Box<dyn Error>> {
    let reactor = Reactor::new(&Config::default())?;
    let task = reactor.add_task();
    let mut queue = disk.open(&reactor, task)?;
    let size = disk.geometry().block_size as usize;
    for lba in 0..64 {
        let mut buffer = reactor.buffers().take(size);
        buffer.fill(lba as u8);
        queue.submit(Op::write(lba, 1, buffer, lba));
    }
    let (mut ready, mut done) = (Vec::new(), Vec::new());
    while queue.in_flight() > 0 {
        // Sends all submitted operations as one batch, and returns completions.
        queue.poll(&mut done);
        for done in done.drain(..) {
            done.result?;
            let buffer = done.buffer.expect("reads and writes have a buffer");
            if done.token < 64 {
                // The write is complete: read into the same buffer.
                queue.submit(Op::read(done.token, 1, buffer, 64 + done.token));
            } else {
                check(&buffer, &vec![(done.token - 64) as u8; size])?;
                reactor.buffers().give(buffer);
            }
        }
        if queue.in_flight() > 0 {
            reactor.poll(None, &mut ready)?;
        }
    }
    Ok(())
}

fn check(read: &[u8], wrote: &[u8]) -> Result<(), Box<dyn Error>> {
    match read == wrote {
        true => Ok(()),
        false => Err("the disk returned other data than this program wrote".into()),
    }
}

/// A minimal executor: the calling thread sleeps until the future wakes it.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Parked(Thread);
    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
