//! Rate limits of namespaces and hosts. Only commands beyond the limits wait.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::{Namespace, Op};
use farblock_host::Disk;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Rate, Rates, Sharing, Subsystem, Target, TargetConfig};
use rig::gate::Gate;
use rig::{BLOCK, NQN, User, any, options, serve, until, url};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NOTHING: Duration = Duration::from_millis(200);

fn gate() -> Arc<Gate> {
    Arc::new(Gate::new(Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"))))
}

fn limit(target: &Target, rates: &Rates) {
    target.control().set_rates(NQN, NamespaceId(1), rates).expect("the namespace exists");
}

/// Like `limit`, but returns only after the user's core has applied the limit.
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

/// Returns a limit of one written byte per second. Only the first write executes during a test.
fn crawl() -> Rates {
    let bytes = Rate { writes: 1, ..Rate::default() };
    Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() }
}

#[test]
fn commands_above_a_limit_wait_until_the_limit_changes() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (_disk, mut user) = user(&target);
    limit_for(&mut user, &target, &crawl());
    // Send writes with and without their data in the capsule.
    for (token, blocks) in [(1, 1), (2, 1), (3, 64), (4, 64)] {
        user.write(token * 64, blocks, token as u8, token);
    }
    assert_eq!(user.one().token, 1, "the first operation uses the unused budget");
    assert!(user.turn(NOTHING).is_empty(), "the budget is used up");
    assert_eq!(gate.seen().len(), 1, "the disk receives an operation beyond the budget");
    // Commands without a limit proceed, even on the same connection of the same host.
    assert_eq!(user.value(64), 1);
    user.queue.submit(Op::flush(9));
    assert_eq!(user.one().token, 9);
    // Set the same limit again, which changes nothing. Then set a different limit, and then no
    // limit.
    limit(&target, &crawl());
    assert!(user.turn(NOTHING).is_empty(), "the budget is used up");
    limit(&target, &Rates { burst: Duration::from_nanos(2), ..crawl() });
    assert_eq!(user.one().token, 2, "a new budget");
    limit(&target, &Rates::default());
    let mut done = 0;
    while done < 2 {
        done += user.turn(Duration::from_secs(60)).len();
    }
    assert_eq!((user.value(128), user.value(192), user.value(255)), (2, 3, 3));
    assert_eq!(user.value(256), 4);
}

#[test]
fn reads_and_writes_have_separate_limits() {
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
        done += user.turn(Duration::from_secs(60)).len();
    }
    // Between the commands are ten gaps of at least 20 ms. They may be longer on a busy machine.
    assert!(begin.elapsed() >= Duration::from_millis(199), "{:?}", begin.elapsed());
    // The sum of the waits is 20 ms + 40 ms + … + 200 ms.
    let waited = target.control().stats().subsystems[0].namespaces[0].1.waited;
    assert!(waited.namespace_limit_ns >= 1_095_000_000, "{waited:?}");
    assert_eq!((waited.host_limit_ns, waited.turn_ns), (0, 0));
    for token in 0..100 {
        user.write(0, 1, 1, token);
        assert_eq!(user.one().result, Ok(()));
    }
    let after = target.control().stats().subsystems[0].namespaces[0].1.waited;
    assert_eq!(after, waited, "writes were delayed without a limit for writes");
}

/// Waiting commands end when their connection closes or their namespace is removed.
#[test]
fn waiting_commands_end_with_their_connection_or_namespace() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (disk, mut flood) = user(&target);
    limit_for(&mut flood, &target, &crawl());
    for token in 0..30 {
        flood.write(token, 1, 1, token);
    }
    assert!(!flood.turn(Duration::from_secs(60)).is_empty());
    drop(flood);
    drop(disk);
    until("the connection is closed", || target.connections() == 0);
    let (_other, mut user) = user(&target);
    limit_for(&mut user, &target, &Rates::default());
    user.write(64, 1, 2, 1);
    assert_eq!(user.one().result, Ok(()));
    assert_eq!(gate.seen(), [0, 64], "an operation was executed that had not started");
    // Remove the namespace while commands wait.
    limit_for(&mut user, &target, &crawl());
    for token in 0..8 {
        user.write(token * 64, 64, 3, token);
    }
    until("the first operation is done", || user.turn(Duration::from_millis(1)).len() == 1);
    let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("a namespace");
    removal.wait(Duration::from_secs(60)).expect("no command is in flight");
    assert_eq!(gate.seen(), [0, 64, 0], "an operation was executed that had not started");
}

/// A host's limits apply to all its namespaces and connections together, and to no other host.
#[test]
fn the_limits_of_a_host_apply_to_no_other_host() {
    let gate = gate();
    let target = serve(gate.clone(), &[any()]);
    let (_disk, mut slow) = user(&target);
    let limit = |host: &str, rates: &Rates| {
        target.control().set_host_rates(NQN, host, rates).expect("the subsystem exists");
    };
    let host = options(EngineKind::Auto).connection.identity().nqn;
    limit(&host, &crawl());
    slow.value(2000);
    for token in 0..3 {
        slow.write(token, 1, 1, token);
    }
    assert_eq!(slow.one().token, 0, "the first operation uses the unused budget");
    assert!(slow.turn(NOTHING).is_empty(), "the budget is used up");
    // Neither a new connection nor setting the same limits again gives the host a new budget.
    let (_again, mut late) = user(&target);
    limit(&host, &crawl());
    late.write(64, 1, 1, 9);
    assert!(late.turn(NOTHING).is_empty(), "the budget is used up");
    limit("nqn.2026-11.org.farblock:another", &crawl());
    assert_eq!(gate.seen(), [0]);
    limit(&host, &Rates::default());
    assert_eq!(late.one().token, 9);
    let mut done = 0;
    while done < 2 {
        done += slow.turn(Duration::from_secs(60)).len();
    }
    let stats = target.control().stats();
    let waited = stats.hosts.iter().find(|one| one.nqn == host).expect("a known host").io.waited;
    assert!(waited.host_limit_ns >= 2 * NOTHING.as_nanos() as u64, "{waited:?}");
    assert_eq!(waited, stats.subsystems[0].namespaces[0].1.waited);
}

/// Limits and write protection apply before the first host connects.
#[test]
fn limits_and_write_protection_apply_from_the_start() {
    let gate = gate();
    let nqn = options(EngineKind::Auto).connection.identity().nqn;
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    for nsid in [1, 2] {
        let export = Export { namespace: gate.clone(), identity: format!("disk {nsid}") };
        subsystem.exports.insert(NamespaceId(nsid), export);
    }
    let protected = Sharing { read_only: true, blocks: Some(7), ..Sharing::default() };
    subsystem.sharing.insert(NamespaceId(2), protected);
    subsystem.host_rates.insert(nqn.clone(), crawl());
    let (subsystems, listeners) = (vec![subsystem], vec![any()]);
    let config = TargetConfig { subsystems, listeners, ..TargetConfig::default() };
    let target = Target::start(&config).expect("the target starts");
    let (_disk, mut slow) = user(&target);
    for token in 0..2 {
        slow.write(token, 1, 1, token);
    }
    assert_eq!(slow.one().token, 0, "the first operation uses the unused budget");
    assert!(slow.turn(NOTHING).is_empty(), "the budget is used up");
    // Setting the same limits again changes nothing.
    target.control().set_host_rates(NQN, &nqn, &crawl()).expect("the subsystem exists");
    assert!(slow.turn(NOTHING).is_empty(), "the budget is used up");
    let second = format!("nvme+tcp://{}/{NQN}?ns=2", target.addresses()[0]);
    let second = Disk::connect(&[second.parse().expect("a URL")], &options(EngineKind::Auto));
    let geometry = second.expect("connected").geometry();
    assert_eq!((geometry.blocks, geometry.read_only), (7, true));
}

#[test]
fn the_limits_of_an_added_namespace_apply_at_once() {
    let target = serve(gate(), &[any()]);
    let gate = gate();
    let export = Export { namespace: gate.clone(), identity: "second".to_owned() };
    let sharing = Sharing { rates: crawl(), ..Sharing::default() };
    target.control().add_namespace_as(NQN, NamespaceId(2), &export, &sharing).expect("a number");
    let url = format!("nvme+tcp://{}/{NQN}?ns=2", target.addresses()[0]);
    let disk = Disk::connect(&[url.parse().expect("a URL")], &options(EngineKind::Auto));
    let mut user = User::new(&disk.expect("connected"), EngineKind::Auto);
    for token in 0..2 {
        user.write(token, 1, 1, token);
    }
    assert_eq!(user.one().token, 0, "the first operation uses the unused budget");
    assert!(user.turn(NOTHING).is_empty(), "the budget is used up");
    // Other changes of the namespace give it no new budget.
    let smaller = Sharing { blocks: Some(64), ..sharing };
    target.control().set_sharing(NQN, NamespaceId(2), &smaller).expect("the namespace exists");
    assert!(user.turn(NOTHING).is_empty(), "the budget is used up");
    let unlimited = Sharing { rates: Rates::default(), ..smaller };
    target.control().set_sharing(NQN, NamespaceId(2), &unlimited).expect("the namespace exists");
    assert_eq!(user.one().token, 1);
    let error = Sharing { blocks: Some(1 << 40), ..Sharing::default() };
    let error = target.control().set_sharing(NQN, NamespaceId(2), &error).expect_err("too large");
    assert!(error.to_string().contains("enlarge"), "{error}");
}
