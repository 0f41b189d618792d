//! The thread behind a disk's blocking calls. It owns one queue, which the calls of all threads
//! share.

use crate::memory::{Loans, Memory};
use crate::status::{Failure, Outcome};
use crate::waiting::Waiting;
use farblock_block::{Command, Completion, Namespace, Op, Queue};
use farblock_host::Disk;
use farblock_reactor::{Config, Reactor, TaskId, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// One operation. The caller that waits for its answer keeps the memory valid.
pub(crate) struct QueueRequest {
    pub(crate) command: Command,
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    pub(crate) fua: bool,
    pub(crate) data: Option<Memory>,
}

/// The caller that waits for an operation.
struct Caller {
    reply: SyncSender<Outcome>,
    /// True after the caller has cancelled the operation. `None` if the caller cannot cancel.
    is_unwanted: Option<Arc<AtomicBool>>,
}

/// The requests for the thread.
#[derive(Default)]
struct Inbox {
    requests: Vec<(QueueRequest, Caller)>,
    /// True if at least one caller has cancelled its operation.
    some_unwanted: bool,
    /// True if the thread takes no more requests, because the disk is being released or the thread
    /// has ended.
    closed: bool,
}

/// The thread behind a disk's blocking calls.
pub(crate) struct Worker {
    inbox: Arc<Mutex<Inbox>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, and waits until the thread has its queue.
    pub(crate) fn start(disk: &Disk, reactor: &Config) -> Result<Worker, Failure> {
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let (disk, reactor, theirs) = (disk.clone(), reactor.clone(), Arc::clone(&inbox));
        let (opened, opening) = sync_channel(1);
        let body = move || match Service::open(&disk, &reactor, theirs) {
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

    /// Executes one operation. Waits until the operation has completed, or the program cancels it.
    pub(crate) fn call(&self, request: QueueRequest, waiting: Waiting) -> Outcome {
        let (reply, answer) = sync_channel(1);
        let is_unwanted = waiting.may_end().then(Arc::default);
        let caller = Caller { reply, is_unwanted: is_unwanted.clone() };
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if inbox.closed {
                return Err(Failure::bug());
            }
            inbox.requests.push((request, caller));
        }
        self.waker.wake();
        // A thread that panics drops the sender after its event loop has released the memory.
        waiting.receive(&answer, || {
            if let Some(is_unwanted) = &is_unwanted {
                is_unwanted.store(true, Ordering::Relaxed);
                self.inbox.lock().unwrap_or_else(PoisonError::into_inner).some_unwanted = true;
                self.waker.wake();
            }
        })
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
            // The panic's message is already on standard error.
            let _ = thread.join();
        }
    }
}

/// The state of the thread, with its fields in drop order. Callers get their answers only when the
/// system no longer uses their memory.
struct Service {
    queue: Box<dyn Queue>,
    reactor: Reactor,
    task: TaskId,
    loans: Loans,
    callers: Vec<Option<Caller>>,
    free: Vec<usize>,
    inbox: Arc<Mutex<Inbox>>,
}

impl Service {
    fn open(disk: &Disk, reactor: &Config, inbox: Arc<Mutex<Inbox>>) -> Result<Service, Failure> {
        let reactor = Reactor::new(reactor).map_err(farblock_host_error)?;
        let task = reactor.add_task();
        let queue = disk.open(&reactor, task)?;
        let (loans, callers, free) = (Loans::default(), Vec::new(), Vec::new());
        Ok(Service { queue, reactor, task, loans, callers, free, inbox })
    }

    /// Runs until the disk is released.
    fn run(&mut self) {
        let (mut requests, mut ready, mut done) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let some_unwanted = {
                let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
                if inbox.closed && inbox.requests.is_empty() {
                    return;
                }
                std::mem::swap(&mut inbox.requests, &mut requests);
                std::mem::take(&mut inbox.some_unwanted)
            };
            for (request, caller) in requests.drain(..) {
                self.submit(request, caller);
            }
            if some_unwanted {
                self.abandon();
            }
            self.queue.poll(&mut done);
            for completion in done.drain(..) {
                self.answer(completion);
            }
            self.reactor.poll(None, &mut ready).expect("the event loop failed");
        }
    }

    /// Drops the cancelled operations that have not started. Operations in flight continue, and
    /// their callers cancel again at every interval.
    fn abandon(&mut self) {
        let callers = &self.callers;
        let is_unwanted = |caller: &Caller| {
            caller.is_unwanted.as_ref().is_some_and(|it| it.load(Ordering::Relaxed))
        };
        self.queue.abandon(&mut |token| callers[token as usize].as_ref().is_some_and(is_unwanted));
    }

    fn submit(&mut self, request: QueueRequest, caller: Caller) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.callers.push(None);
            self.callers.len() - 1
        });
        self.callers[index] = Some(caller);
        let QueueRequest { command, lba, blocks, fua, data } = request;
        let buffer = data.map(|data| data.lend(&self.loans));
        self.queue.submit(Op { fua, ..Op::with(command, lba, blocks, buffer, index as u64) });
    }

    fn answer(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        // Release the buffer first: the caller may reuse its memory as soon as it has the answer.
        drop(buffer);
        let index = token as usize;
        let caller = self.callers[index].take().expect("a caller waits for the operation");
        self.free.push(index);
        let _ = caller.reply.send(result.map_err(Failure::from));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Do this also after a panic, so that no caller waits for an answer forever. Requests in
        // the inbox have not started, so their callers can return at once.
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.closed = true;
        inbox.requests.clear();
    }
}
