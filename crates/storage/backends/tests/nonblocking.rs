//! Tests of operations as futures, with a minimal executor.

use farblock_backends::delay::Delay;
use farblock_backends::mem::Mem;
use farblock_block::BlockError;
use farblock_block::nonblocking::{AsyncNamespace, Buffer};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

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

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(512, 1 << 20).expect("the size is valid"))
}

fn filled(value: u8) -> Buffer {
    let mut buffer = Buffer::new(1024);
    buffer.fill(value);
    buffer
}

#[test]
fn every_operation_can_be_awaited() {
    let disk = AsyncNamespace::new(mem()).expect("the thread starts");
    assert_eq!(disk.geometry().block_size, 512);
    block_on(async {
        let buffer = disk.write(0, filled(1)).await.expect("the write succeeds");
        disk.write_durable(4, filled(2)).await.expect("the write succeeds");
        disk.flush().await.expect("the flush succeeds");
        let buffer = disk.read(4, buffer).await.expect("the read succeeds");
        assert!(buffer.iter().all(|&byte| byte == 2));
        disk.write_zeroes(4, 1, false).await.expect("write zeroes succeeds");
        disk.deallocate(5, 1).await.expect("the block is deallocated");
        let buffer = disk.read(3, buffer).await.expect("the read succeeds");
        assert!(buffer.iter().all(|&byte| byte == 0));
        let far = disk.read(1 << 40, buffer).await;
        assert_eq!(far.err(), Some(BlockError::OutOfRange));
    });
}

#[test]
fn operations_of_many_threads_run_concurrently() {
    let delayed = Arc::new(Delay::new(mem(), Duration::from_millis(200)));
    let disk = Arc::new(AsyncNamespace::new(delayed).expect("the thread starts"));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let disk = &disk;
            scope.spawn(move || {
                let lba = |index: u8| u64::from(thread) * 64 + u64::from(index) * 2;
                let writes: Vec<_> =
                    (0..16).map(|index| disk.write(lba(index), filled(index))).collect();
                let reads =
                    writes.into_iter().map(|write| block_on(write).expect("the write succeeds"));
                let reads: Vec<_> =
                    (0..16).zip(reads).map(|(index, it)| disk.read(lba(index), it)).collect();
                for (index, read) in (0..16).zip(reads) {
                    let buffer = block_on(read).expect("the read succeeds");
                    assert!(buffer.iter().all(|&byte| byte == index));
                }
            });
        }
    });
    // If the operations ran one after the other, they would take 25 seconds.
    assert!(start.elapsed() < Duration::from_secs(20), "the operations ran one after the other");
}

#[test]
fn dropping_the_namespace_aborts_operations() {
    let delayed = Arc::new(Delay::new(mem(), Duration::from_secs(60)));
    let disk = AsyncNamespace::new(delayed).expect("the thread starts");
    let (read, dropped) = (disk.read(0, filled(0)), disk.read(0, filled(0)));
    drop(dropped);
    drop(disk);
    assert_eq!(block_on(read).err(), Some(BlockError::Aborted));
}

#[test]
#[should_panic(expected = "not whole blocks")]
fn a_buffer_of_a_partial_block_panics() {
    let disk = AsyncNamespace::new(mem()).expect("the thread starts");
    drop(disk.read(0, Buffer::new(700)));
}
