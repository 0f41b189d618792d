//! Counts the verbs calls and memory registrations of an I/O, with farblock's host and target on a
//! network in memory.

use super::HOST;
use super::host::{NQN, Stand, ip};
use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_host::{Controller, Options};
use farblock_reactor::Buffer;
use farblock_verbs::{Calls, Node, Provider};
use std::sync::Arc;

const COUNT: u64 = 200;

/// An open disk on a target, and the simulated RDMA nodes of host and target, which count calls.
struct Counted {
    driver: Driver,
    ends: [Node; 2],
    _stand: Stand,
}

impl Counted {
    fn new() -> Self {
        let stand = Stand::new();
        let host = stand.network.node(ip(HOST));
        let address = stand.target.rdma_addresses()[0];
        let options = Options::default();
        let provider = Provider::Memory(host.clone());
        let controller = Controller::connect_by_rdma(provider, address, NQN, &options);
        let namespace = controller.expect("the target answers").namespace(1).expect("a namespace");
        let namespace: Arc<dyn Namespace> = Arc::new(namespace);
        let driver = Driver::with(&namespace, options.engine);
        let ends = [host, stand.network.node(address.ip())];
        Self { driver, ends, _stand: stand }
    }

    fn run(&mut self, depth: usize, op: impl Fn() -> Op) {
        (0..depth).for_each(|_| self.driver.submit(0, op()));
        assert!(self.driver.wait(0, depth).iter().all(|one| one.result.is_ok()));
    }

    /// The calls of host and target for `COUNT` operations, `depth` of them at a time.
    fn cost(&mut self, what: &str, depth: usize, op: impl Fn() -> Op) -> [Calls; 2] {
        // First let both ends register memory, which is not measured.
        self.run(depth, &op);
        let before = self.ends.each_ref().map(Node::calls);
        (0..COUNT / depth as u64).for_each(|_| self.run(depth, &op));
        let after = self.ends.each_ref().map(Node::calls);
        let mut ends = [after[0], after[1]];
        for (end, before) in ends.iter_mut().zip(before) {
            end.post_send -= before.post_send;
            end.sends -= before.sends;
            end.post_recv -= before.post_recv;
            end.completions -= before.completions;
            end.poll_cq -= before.poll_cq;
            end.req_notify_cq -= before.req_notify_cq;
            end.reg_mr -= before.reg_mr;
        }
        println!("{what}, depth {depth}, {COUNT} operations: {ends:?}");
        ends
    }
}

/// Allowed difference of counts: some calls for the last operation may come after its completion.
const SLACK: u64 = 4;

fn assert_about(what: &str, counted: u64, expected: u64) {
    let is_about = (expected..=expected + SLACK).contains(&(counted + SLACK / 2));
    assert!(is_about, "{what}: {counted} instead of {expected}");
}

#[test]
fn an_operation_costs_one_post_at_each_end_and_no_registration() {
    let mut counted = Counted::new();
    let read = || Op::read(0, 8, Buffer::new(4096), 1);
    let small = || Op::write(0, 8, Buffer::new(4096), 1);
    let large = || Op::write(0, 16, Buffer::new(8192), 1);
    // The posts and requests of the target: WRITE and SEND together; SEND; READ, and then SEND.
    for (what, op, posts, sends) in [
        ("a read", &read as &dyn Fn() -> Op, 1, 2),
        ("a write with its data in the capsule", &small, 1, 1),
        ("a larger write", &large, 2, 2),
    ] {
        let [host, target] = counted.cost(what, 1, op);
        assert_about("posts of the host", host.post_send, COUNT);
        assert_about("requests of the host", host.sends, COUNT);
        assert_about("posts of the target", target.post_send, posts * COUNT);
        assert_about("requests of the target", target.sends, sends * COUNT);
        assert_about("receives of the host", host.post_recv, COUNT);
        assert_about("receives of the target", target.post_recv, COUNT);
        assert_eq!((host.reg_mr, target.reg_mr), (0, 0), "{what}");
    }
}

#[test]
fn operations_at_depth_share_posts() {
    let mut counted = Counted::new();
    let read = || Op::read(0, 8, Buffer::new(4096), 1);
    let [host, target] = counted.cost("a read", 20, read);
    assert_about("requests of the host", host.sends, COUNT);
    assert_about("requests of the target", target.sends, 2 * COUNT);
    // The host posts 16 commands at a time.
    assert!(host.post_send <= COUNT / 10 + SLACK, "{host:?}");
    assert_eq!((host.reg_mr, target.reg_mr), (0, 0));
}
