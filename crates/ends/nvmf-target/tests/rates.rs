//! Limits of a namespace: what is over them waits, and nothing else does.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Op;
use farblock_host::Disk;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{Rate, Rates, Target};
use rig::gate::Gate;
use rig::{BLOCK, NQN, User, any, options, serve, until, url};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NOTHING: Duration = Duration::from_millis(200);

fn gate() -> Arc<Gate> {
    Arc::new(Gate::new(Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"))))
}

fn limit(target: &Target, rates: &Rates) {
    target.control().set_rates(NQN, NamespaceId(1), rates).expect("it is there");
}

/// The same, when the core that serves the user has heard of it.
fn limit_for(user: &mut User, target: &Target, rates: &Rates) {
    limit(target, rates);
    user.value(2000);
}

fn user(target: &Target) -> (Disk, User) {
    let disk = Disk::connect(&[url(target.addresses()[0])], &options(EngineKind::Auto));
    let disk = disk.expect("connected");
    let user = User::new(&disk, EngineKind::Auto);
    (disk, user)
}

/// So slow that only the first of a kind is carried out while a test runs: a byte in a second.
fn crawl() -> Rates {
    let bytes = Rate { writes: 1, ..Rate::default() };
    Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() }
}

#[test]
fn what_is_over_a_limit_waits_until_that_changes() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (_disk, mut user) = user(&target);
    limit_for(&mut user, &target, &crawl());
    // In the capsule, and not.
    for (token, blocks) in [(1, 1), (2, 1), (3, 64), (4, 64)] {
        user.write(token * 64, blocks, token as u8, token);
    }
    assert_eq!(user.one().token, 1, "the first finds the budget untouched");
    assert!(user.turn(NOTHING).is_empty(), "there is none left");
    assert_eq!(gate.seen().len(), 1, "nor is the disk asked");
    // What is not limited goes on, of the same host on the same connection.
    assert_eq!(user.value(64), 1);
    user.queue.submit(Op::flush(9));
    assert_eq!(user.one().token, 9);
    // The same limit, which is no news; another one of the same kind; and none.
    limit(&target, &crawl());
    assert!(user.turn(NOTHING).is_empty(), "there is none left");
    limit(&target, &Rates { burst: Duration::from_nanos(2), ..crawl() });
    assert_eq!(user.one().token, 2, "a new budget");
    limit(&target, &Rates::default());
    let mut done = 0;
    while done < 2 {
        done += user.turn(Duration::from_secs(20)).len();
    }
    assert_eq!((user.value(128), user.value(192), user.value(255)), (2, 3, 3));
    assert_eq!(user.value(256), 4);
}

#[test]
fn reads_and_writes_are_limited_apart() {
    let target = serve(gate(), &[any()]);
    let (_disk, mut user) = user(&target);
    let commands = Rate { reads: 50, ..Rate::default() };
    let rates = Rates { commands, burst: Duration::from_nanos(1), ..Rates::default() };
    limit_for(&mut user, &target, &rates);
    let begin = Instant::now();
    for token in 0..11 {
        user.read(0, 1, token);
    }
    let mut done = 0;
    while done < 11 {
        done += user.turn(Duration::from_secs(20)).len();
    }
    // Never sooner: ten gaps of 20 ms. How much later is the machine's affair.
    assert!(begin.elapsed() >= Duration::from_millis(199), "{:?}", begin.elapsed());
    for token in 0..100 {
        user.write(0, 1, 1, token);
        assert_eq!(user.one().result, Ok(()));
    }
}

/// What waits is gone with its connection, or with its namespace.
#[test]
fn who_goes_leaves_nothing_behind() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (disk, mut flood) = user(&target);
    limit_for(&mut flood, &target, &crawl());
    for token in 0..30 {
        flood.write(token, 1, 1, token);
    }
    assert!(!flood.turn(Duration::from_secs(20)).is_empty());
    drop(flood);
    drop(disk);
    until("it is gone", || target.connections() == 0);
    let (_other, mut user) = user(&target);
    limit_for(&mut user, &target, &Rates::default());
    user.write(64, 1, 2, 1);
    assert_eq!(user.one().result, Ok(()));
    assert_eq!(gate.seen(), [0, 64], "what was not begun is not");
    // The namespace goes while commands wait for their time.
    limit_for(&mut user, &target, &crawl());
    for token in 0..8 {
        user.write(token * 64, 64, 3, token);
    }
    until("the first is done", || user.turn(Duration::from_millis(1)).len() == 1);
    let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("it is there");
    removal.wait(Duration::from_secs(20)).expect("nothing is left of it");
    assert_eq!(gate.seen(), [0, 64, 0], "what was not begun is not");
}

/// A host's own limits hold for all of its namespaces and connections together, and for no other.
#[test]
fn a_host_is_limited_by_itself() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (_disk, mut slow) = user(&target);
    let limit = |host: &str, rates: &Rates| {
        target.control().set_host_rates(NQN, host, rates).expect("there is the subsystem");
    };
    let host = options(EngineKind::Auto).connection.identity().nqn;
    limit(&host, &crawl());
    slow.value(2000);
    for token in 0..3 {
        slow.write(token, 1, 1, token);
    }
    assert_eq!(slow.one().token, 0, "the first finds the budget untouched");
    assert!(slow.turn(NOTHING).is_empty(), "there is none left");
    // What it has spent is spent for its next connection, too, and the same limits are no new ones.
    let (_again, mut late) = user(&target);
    limit(&host, &crawl());
    late.write(64, 1, 1, 9);
    assert!(late.turn(NOTHING).is_empty(), "there is none left");
    limit("nqn.2026-11.org.farblock:another", &crawl());
    assert_eq!(gate.seen(), [0]);
    limit(&host, &Rates::default());
    assert_eq!(late.one().token, 9);
    let mut done = 0;
    while done < 2 {
        done += slow.turn(Duration::from_secs(20)).len();
    }
}
