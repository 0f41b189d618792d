//! Tests programs that are killed while they wait for the disk.
#![cfg(target_os = "linux")]

mod fuse_support;

use farblock_block::{BlockError, Command as Kind, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, Waker};
use farblock_testkit::eventually;
use fuse_support::{ENGINES, Served, disk};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A disk that holds back some commands, as if its target were unreachable, until the test releases
/// them.
struct Away {
    inner: Arc<dyn Namespace>,
    holds: fn(Kind) -> bool,
    shared: Arc<Held>,
}

#[derive(Default)]
struct Held {
    /// True if held operations count as started: their queue cannot withdraw them.
    begun: AtomicBool,
    open: AtomicBool,
    count: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

impl Away {
    fn new(begun: bool, holds: fn(Kind) -> bool) -> Arc<Away> {
        let shared = Arc::new(Held { begun: begun.into(), ..Held::default() });
        Arc::new(Away { inner: disk("mem:1MiB", 512), holds, shared })
    }

    fn held(&self) -> usize {
        self.shared.count.load(Ordering::SeqCst)
    }

    fn is_back(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
        self.shared.wakers.lock().expect("no panic").iter().for_each(Waker::wake);
    }
}

impl Namespace for Away {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        "away".into()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        let waker = reactor.waker(reactor.add_child(parent));
        self.shared.wakers.lock().expect("no panic").push(waker);
        let shared = Arc::clone(&self.shared);
        let (held, done, holds) = (Vec::new(), Vec::new(), self.holds);
        Ok(Box::new(AwayQueue { inner, holds, shared, held, done }))
    }
}

struct AwayQueue {
    inner: Box<dyn Queue>,
    holds: fn(Kind) -> bool,
    shared: Arc<Held>,
    held: Vec<Op>,
    done: Vec<Completion>,
}

impl Queue for AwayQueue {
    fn submit(&mut self, op: Op) {
        if !(self.holds)(op.command) {
            return self.inner.submit(op);
        }
        self.shared.count.fetch_add(1, Ordering::SeqCst);
        self.held.push(op);
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        if self.shared.begun.load(Ordering::SeqCst) {
            return;
        }
        for op in self.held.extract_if(.., |op| unwanted(op.token.value())) {
            self.shared.count.fetch_sub(1, Ordering::SeqCst);
            self.done.push(op.complete(Err(BlockError::Aborted)));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.shared.open.load(Ordering::SeqCst) {
            self.shared.count.fetch_sub(self.held.len(), Ordering::SeqCst);
            self.held.drain(..).for_each(|op| self.inner.submit(op));
        }
        done.append(&mut self.done);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.done.len() + self.inner.in_flight()
    }
}

fn dd(arguments: &[&str]) -> Child {
    let mut command = Command::new("dd");
    command.args(arguments).args(["bs=512", "count=1"]).stderr(Stdio::null());
    command.spawn().expect("dd")
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().expect("a child").is_some()
}

fn writer(path: &Path) -> Child {
    dd(&["if=/dev/urandom", &format!("of={}", path.display()), "conv=notrunc"])
}

#[test]
fn a_reader_can_be_killed_during_its_read() {
    for (engine, begun) in [(ENGINES[0], false), (ENGINES[1], true)] {
        let away = Away::new(begun, |_| true);
        let served = Served::new(engine, Arc::clone(&away) as _);
        let mut reader = dd(&[&format!("if={}", served.path().display()), "of=/dev/null"]);
        eventually("the read is held", || away.held() == 1);
        reader.kill().expect("SIGKILL");
        eventually("the reader has ended", || has_ended(&mut reader));
        assert_eq!(away.held(), usize::from(begun), "a read that had not started still runs");
        away.is_back();
        assert_eq!(fs::read(served.path()).expect("the read succeeds").len(), 1 << 20);
        served.stop();
    }
}

#[test]
fn a_writer_killed_before_its_write_starts_writes_nothing() {
    let away = Away::new(false, Kind::writes);
    let served = Served::new(ENGINES[1], Arc::clone(&away) as _);
    let mut writer = writer(served.path());
    eventually("the write is held", || away.held() == 1);
    writer.kill().expect("SIGKILL");
    eventually("the writer has ended", || has_ended(&mut writer));
    away.is_back();
    let data = fs::read(served.path()).expect("the read succeeds");
    assert!(data.iter().all(|&byte| byte == 0), "an interrupted write was executed later");
    served.stop();
}

/// dd flushes when it closes a duplicate descriptor, and when it exits. The kernel does not
/// interrupt these flushes by a signal, so the server must complete them.
#[test]
fn a_program_can_be_killed_during_its_flush() {
    let away = Away::new(true, |command| command == Kind::Flush);
    let served = Served::new(ENGINES[0], Arc::clone(&away) as _);
    let mut writer = writer(served.path());
    eventually("the flush is held", || away.held() == 1);
    writer.kill().expect("SIGKILL");
    eventually("the writer has ended", || has_ended(&mut writer));
    away.is_back();
    served.stop();
}

#[test]
fn a_killed_writer_waits_for_its_started_write() {
    let away = Away::new(true, Kind::writes);
    let served = Served::new(ENGINES[1], Arc::clone(&away) as _);
    let mut writer = writer(served.path());
    eventually("the write is held", || away.held() == 1);
    writer.kill().expect("SIGKILL");
    // The program still exists after several checks for signals.
    std::thread::sleep(3 * farblock_attach::fuse::limits::SIGNAL_INTERVAL);
    assert!(
        !has_ended(&mut writer) && away.held() == 1,
        "the killed writer exited before its write completed"
    );
    away.is_back();
    eventually("the writer has ended", || has_ended(&mut writer));
    assert!(
        fs::read(served.path()).expect("the read succeeds")[..512].iter().any(|&byte| byte != 0)
    );
    served.stop();
}
