//! The worker: the thread that executes WinSpd's requests. It has an event loop, a queue into the
//! namespace, and a table of tasks (requests in progress).
//!
//! ```text
//! accepted ──> operations in flight in the namespace ──> answered
//!     │                       └── another request has the same hint: abandoned, not answered
//!     └──> answered at once: out of range, or no work
//! ```
//!
//! All requests from WinSpd run concurrently, and the worker answers each when it completes.

use crate::shared::{Command, End, Fua, Range, SpdRequest, UnitShared};
use crate::uapi::{Response, Status, TransactKind};
use crate::{limits, status};
use farblock_block::{Command as Access, Completion, Geometry, Op, Queue};
use farblock_frontend::{Core, Seat};
use farblock_reactor::{Buffer, Reactor};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// The token (operation identifier) of the last flush. All other tokens are indexes of tasks.
const LAST_FLUSH: u64 = u64::MAX;

/// Receives the worker's answers: WinSpd's library, or a list in tests.
pub(crate) trait Answer {
    /// Sends an answer to WinSpd. For a read, even a failed one, `data` is as long as the largest
    /// transfer and starts with the read data.
    fn answer(&mut self, response: &Response, data: Option<&mut [u8]>);
}

/// A request in progress.
struct Task {
    hint: u64,
    kind: TransactKind,
    operations: usize,
    failure: Option<Status>,
    /// The request's first block, or the first block of its first range.
    lba: u64,
    /// The part of the request's buffer that the operation in flight does not have.
    rest: Option<Buffer>,
    /// The ranges that the task has not unmapped yet.
    ranges: std::vec::IntoIter<Range>,
    /// True if Windows has abandoned this request: a later request has the same hint (identifier).
    is_given_up: bool,
}

/// The state of the worker thread.
pub(crate) struct Worker<A> {
    // Drop the queue before the reactor: the queue may be registered with the reactor, and
    // deregisters itself when dropped.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    shared: Arc<UnitShared>,
    answers: A,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    by_hint: HashMap<u64, usize>,
    /// True if operations may have completed since the worker last polled the queue.
    dirty: bool,
    flushes_last: bool,
    _finishes: Finishes,
}

/// Records that the worker has ended when this value is dropped, even by a panic. Otherwise other
/// threads would wait for it forever.
struct Finishes(Arc<UnitShared>);

impl Drop for Finishes {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Task {
    /// Makes a task that has no operations yet.
    fn new(hint: u64, command: &Command) -> Task {
        let (kind, lba) = match command {
            Command::Read(range) => (TransactKind::Read, range.lba),
            Command::Write(range, ..) => (TransactKind::Write, range.lba),
            Command::Flush => (TransactKind::Flush, 0),
            Command::Unmap(ranges) => {
                (TransactKind::Unmap, ranges.first().map_or(0, |range| range.lba))
            }
        };
        Task {
            hint,
            kind,
            operations: 0,
            failure: None,
            lba,
            rest: None,
            ranges: Vec::new().into_iter(),
            is_given_up: false,
        }
    }
}

impl<A: Answer> Worker<A> {
    /// Makes the state of the calling thread's worker.
    pub(crate) fn new(seat: Seat, shared: Arc<UnitShared>, answers: A) -> Worker<A> {
        let Seat { queue, reactor, .. } = seat;
        Worker {
            queue,
            reactor,
            _finishes: Finishes(Arc::clone(&shared)),
            shared,
            answers,
            tasks: Vec::new(),
            free: Vec::new(),
            by_hint: HashMap::with_capacity(limits::MAX_REQUESTS),
            dirty: true,
            flushes_last: false,
        }
    }

    fn is_idle(&self) -> bool {
        self.tasks.len() == self.free.len() && !self.shared.has_requests()
    }

    /// Submits a flush of all writes before the disk is removed, because Windows may not have
    /// flushed them.
    fn flush_last(&mut self) {
        if !std::mem::replace(&mut self.flushes_last, true) {
            self.submit(Op::flush(LAST_FLUSH));
        }
    }

    fn end(&self, flush: Completion) -> io::Result<()> {
        match flush.result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::other(format!("the last flush failed: {error}"))),
        }
    }

    fn submit(&mut self, op: Op) {
        self.queue.submit(op);
        self.dirty = true;
    }

    fn begin(&mut self, request: SpdRequest) {
        let SpdRequest { hint, command } = request;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        if let Some(before) = self.by_hint.insert(hint, slot)
            && let Some(task) = &mut self.tasks[before]
        {
            tracing::warn!("Windows abandoned a request that took too long, and retries it");
            task.is_given_up = true;
        }
        let mut task = Task::new(hint, &command);
        let geometry = self.shared.geometry();
        let token = slot as u64;
        match command {
            Command::Read(range) => {
                let buffer = self.shared.take_buffer();
                self.transfer(
                    &mut task,
                    &geometry,
                    (Access::Read, Fua(false)),
                    range,
                    buffer,
                    token,
                );
            }
            Command::Write(range, buffer, fua) => {
                // Without a cache, the driver sets FUA on every write. Clear the flag then, because
                // every write is durable anyway.
                let fua = Fua(fua.0 && geometry.volatile_cache);
                self.transfer(&mut task, &geometry, (Access::Write, fua), range, buffer, token);
            }
            Command::Flush => {
                task.operations = 1;
                self.submit(Op::flush(token));
            }
            Command::Unmap(ranges) => {
                task.failure = ranges.iter().find_map(|range| {
                    let Range { lba, blocks } = *range;
                    let checked = geometry.check(Access::Deallocate, lba, u64::from(blocks));
                    checked.err().map(|error| status::failed(error, lba))
                });
                // Unmap no range if one of them is invalid.
                if task.failure.is_none() {
                    task.ranges = ranges.into_iter();
                }
                self.unmap(&mut task, token);
            }
        }
        self.store(slot, task);
    }

    /// Starts a read or write. `buffer` is as long as the largest transfer.
    fn transfer(
        &mut self,
        task: &mut Task,
        geometry: &Geometry,
        (access, fua): (Access, Fua),
        range: Range,
        mut buffer: Buffer,
        token: u64,
    ) {
        let Range { lba, blocks } = range;
        if let Err(error) = geometry.check(access, lba, u64::from(blocks)) {
            task.failure = Some(status::failed(error, lba));
            task.rest = Some(buffer);
            return;
        }
        let part = buffer.split_to(geometry.bytes(blocks));
        task.rest = Some(buffer);
        task.operations = 1;
        let op = Op::with(access, lba, blocks, Some(part), token);
        self.submit(Op { fua: fua.0, ..op });
    }

    /// Submits unmap operations for a task's next ranges, up to the limit.
    fn unmap(&mut self, task: &mut Task, token: u64) {
        while task.operations < limits::UNMAPS_AT_ONCE && task.failure.is_none() {
            let Some(Range { lba, blocks }) = task.ranges.next() else { return };
            task.operations += 1;
            self.submit(Op::deallocate(lba, blocks, token));
        }
    }

    fn completed(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        let slot = token as usize;
        let mut task = self.tasks[slot].take().expect("a task outlives its operations");
        task.operations -= 1;
        if let Err(error) = result {
            task.failure.get_or_insert(status::failed(error, task.lba));
        }
        if let Some(mut part) = buffer {
            // Join the two parts of the request's buffer again.
            part.unsplit(task.rest.take().expect("the task has the rest of the buffer"));
            task.rest = Some(part);
        }
        self.unmap(&mut task, token);
        self.store(slot, task);
    }

    /// Keeps a task that has operations in flight. Answers the request of any other task.
    fn store(&mut self, slot: usize, task: Task) {
        if task.operations > 0 {
            self.tasks[slot] = Some(task);
            return;
        }
        self.free.push(slot);
        let Task { hint, kind, failure, rest: mut data, is_given_up, .. } = task;
        if !is_given_up {
            self.by_hint.remove(&hint);
            let response = Response::new(hint, kind, failure.unwrap_or(status::GOOD));
            let mut read = data.as_deref_mut().filter(|_| kind == TransactKind::Read);
            if let Some(bytes) = read.as_mut().filter(|_| failure.is_some()) {
                // The buffer may contain data of other requests, so clear it.
                bytes.fill(0);
            }
            self.answers.answer(&response, read);
        }
        data.into_iter().for_each(|buffer| self.shared.give_buffer(buffer));
        self.shared.answered(1);
    }
}

impl<A: Answer> Core for Worker<A> {
    /// Runs until the server stops.
    fn run(mut self) -> io::Result<()> {
        let (mut ready, mut requests, mut done) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let end = self.shared.take_requests(&mut requests);
            requests.drain(..).for_each(|request| self.begin(request));
            while std::mem::take(&mut self.dirty) {
                self.queue.poll(&mut done);
                for completion in done.drain(..) {
                    self.dirty = true;
                    if completion.token == LAST_FLUSH {
                        return self.end(completion);
                    }
                    self.completed(completion);
                }
                // Accept new requests first. If one has the hint of an older request, the older one
                // must not be answered.
                if self.shared.has_requests() {
                    self.dirty = true;
                    break;
                }
            }
            match end {
                End::Forced => return Ok(()),
                End::Drained if self.is_idle() => self.flush_last(),
                End::Drained | End::Never => {}
            }
            let timeout = self.dirty.then_some(std::time::Duration::ZERO);
            self.reactor.poll(timeout, &mut ready)?;
            // Check the mailbox and the queue, whichever of them woke the worker.
            self.dirty = true;
            ready.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_backends::Spec;
    use farblock_block::BlockError;
    use farblock_frontend::Disk;
    use farblock_reactor::Config;
    use std::cell::RefCell;
    use std::rc::Rc;

    const MOST: u32 = 8192;
    type Answers = Rc<RefCell<Vec<(u64, u8, Status, Option<Vec<u8>>)>>>;

    impl Answer for Answers {
        fn answer(&mut self, response: &Response, data: Option<&mut [u8]>) {
            assert!(data.as_ref().is_none_or(|bytes| bytes.len() == MOST as usize));
            let Response { hint, kind, status, .. } = *response;
            self.borrow_mut().push((hint, kind, status, data.map(|bytes| bytes.to_vec())));
        }
    }

    /// Executes requests, then stops the worker. Returns the answers in the order in which the
    /// worker sent them.
    fn run(disk: &Arc<dyn farblock_block::Namespace>, requests: Vec<(u64, Command)>) -> Answers {
        let shared = Arc::new(UnitShared::new(Disk::new(Arc::clone(disk), false), MOST));
        for (hint, command) in requests {
            assert!(shared.accept(SpdRequest { hint, command }));
        }
        shared.stop(End::Drained);
        assert!(
            !shared.accept(SpdRequest { hint: 99, command: Command::Flush }),
            "a stopping server accepts a request"
        );
        let answers = Answers::default();
        let reactor = Reactor::new(&Config::default()).expect("a reactor");
        let queue_task = reactor.add_task();
        let queue = disk.open(&reactor, queue_task).expect("a queue");
        let mail = reactor.add_task();
        shared.set_waker(reactor.waker(mail));
        let seat = Seat { index: 0, count: 1, queue, queue_task, reactor, mail };
        let worker = Worker::new(seat, Arc::clone(&shared), Rc::clone(&answers));
        worker.run().expect("the worker ends without an error");
        assert_eq!(shared.accepted(), 0, "some requests were not answered");
        answers
    }

    fn disk(spec: &str) -> Arc<dyn farblock_block::Namespace> {
        Spec::parse(spec).expect("a disk").open(512, false).expect("the disk opens")
    }

    fn range(lba: u64, blocks: u32) -> Range {
        Range { lba, blocks }
    }

    fn write(lba: u64, blocks: u32, byte: u8) -> Command {
        let mut buffer = Buffer::new(MOST as usize);
        buffer.fill(byte);
        Command::Write(range(lba, blocks), buffer, Fua(true))
    }

    #[test]
    fn reads_return_the_written_data() {
        let disk = disk("mem:64KiB");
        let written = run(&disk, vec![(1, write(4, 2, 7)), (2, Command::Flush)]);
        assert!(
            written
                .borrow()
                .iter()
                .all(|(.., status, data)| { *status == status::GOOD && data.is_none() })
        );
        let read = run(&disk, vec![(3, Command::Read(range(3, 4)))]);
        let (hint, kind, status, data) = read.borrow()[0].clone();
        assert_eq!((hint, kind, status), (3, 1, status::GOOD));
        let data = data.expect("the read data");
        assert_eq!(data[..512], [0; 512]);
        assert_eq!(data[512..1536], [7; 1024]);
        assert_eq!(data[1536..2048], [0; 512]);
    }

    /// If Windows abandons a request and reuses its hint, the worker answers only the second
    /// request.
    #[test]
    fn an_abandoned_request_is_not_answered() {
        let disk = disk("mem:64KiB");
        run(&disk, vec![(1, write(0, 1, 1)), (2, write(1, 1, 2))]);
        let reads = vec![(7, Command::Read(range(0, 1))), (7, Command::Read(range(1, 1)))];
        let answers = run(&disk, reads);
        let answers = answers.borrow();
        assert_eq!(answers.len(), 1);
        let (hint, _, status, data) = &answers[0];
        assert_eq!((*hint, *status), (7, status::GOOD));
        assert_eq!(data.as_ref().expect("the read data")[..512], [2; 512]);
    }

    #[test]
    fn failed_requests_get_an_error_status() {
        let last = 128;
        let ranges = vec![range(0, 1), range(last, 1)];
        let requests = vec![
            (1, Command::Read(range(last - 1, 2))),
            (2, write(u64::MAX, 2, 0)),
            (3, Command::Unmap(ranges)),
            (4, Command::Unmap(Vec::new())),
        ];
        let answers = run(&disk("mem:64KiB"), requests);
        let answers = answers.borrow();
        let out_of_range = |lba| status::failed(BlockError::OutOfRange, lba);
        assert_eq!(answers[0].2, out_of_range(last - 1));
        assert_eq!(answers[0].3.as_ref().expect("the data of the read")[..], [0; MOST as usize]);
        assert_eq!(answers[1].2, out_of_range(u64::MAX));
        assert_eq!(answers[2].2, out_of_range(last));
        assert_eq!(answers[3].2, status::GOOD);
        // The backend `fault:1` fails the first operation.
        let answers = run(&disk("fault:1,mem:64KiB"), vec![(5, Command::Read(range(9, 1)))]);
        assert_eq!((answers.borrow()[0].2.sense_key, answers.borrow()[0].2.asc), (3, 0x11));
        assert_eq!(answers.borrow()[0].2.information, 9);
    }

    #[test]
    fn one_request_unmaps_many_ranges() {
        let disk = disk("mem:64KiB");
        run(&disk, (0..8).map(|n| (n, write(n * 16, 16, 1))).collect());
        let ranges = (0..40).map(|n| range(n * 2, 1)).collect();
        let answers = run(&disk, vec![(1, Command::Unmap(ranges))]);
        assert_eq!(answers.borrow().len(), 1);
        assert_eq!(answers.borrow()[0].2, status::GOOD);
        let answers = run(&disk, vec![(1, Command::Read(range(70, 16)))]);
        let data = answers.borrow()[0].3.clone().expect("the read data");
        let kept: Vec<bool> = data.chunks(512).map(|block| block[0] == 1).collect();
        // Unmapped blocks of the memory backend read as zeroes.
        let expected: Vec<bool> = (70..86).map(|lba| lba % 2 == 1 || lba >= 80).collect();
        assert_eq!(kept, expected);
    }
}
