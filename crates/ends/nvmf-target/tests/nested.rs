//! Tests namespaces that would contain themselves through other targets. A target refuses to share
//! such a namespace. If it detects the loop only later, its reads fail, so that no read circulates
//! forever.

mod rig;

use farblock_backends::concat::Concat;
use farblock_backends::mem::Mem;
use farblock_block::{Availability, BlockError, Change, Changes, Geometry, Namespace, Part, Queue};
use farblock_host::Disk;
use farblock_host::disk::DiskOptions;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{EngineKind, Reactor, TaskId};
use farblock_target::{Export, Target};
use rig::{NQN, User};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCKS: u64 = 64;

fn mem() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(512, BLOCKS * 512).expect("a size"))
}

fn export(namespace: Arc<dyn Namespace>, identity: &str) -> Export {
    Export { namespace, identity: identity.to_owned() }
}

fn serve(namespace: Arc<dyn Namespace>, identity: &str) -> Target {
    rig::serve_as(namespace, identity, &[rig::any()], EngineKind::Portable)
}

fn disk(target: &Target) -> Arc<Disk> {
    let options = DiskOptions {
        fast_io_fail_timeout: Some(Duration::from_millis(200)),
        ..rig::options(EngineKind::Portable)
    };
    let urls = [rig::url(target.addresses()[0])];
    Arc::new(Disk::connect(&urls, &options).expect("the host connects"))
}

fn whole(part: &Arc<Disk>) -> Arc<dyn Namespace> {
    Arc::new(Concat::new(vec![Arc::clone(part) as Arc<dyn Namespace>]).expect("a concatenation"))
}

/// A namespace that reports no parts until the test sets `is_known`. It simulates a remote disk
/// that connects only after the target has exported the namespace.
struct Late {
    inner: Arc<dyn Namespace>,
    is_known: AtomicBool,
    changes: Changes,
}

impl Namespace for Late {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.changes)
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        if self.is_known.load(Ordering::SeqCst) { self.inner.parts() } else { Vec::new() }
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.inner.open(reactor, parent)
    }
}

#[test]
fn a_namespace_that_contains_itself_through_other_targets_is_refused() {
    let third = serve(mem(), "third");
    let second = serve(whole(&disk(&third)), "second");
    let first = serve(whole(&disk(&second)), "first");
    for (target, name) in [(&second, "second"), (&third, "third")] {
        let looped = export(whole(&disk(&first)), name);
        let error = target.control().replace_namespace(NQN, NamespaceId(1), &looped);
        let error = error.expect_err("the disk contains itself").to_string();
        assert!(error.contains("would contain itself"), "{error}");
    }
    // A namespace outside the loop may contain the other namespaces.
    let other = export(whole(&disk(&first)), "fourth");
    second.control().add_namespace(NQN, NamespaceId(2), &other).expect("no loop");
}

#[test]
fn reads_fail_when_a_namespace_is_later_found_to_contain_itself() {
    let second = serve(mem(), "second");
    let part = disk(&second);
    let set = whole(&part);
    let first = serve(Arc::clone(&set), "first");
    let (is_known, changes) = (AtomicBool::new(false), Changes::new());
    let late = Arc::new(Late { inner: whole(&disk(&first)), is_known, changes });
    let replaced =
        second.control().replace_namespace(NQN, NamespaceId(1), &export(late.clone(), "second"));
    drop(replaced.expect("no known nesting"));
    late.is_known.store(true, Ordering::SeqCst);
    late.changes.tell(Change::Parts);
    rig::until("the part waits", || part.availability() == Availability::Waiting);
    let mut user = User::new(&*set, EngineKind::Portable);
    user.read(0, 1, 1);
    assert_eq!(user.one().result, Err(BlockError::Disconnected));
    rig::until("the status states the reason", || {
        part.trouble().is_some_and(|why| why.contains("reads would never end"))
    });
    let plain = second.control().replace_namespace(NQN, NamespaceId(1), &export(mem(), "second"));
    drop(plain.expect("no nesting"));
    rig::until("the part is ready again", || part.availability() == Availability::Ready);
}
