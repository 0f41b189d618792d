//! Tests the inboxes of a FUSE server with loom, which tries every order of threads. In each order,
//! the cores execute or fail every request, and exit once all requests are answered.
#![cfg(target_os = "linux")]

#[path = "../src/fuse/inboxes.rs"]
#[allow(dead_code, reason = "the tests send only some messages")]
mod inboxes;
#[path = "../../../loops/reactor/tests/loom_loop/mod.rs"]
#[allow(dead_code, reason = "these tests do not distinguish its tasks")]
mod loom_loop;
mod sync {
    pub(crate) use crate::loom_loop::waker::Waker;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

use inboxes::{Inboxes, Message, Work};
use loom::thread::{JoinHandle, spawn};
use loom_loop::{Loop, ids, in_every_order};
use sync::{Arc, AtomicUsize, Ordering};

/// The limit on the bytes that the requests of one core hold. It is enough for one request of this
/// test.
const CORE_BYTES: usize = 8;
const REQUEST_BYTES: usize = 6;

struct CountedRequest(Arc<AtomicUsize>);

impl Work for CountedRequest {
    fn held_bytes(&self) -> usize {
        REQUEST_BYTES
    }

    fn fail(self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Server {
    inboxes: Arc<Inboxes<CountedRequest>>,
    failures: Arc<AtomicUsize>,
}

impl Server {
    fn new(cores: usize) -> (Vec<Loop>, Server) {
        let loops: Vec<_> = (0..cores).map(|_| Loop::new()).collect();
        let inboxes = Arc::new(Inboxes::new(CORE_BYTES));
        inboxes.open(loops.iter().map(|looped| looped.waker(0)).collect());
        (loops, Server { inboxes, failures: Arc::new(AtomicUsize::new(0)) })
    }

    fn post(&self, core: usize) {
        self.inboxes.post_work(core, CountedRequest(Arc::clone(&self.failures)));
    }

    /// Starts a thread that posts this many requests to a core, like a reader of the kernel's
    /// requests.
    fn reader(&self, core: usize, requests: usize) -> JoinHandle<()> {
        let (inboxes, failures) = (Arc::clone(&self.inboxes), Arc::clone(&self.failures));
        spawn(move || {
            for _ in 0..requests {
                inboxes.post_work(core, CountedRequest(Arc::clone(&failures)));
            }
        })
    }

    fn core(&self, core: usize, looped: Loop) -> JoinHandle<usize> {
        let inboxes = Arc::clone(&self.inboxes);
        spawn(move || run(core, &looped, &inboxes, usize::MAX))
    }
}

/// Runs a core until the server stops and all requests are answered, or until the core has executed
/// `most` requests. Returns the number of executed requests. Loom reports a deadlock if the core
/// never exits.
fn run(core: usize, looped: &Loop, inboxes: &Inboxes<CountedRequest>, most: usize) -> usize {
    let (mut work, mut messages, mut carried_out, mut is_told) = (vec![], vec![], 0, false);
    while carried_out < most && !(is_told && inboxes.is_over()) {
        looped.poll();
        inboxes.take(core, &mut work, &mut messages);
        is_told |= messages.drain(..).any(|message| matches!(message, Message::Stop));
        let count = work.drain(..).count();
        if count > 0 {
            inboxes.answered(core, count, count * REQUEST_BYTES, &mut Vec::new());
        }
        carried_out += count;
    }
    inboxes.close(core);
    carried_out
}

#[test]
fn a_waiting_reader_continues_once_its_core_has_room() {
    in_every_order(|| {
        let (loops, server) = Server::new(1);
        let readers = [server.reader(0, 1), server.reader(0, 1)];
        assert_eq!(run(0, &loops[0], &server.inboxes, 2), 2);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(server.failures.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn stopping_cores_exit_after_all_requests_are_answered() {
    in_every_order(|| {
        let (mut loops, server) = Server::new(2);
        let core = server.core(1, loops.remove(1));
        server.post(1);
        server.inboxes.stop();
        assert_eq!(run(0, &loops[0], &server.inboxes, usize::MAX), 0);
        assert_eq!(core.join().unwrap(), 1);
    });
}

/// Requests may still arrive after the cores have exited, if the disk is also mounted in another
/// mount namespace.
#[test]
fn requests_fail_after_the_cores_have_exited() {
    in_every_order(|| {
        let (loops, server) = Server::new(1);
        let reader = server.reader(0, 2);
        server.inboxes.stop();
        let carried_out = run(0, &loops[0], &server.inboxes, usize::MAX);
        reader.join().unwrap();
        assert_eq!(carried_out + server.failures.load(Ordering::Relaxed), 2);
        assert!(server.inboxes.is_over(), "an unanswered request remains");
    });
}

/// After a core has failed, all its requests fail: a request that waits for room, requests in the
/// inbox, and later requests.
#[test]
fn all_requests_fail_after_a_core_failed() {
    in_every_order(|| {
        let (loops, server) = Server::new(1);
        let reader = server.reader(0, 3);
        server.inboxes.fail();
        reader.join().unwrap();
        drop(loops);
        assert_eq!(server.failures.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn cores_exit_when_another_core_fails() {
    in_every_order(|| {
        let (mut loops, server) = Server::new(2);
        let core = server.core(1, loops.remove(1));
        // This core has failed and never executes the request.
        server.post(0);
        server.inboxes.fail();
        assert_eq!(core.join().unwrap(), 0);
        assert_eq!(server.failures.load(Ordering::Relaxed), 1);
    });
}
