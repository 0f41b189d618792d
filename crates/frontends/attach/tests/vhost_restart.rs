//! Tests vhost-user servers and monitors that die while requests are in flight.
#![cfg(target_os = "linux")]

mod vhost_support;

use farblock_attach::vhost_user::Server;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, Waker};
use farblock_testkit::eventually;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vhost::VhostBackend;
use vhost_support::*;

/// A namespace that holds back its operations until the test calls `open`.
struct Gate {
    inner: Arc<dyn Namespace>,
    state: Arc<GateState>,
}

#[derive(Default)]
struct GateState {
    open: AtomicBool,
    submitted: AtomicUsize,
    /// The first blocks of the submitted writes, in order.
    writes: Mutex<Vec<u64>>,
    wakers: Mutex<Vec<Waker>>,
}

impl GateState {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.wakers.lock().expect("a lock").iter().for_each(Waker::wake);
    }

    fn submitted(&self) -> usize {
        self.submitted.load(Ordering::SeqCst)
    }
}

impl Gate {
    fn around(inner: &Arc<dyn Namespace>) -> (Arc<dyn Namespace>, Arc<GateState>) {
        let state = Arc::<GateState>::default();
        (Arc::new(Gate { inner: Arc::clone(inner), state: Arc::clone(&state) }), state)
    }
}

impl Namespace for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        self.state.wakers.lock().expect("a lock").push(reactor.waker(parent));
        Ok(Box::new(GateQueue { inner, state: Arc::clone(&self.state), held: Vec::new() }))
    }
}

struct GateQueue {
    inner: Box<dyn Queue>,
    state: Arc<GateState>,
    held: Vec<Op>,
}

impl Queue for GateQueue {
    fn submit(&mut self, op: Op) {
        self.state.submitted.fetch_add(1, Ordering::SeqCst);
        if op.command.writes() {
            self.state.writes.lock().expect("a lock").push(op.lba);
        }
        self.held.push(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.state.open.load(Ordering::SeqCst) {
            self.held.drain(..).for_each(|op| self.inner.submit(op));
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }
}

impl Drop for GateQueue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|op| drop(op.abandon()));
    }
}

/// A server stops while requests are in flight, as a killed server does. The next server executes
/// these requests in order, and the guest gets each answer once.
#[test]
fn the_next_server_completes_the_requests_in_flight() {
    for engine in ENGINES {
        let inner = disk("mem:1MiB", 512);
        let (gate, state) = Gate::around(&inner);
        let mut served = serve(engine, gate);
        let mut vm = served.boot();
        // Complete one request first, so that not all indexes are zero.
        state.open();
        assert_eq!(vm.store(100, &[9; 512]), OK);
        state.open.store(false, Ordering::SeqCst);
        let sectors = [7_u64, 3, 5, 1];
        let mut open = Vec::new();
        for (index, &sector) in sectors.iter().enumerate() {
            let at = DATA + 4096 * (index as u64 + 1);
            vm.write(at, &[sector as u8; 512]);
            open.push((vm.submit(0, OUT, sector, &[(at, 512)]), sector));
        }
        eventually("all requests are in flight", || state.submitted() == 5);
        // The operations never complete, so the stop gives up at its time limit.
        served.server.take().expect("the server runs").stop().expect("the server stops");
        assert_eq!(vm.used_within(0, Duration::ZERO), None);
        vm.disconnect();

        let (gate, state) = Gate::around(&inner);
        state.open();
        served.server = Some(Server::start(&served.config, gate).expect("the server starts"));
        // The monitor restarts each ring at the used ring's index, as QEMU does.
        vm.attach(&served, u64::MAX);
        for _ in 0..sectors.len() {
            let (id, written) = vm.used(0).expect("an answer");
            assert_eq!(written, 1);
            assert!(open.iter().any(|&((head, _), _)| u32::from(head) == id));
        }
        assert_eq!(*state.writes.lock().expect("a lock"), sectors, "the writes are out of order");
        assert!(vm.rings[0].call.read().is_ok(), "the guest was not notified");
        assert_eq!(
            vm.used_within(0, Duration::from_millis(100)),
            None,
            "a request was answered twice"
        );
        for ((_, status), sector) in open {
            assert_eq!(vm.read(status, 1), [OK]);
            assert_eq!(vm.load(sector, 512), [sector as u8; 512]);
        }
        served.stop();
    }
}

/// A monitor disconnects and reconnects. The server first waits until the old operations have
/// completed, without accessing the guest's memory. Then it executes their requests again.
#[test]
fn requests_in_flight_execute_again_after_a_monitor_reconnects() {
    for engine in ENGINES {
        let (gate, state) = Gate::around(&disk("mem:1MiB", 512));
        let served = serve(engine, gate);
        let mut vm = served.boot();
        vm.write(DATA, &[4; 512]);
        let (_, status) = vm.submit(0, IN, 0, &[(DATA, 512)]);
        eventually("the request is in flight", || state.submitted() == 1);
        vm.disconnect();
        std::thread::sleep(Duration::from_millis(100));
        state.open();
        eventually("disconnected", || {
            !served.server.as_ref().expect("the server runs").is_connected()
        });
        assert_eq!(vm.used_within(0, Duration::from_millis(50)), None);
        assert_eq!(
            vm.read(DATA, 512),
            [4; 512],
            "the server wrote to the guest's memory after the disconnection"
        );
        vm.attach(&served, u64::MAX);
        assert_eq!(vm.used(0).map(|used| used.1), Some(513));
        assert_eq!((vm.read(status, 1), vm.read(DATA, 512)), (vec![OK], vec![0; 512]));
        assert_eq!(state.submitted(), 2);
        served.stop();
    }
}

/// When the monitor stops a ring, the server finishes the requests that it has taken, and reports
/// the ring's index.
#[test]
fn a_stopped_ring_finishes_its_requests_and_can_restart() {
    for engine in ENGINES {
        let served = serve(engine, disk("delay:50ms,mem:1MiB", 512));
        let mut vm = served.boot();
        for _ in 0..3 {
            vm.submit(0, IN, 0, &[(DATA, 512)]);
        }
        eventually("the server has taken the requests", || {
            vm.used_index(0) > 0 || vm.rings[0].kick.read().is_ok()
        });
        std::thread::sleep(Duration::from_millis(20));
        let base = vm.frontend().get_vring_base(0).expect("a base") as u16;
        assert_eq!(vm.used_index(0), base, "a request is in flight after the stop");
        vm.submit(0, IN, 0, &[(DATA, 512)]);
        let so_far = (0..base).map(|_| vm.used(0)).collect::<Vec<_>>();
        assert!(so_far.iter().all(Option::is_some));
        assert_eq!(
            vm.used_within(0, Duration::from_millis(100)),
            None,
            "a stopped ring answered a request"
        );
        vm.start(0, base);
        assert!(vm.used(0).is_some(), "the disk still works");
        served.stop();
    }
}

/// Before a server stops, it answers the requests that it has taken.
#[test]
fn a_stopping_server_answers_its_requests() {
    for engine in ENGINES {
        let (gate, state) = Gate::around(&disk("mem:1MiB", 512));
        let served = serve(engine, gate);
        let mut vm = served.boot();
        vm.submit(0, OUT, 0, &[(DATA, 512)]);
        vm.submit(1, OUT, 1, &[(DATA, 512)]);
        eventually("the requests are taken", || state.submitted() == 2);
        let opening = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            state.open();
        });
        served.stop();
        opening.join().expect("no panic");
        assert_eq!((vm.used_index(0), vm.used_index(1)), (1, 1));
    }
}
