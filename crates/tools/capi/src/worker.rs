//! The thread behind a disk's blocking calls: it owns one queue, which any thread's calls share.

use crate::memory::{Loans, Memory};
use crate::status::{Failure, Outcome};
use farblock_block::{Command, Completion, Namespace, Op, Queue};
use farblock_host::Disk;
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, Waker};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// One operation. Whoever waits for its answer keeps the memory valid.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    pub(crate) fua: bool,
    pub(crate) data: Option<Memory>,
}

/// What callers leave for the thread.
#[derive(Default)]
struct Inbox {
    requests: Vec<(Request, SyncSender<Outcome>)>,
    /// No more are taken: the disk is let go, or the thread is gone.
    closed: bool,
}

/// See the module's text.
pub(crate) struct Worker {
    inbox: Arc<Mutex<Inbox>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, and waits until it has its queue.
    pub(crate) fn start(disk: &Disk, engine: EngineKind) -> Result<Worker, Failure> {
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let (disk, theirs) = (disk.clone(), Arc::clone(&inbox));
        let (opened, opening) = sync_channel(1);
        let body = move || match Service::open(&disk, engine, theirs) {
            Ok(mut service) => {
                let _ = opened.send(Ok(service.reactor.waker(service.task)));
                service.run();
            }
            Err(failure) => drop(opened.send(Err(failure))),
        };
        let thread = std::thread::Builder::new().name("farblock-calls".into()).spawn(body);
        let thread = thread.map_err(farblock_host_error)?;
        let waker = opening.recv().unwrap_or_else(|_| Err(Failure::bug()))?;
        Ok(Worker { inbox, waker, thread: Some(thread) })
    }

    /// Does one operation and waits for it.
    pub(crate) fn call(&self, request: Request) -> Outcome {
        let (reply, answer) = sync_channel(1);
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if inbox.closed {
                return Err(Failure::bug());
            }
            inbox.requests.push((request, reply));
        }
        self.waker.wake();
        // A thread that panics drops the sender, after its event loop let go of the memory.
        answer.recv().unwrap_or_else(|_| Err(Failure::bug()))
    }
}

fn farblock_host_error(error: std::io::Error) -> Failure {
    farblock_host::Error::System(Arc::new(error)).into()
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It has told its panic to standard error.
            let _ = thread.join();
        }
    }
}

/// What the thread owns, in the order in which it is to be dropped: whoever waits is told only when
/// nothing uses the memory any more.
struct Service {
    queue: Box<dyn Queue>,
    reactor: Reactor,
    task: TaskId,
    loans: Loans,
    waiting: Vec<Option<SyncSender<Outcome>>>,
    free: Vec<usize>,
    inbox: Arc<Mutex<Inbox>>,
}

impl Service {
    fn open(disk: &Disk, engine: EngineKind, inbox: Arc<Mutex<Inbox>>) -> Result<Service, Failure> {
        let config = Config { engine, ..Config::default() };
        let reactor = Reactor::new(&config).map_err(farblock_host_error)?;
        let task = reactor.add_task();
        let queue = disk.open(&reactor, task)?;
        let (loans, waiting, free) = (Loans::default(), Vec::new(), Vec::new());
        Ok(Service { queue, reactor, task, loans, waiting, free, inbox })
    }

    /// Until the disk is let go.
    fn run(&mut self) {
        let (mut requests, mut ready, mut done) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            {
                let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
                if inbox.closed && inbox.requests.is_empty() {
                    return;
                }
                std::mem::swap(&mut inbox.requests, &mut requests);
            }
            for (request, reply) in requests.drain(..) {
                self.submit(request, reply);
            }
            self.queue.poll(&mut done);
            for completion in done.drain(..) {
                self.answer(completion);
            }
            self.reactor.poll(None, &mut ready).expect("the event loop cannot go on");
        }
    }

    fn submit(&mut self, request: Request, reply: SyncSender<Outcome>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[index] = Some(reply);
        let Request { command, lba, blocks, fua, data } = request;
        let buffer = data.map(|data| data.lend(&self.loans));
        self.queue.submit(Op { fua, ..Op::with(command, lba, blocks, buffer, index as u64) });
    }

    fn answer(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        // The caller may reuse its memory as soon as it is told.
        drop(buffer);
        let index = token as usize;
        let reply = self.waiting[index].take().expect("somebody waits for it");
        self.free.push(index);
        let _ = reply.send(result.map_err(Failure::from));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // After a panic, too: nobody is to wait for answers that will not come. What is in the
        // inbox is not begun, so its senders can go at once.
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.closed = true;
        inbox.requests.clear();
    }
}
