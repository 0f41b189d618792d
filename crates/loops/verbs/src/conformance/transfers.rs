//! Tests of transfers that succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::stand::{End, Queues, Stand, expect_event, wait_for};
use crate::request::{Completed, Operation, Payload, SendRequest};
use crate::verbs::{CmEventType, ConnParam, Source, Verbs};

pub(super) fn messages_arrive_in_order<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    for id in 0..8 {
        target.receive(id, &[target.slice(8 * id as usize, 8)]);
    }
    host.fill(0, b"abcdefgh");
    let slices: Vec<_> = (0..8).map(|at| [host.slice(at, 1)]).collect();
    let numbered = (0..).zip(&slices);
    let requests: Vec<_> =
        numbered.map(|(id, slices)| SendRequest::new(id, Operation::Send, slices)).collect();
    host.post(&requests);
    for id in 0..8 {
        assert_eq!(host.success(id).operation, Completed::Send);
        let received = target.success(id);
        assert_eq!((received.operation, received.bytes), (Completed::Receive, 1));
        assert_eq!(target.bytes(8 * id as usize, 2), [b'a' + id as u8, 0]);
    }
}

pub(super) fn slices_gather_and_scatter<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.receive(1, &[target.slice(0, 3), target.slice(100, 8)]);
    host.fill(0, b"abcdef");
    host.send(2, Operation::Send, &[host.slice(4, 2), host.slice(0, 4)]);
    host.success(2);
    assert_eq!(target.success(1).bytes, 6);
    assert_eq!(target.bytes(0, 4), b"efa\0");
    assert_eq!(target.bytes(100, 4), b"bcd\0");
}

pub(super) fn inline_bytes_may_be_reused_at_once<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.receive(1, &[target.slice(0, 64)]);
    let mut bytes = *b"inline";
    let inline = |bytes: &[u8]| {
        let payload = Payload::Inline(bytes);
        host.post(&[SendRequest { payload, ..SendRequest::new(2, Operation::Send, &[]) }]);
    };
    inline(&bytes);
    bytes.fill(0);
    host.success(2);
    assert_eq!(target.success(1).bytes, 6);
    assert_eq!(target.bytes(0, 6), b"inline");
    let read = Operation::Read { address: target.keys().address(), rkey: target.keys().rkey() };
    let payload = Payload::Inline(&bytes);
    let request = SendRequest { payload, ..SendRequest::new(3, read, &[]) };
    host.verbs.post_send(&host.id, &[request]).expect_err("a READ cannot write to borrowed bytes");
}

pub(super) fn writes_and_reads_move_memory<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    let (address, rkey) = (host.keys().address(), host.keys().rkey());
    // As an NVMe target does: READ the host's data, WRITE data to the host, and SEND a message.
    let contents: Vec<u8> = (0..32768_u32).map(|at| (at % 251) as u8).collect();
    host.fill(0, &contents);
    host.receive(1, &[host.slice(60000, 16)]);
    let all = [target.slice(0, 32768)];
    target.send(2, Operation::Read { address, rkey }, &all);
    let read = target.success(2);
    assert_eq!((read.operation, read.bytes), (Completed::Read, 32768));
    assert_eq!(target.bytes(0, 32768), contents);
    let half = [target.slice(1, 10000)];
    let write = Operation::Write { address: address + 40000, rkey };
    let tail = [target.slice(0, 16)];
    target.post(&[
        SendRequest { signaled: false, ..SendRequest::new(3, write, &half) },
        SendRequest::new(4, Operation::Send, &tail),
    ]);
    target.success(4);
    // When the message arrives, the written data has arrived, too.
    host.success(1);
    assert_eq!(host.bytes(40000, 10000), contents[1..10001]);
    assert_eq!(host.bytes(50000, 1), [0]);
}

pub(super) fn an_unsignaled_request_completes_silently<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    // Together the rounds post more requests than the queue holds. This works because a completion
    // also frees the queue entry of the preceding request, which reports no completion.
    for round in 0..40 {
        target.receive(1, &[target.slice(0, 8)]);
        target.receive(2, &[target.slice(0, 8)]);
        let slices = [host.slice(0, 8)];
        let silent = SendRequest::new(round, Operation::Send, &slices);
        let signaled = SendRequest::new(100 + round, Operation::Send, &slices);
        host.post(&[SendRequest { signaled: false, ..silent }, signaled]);
        host.success(100 + round);
        target.success(1);
        target.success(2);
    }
}

pub(super) fn connections_share_receives<V: Verbs + Clone>(stand: &Stand<V>) {
    let (channel, _listener, port) = stand.listen();
    let param = ConnParam::default();
    let mut first = stand.request(port, &param);
    let event = expect_event(&stand.target, &channel, CmEventType::ConnectRequest);
    let queues = Queues::new(&stand.target, &event.id, true);
    queues.make_qp(&stand.target, &event.id);
    stand.target.accept(&event.id, &param).expect("an answer");
    let (verbs, id, seen) = (stand.target.clone(), event.id, event.param);
    let target = End { verbs, id, queues, channel: channel.clone(), seen };
    first.expect_established();
    target.expect(CmEventType::Established);
    let mut second = stand.request(port, &param);
    let other = stand.accept(&channel, &param, Some(&target.queues));
    second.expect_established();
    let ends = [(&first, &target), (&second, &other), (&first, &target)];
    for (id, (sender, receiver)) in (0..).zip(ends) {
        target.receive(id, &[target.slice(8 * id as usize, 8)]);
        sender.fill(0, &[id as u8 + 1]);
        sender.send(id, Operation::Send, &[sender.slice(0, 1)]);
        sender.success(id);
        let received = target.success(id);
        assert_eq!(Some(received.qp_num), stand.target.qp_num(&receiver.id));
        assert_eq!(target.bytes(8 * id as usize, 1), [id as u8 + 1]);
    }
}

pub(super) fn a_message_waits_for_a_receive<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    host.fill(0, b"early");
    host.send(1, Operation::Send, &[host.slice(0, 5)]);
    host.send(2, Operation::Send, &[host.slice(0, 4)]);
    target.receive(3, &[target.slice(0, 8)]);
    host.success(1);
    assert_eq!(target.success(3).bytes, 5);
    target.receive(4, &[target.slice(8, 8)]);
    host.success(2);
    assert_eq!(target.success(4).bytes, 4);
    assert_eq!(target.bytes(0, 12), b"early\0\0\0earl");
}

/// Returns a function that reports whether the event source is ready: it has called its waker, or
/// is readable.
fn watch(source: Source<'_>) -> impl Fn() -> bool {
    let called = Arc::new(AtomicBool::new(false));
    match source {
        #[cfg(target_os = "linux")]
        Source::Descriptor(fd) => {
            use std::os::fd::AsRawFd;
            let fd = fd.as_raw_fd();
            Box::new(move || {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: the array has one element, and a closed descriptor is reported.
                unsafe { libc::poll(&mut poll, 1, 0) == 1 }
            }) as Box<dyn Fn() -> bool>
        }
        Source::Call(waker) => {
            let set = called.clone();
            waker.set(move || set.store(true, SeqCst));
            Box::new(move || called.load(SeqCst)) as Box<dyn Fn() -> bool>
        }
    }
}

pub(super) fn an_armed_queue_gives_one_event<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    let (verbs, cq) = (&target.verbs, &target.queues.cq);
    let has_event = watch(verbs.cq_source(cq));
    for id in 0..3 {
        target.receive(id, &[target.slice(0, 8)]);
    }
    host.send(0, Operation::Send, &[host.slice(0, 1)]);
    target.success(0);
    assert!(!has_event(), "the queue reports an event although it is not armed");
    verbs.req_notify_cq(cq).expect("a queue");
    host.send(1, Operation::Send, &[host.slice(0, 1)]);
    host.send(2, Operation::Send, &[host.slice(0, 1)]);
    wait_for("an event", || has_event().then_some(()));
    target.success(1);
    target.success(2);
    assert!(verbs.get_cq_event(cq).expect("a queue"));
    assert!(!verbs.get_cq_event(cq).expect("a queue"), "an armed queue reports two events");
}
