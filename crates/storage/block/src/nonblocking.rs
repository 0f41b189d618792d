//! An asynchronous interface to a namespace with futures, for any executor.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker as TaskWaker};
use std::thread::JoinHandle;

use farblock_reactor::{Config, Reactor, Waker};

/// The buffer that holds the data of a read or write.
pub use farblock_reactor::Buffer;

use crate::slab::Slab;
use crate::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};

/// A namespace with calls that return futures. One thread with its own reactor and queue executes
/// the operations. Any task on any executor may await them.
///
/// ```no_run
/// # fn open() -> std::sync::Arc<dyn farblock_block::Namespace> { unimplemented!() }
/// use farblock_block::nonblocking::{AsyncNamespace, Buffer};
///
/// # async fn use_it() -> Result<(), farblock_block::BlockError> {
/// let disk = AsyncNamespace::new(open())?;
/// let size = disk.geometry().block_size as usize;
/// // Any number of operations may be in flight. Each owns its buffer, so there are no copies.
/// let (first, second) = (disk.read(0, Buffer::new(size)), disk.read(1, Buffer::new(size)));
/// let (first, _second) = (first.await?, second.await?);
/// disk.write(2, first).await?;
/// disk.flush().await?;
/// # Ok(())
/// # }
/// ```
///
/// An operation starts when the caller calls its method, not at the first poll of its future. It
/// continues if the future is dropped. Each call is one operation, which must not be larger than
/// [`Geometry::max_blocks`]. Dropping the namespace ends operations in flight with
/// [`BlockError::Aborted`]; their effect is unspecified, as after a power cut.
pub struct AsyncNamespace {
    namespace: Arc<dyn Namespace>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// An operation in the inbox of the thread. It is not an [`Op`], because dropping an [`Op`] panics.
struct QueuedOp {
    command: Command,
    lba: u64,
    blocks: u32,
    fua: bool,
    buffer: Option<Buffer>,
    promise: Arc<Promise>,
}

/// The state that callers and the thread share.
struct Inbox {
    state: Mutex<InboxState>,
    waker: Waker,
}

#[derive(Default)]
struct InboxState {
    requests: VecDeque<QueuedOp>,
    stopped: bool,
}

/// The result of one operation, for its future.
#[derive(Default)]
struct Promise(Mutex<Outcome>);

#[derive(Default)]
enum Outcome {
    #[default]
    Pending,
    Awaited(TaskWaker),
    Done(Result<Option<Buffer>, BlockError>),
    Taken,
}

impl Promise {
    fn keep(&self, result: Result<Option<Buffer>, BlockError>) {
        let before = std::mem::replace(&mut *lock(&self.0), Outcome::Done(result));
        if let Outcome::Awaited(waker) = before {
            waker.wake();
        }
    }
}

/// The future of an operation. It returns the operation's buffer.
struct Operation(Arc<Promise>);

impl Future for Operation {
    type Output = Result<Option<Buffer>, BlockError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = lock(&self.0.0);
        match std::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Done(result) => Poll::Ready(result),
            Outcome::Pending | Outcome::Awaited(_) => {
                *outcome = Outcome::Awaited(context.waker().clone());
                Poll::Pending
            }
            Outcome::Taken => panic!("polled after completion"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignore poisoning: a panic cannot leave this state half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncNamespace {
    /// Starts the thread, which opens a queue on `namespace`.
    pub fn new(namespace: Arc<dyn Namespace>) -> Result<AsyncNamespace, BlockError> {
        Self::with_config(namespace, &Config::default())
    }

    /// Starts the thread with the given configuration of its reactor.
    pub fn with_config(
        namespace: Arc<dyn Namespace>,
        config: &Config,
    ) -> Result<AsyncNamespace, BlockError> {
        let (started, wait) = sync_channel(1);
        let (for_thread, config) = (Arc::clone(&namespace), config.clone());
        let thread = std::thread::Builder::new().name("farblock-async".to_owned());
        let thread = thread.spawn(move || {
            let worker = Worker::new(&*for_thread, &config);
            match worker {
                Ok(mut worker) => {
                    let _ = started.send(Ok(Arc::clone(&worker.inbox)));
                    worker.run();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let thread = Some(thread.map_err(|_| BlockError::NoResources)?);
        let inbox = wait.recv().unwrap_or(Err(BlockError::NoResources))?;
        Ok(AsyncNamespace { namespace, inbox, thread })
    }

    /// Returns the current sizes and capabilities.
    pub fn geometry(&self) -> Geometry {
        self.namespace.geometry()
    }

    /// Fills `buffer` with the blocks from `lba` on, and returns the buffer.
    ///
    /// # Panics
    /// Panics if the length of the buffer is not a multiple of the block size.
    pub fn read(
        &self,
        lba: u64,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, BlockError>> + Send + 'static {
        let blocks = self.blocks(&buffer);
        moved(self.start(Command::Read, lba, blocks, false, Some(buffer)))
    }

    /// Writes `buffer` to the blocks from `lba` on, and returns the buffer.
    ///
    /// # Panics
    /// Panics if the length of the buffer is not a multiple of the block size.
    pub fn write(
        &self,
        lba: u64,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, BlockError>> + Send + 'static {
        let blocks = self.blocks(&buffer);
        moved(self.start(Command::Write, lba, blocks, false, Some(buffer)))
    }

    /// Like [`write`](Self::write), but the data is durable when the future completes.
    ///
    /// # Panics
    /// Panics if the length of the buffer is not a multiple of the block size.
    pub fn write_durable(
        &self,
        lba: u64,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, BlockError>> + Send + 'static {
        let blocks = self.blocks(&buffer);
        moved(self.start(Command::Write, lba, blocks, true, Some(buffer)))
    }

    /// Makes all completed operations durable.
    pub fn flush(&self) -> impl Future<Output = Result<(), BlockError>> + Send + 'static {
        done(self.start(Command::Flush, 0, 0, false, None))
    }

    /// Makes `blocks` blocks from `lba` read as zeroes.
    pub fn write_zeroes(
        &self,
        lba: u64,
        blocks: u32,
        deallocate: bool,
    ) -> impl Future<Output = Result<(), BlockError>> + Send + 'static {
        done(self.start(Command::WriteZeroes { deallocate }, lba, blocks, false, None))
    }

    /// Deallocates `blocks` blocks from `lba`.
    pub fn deallocate(
        &self,
        lba: u64,
        blocks: u32,
    ) -> impl Future<Output = Result<(), BlockError>> + Send + 'static {
        done(self.start(Command::Deallocate, lba, blocks, false, None))
    }

    fn blocks(&self, buffer: &Buffer) -> u32 {
        let block_size = self.geometry().block_size as usize;
        let length = buffer.len();
        assert!(length.is_multiple_of(block_size), "{length} bytes are not whole blocks");
        u32::try_from(length / block_size).expect("a buffer of less than 2^32 blocks")
    }

    fn start(
        &self,
        command: Command,
        lba: u64,
        blocks: u32,
        fua: bool,
        buffer: Option<Buffer>,
    ) -> Operation {
        let promise = Arc::new(Promise::default());
        let request = QueuedOp { command, lba, blocks, fua, buffer, promise: Arc::clone(&promise) };
        let mut state = lock(&self.inbox.state);
        if state.stopped {
            // Reached only if the event loop of the thread has failed: no thread will execute the
            // operation.
            promise.keep(Err(BlockError::Aborted));
        } else {
            state.requests.push_back(request);
        }
        drop(state);
        self.inbox.waker.wake();
        Operation(promise)
    }
}

async fn moved(operation: Operation) -> Result<Buffer, BlockError> {
    operation.await.map(|buffer| buffer.expect("the operation has a buffer"))
}

async fn done(operation: Operation) -> Result<(), BlockError> {
    operation.await.map(|_| ())
}

impl Drop for AsyncNamespace {
    fn drop(&mut self) {
        lock(&self.inbox.state).stopped = true;
        self.inbox.waker.wake();
        // An error means that the thread panicked. The panic hook has already reported the panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The state of the thread.
struct Worker {
    // Keep this field before the reactor: dropping the queue may deregister it from the reactor.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    inbox: Arc<Inbox>,
    /// The promises of the operations in flight, by token.
    promises: Slab<Arc<Promise>>,
}

impl Worker {
    fn new(namespace: &dyn Namespace, config: &Config) -> Result<Worker, BlockError> {
        let reactor = Reactor::new(config).map_err(|_| BlockError::NoResources)?;
        let task = reactor.add_task();
        let queue = namespace.open(&reactor, task)?;
        let inbox = Arc::new(Inbox { state: Mutex::default(), waker: reactor.waker(task) });
        Ok(Worker { queue, reactor, inbox, promises: Slab::new() })
    }

    fn run(&mut self) {
        let (mut ready, mut done) = (Vec::new(), Vec::new());
        while self.take_requests() {
            self.queue.poll(&mut done);
            done.drain(..).for_each(|done| self.complete(done));
            if let Err(error) = self.reactor.poll(None, &mut ready) {
                lock(&self.inbox.state).stopped = true;
                panic!("the event loop failed: {error}");
            }
        }
    }

    /// Submits the callers' operations. Returns `false` if the namespace is being dropped.
    fn take_requests(&mut self) -> bool {
        let mut state = lock(&self.inbox.state);
        let requests = std::mem::take(&mut state.requests);
        let stopped = state.stopped;
        drop(state);
        for request in requests {
            let QueuedOp { command, lba, blocks, fua, buffer, promise } = request;
            let token = self.promises.insert(promise);
            let op = Op::with(command, lba, blocks, buffer, token);
            self.queue.submit(Op { fua, ..op });
        }
        !stopped
    }

    fn complete(&mut self, done: Completion) {
        let promise = self.promises.remove(done.token);
        promise.keep(done.result.map(|()| done.buffer));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = lock(&self.inbox.state);
        state.stopped = true;
        let requests = std::mem::take(&mut state.requests);
        drop(state);
        let waiting = requests.into_iter().map(|request| request.promise);
        for promise in waiting.chain(self.promises.drain()) {
            promise.keep(Err(BlockError::Aborted));
        }
    }
}
