//! Tests of connections: requests, answers, and disconnections.

use super::stand::{Stand, expect_event};
use crate::limits;
use crate::request::{Operation, Status};
use crate::verbs::{CmEventType, ConnParam, REJECTED_BY_CONSUMER, REJECTED_NO_LISTENER, Verbs};

fn with_data(private_data: &[u8]) -> ConnParam {
    ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() }
}

/// Checks private data, after which the connection manager may have added zeroes.
fn assert_padded(data: &[u8], expected: &[u8]) {
    assert_eq!(data.get(..expected.len()), Some(expected));
    assert!(
        data[expected.len()..].iter().all(|byte| *byte == 0),
        "the bytes after the data are not zero: {data:?}"
    );
}

pub(super) fn private_data_reaches_both_ends<V: Verbs + Clone>(stand: &Stand<V>) {
    let (channel, listener, port) = stand.listen();
    let param = ConnParam { responder_resources: 3, initiator_depth: 2, ..with_data(b"request") };
    let mut host = stand.request(port, &param);
    let answer = ConnParam { responder_resources: 2, initiator_depth: 1, ..with_data(b"accept") };
    let target = stand.accept(&channel, &answer, None);
    host.expect_established();
    target.expect(CmEventType::Established);
    assert_padded(&target.seen.private_data, b"request");
    assert_padded(&host.seen.private_data, b"accept");
    // The limits are reversed: a READ that the host starts is one that the target answers.
    assert_eq!((target.seen.responder_resources, target.seen.initiator_depth), (2, 3));
    assert_eq!((host.seen.responder_resources, host.seen.initiator_depth), (1, 2));
    let local = host.verbs.local_addr(&host.id);
    assert_eq!(local, target.verbs.peer_addr(&target.id));
    assert_eq!(host.verbs.peer_addr(&host.id), Some((stand.address, port).into()));
    assert_eq!(target.verbs.local_addr(&listener), Some((stand.address, port).into()));
    let device = host.verbs.device(&host.id).expect("a device");
    let all = host.verbs.devices().expect("devices");
    assert!(all.iter().any(|other| other.name == device.name), "{device:?} is not in {all:?}");
    assert!(device.ports.iter().any(|port| port.is_active), "{device:?}");
}

pub(super) fn a_reject_carries_private_data<V: Verbs + Clone>(stand: &Stand<V>) {
    let (channel, _listener, port) = stand.listen();
    let host = stand.request(port, &with_data(b"request"));
    host.receive(7, &[host.slice(0, 8)]);
    let request = expect_event(&stand.target, &channel, CmEventType::ConnectRequest);
    assert!(request.listener.is_some());
    stand.target.reject(&request.id, &[0, 0, 6, 0]).expect("a rejection");
    let rejected = host.expect(CmEventType::Rejected);
    assert_eq!(rejected.status, REJECTED_BY_CONSUMER);
    assert_padded(&rejected.param.private_data, &[0, 0, 6, 0]);
    let flushed = host.completion();
    assert_eq!((flushed.id, flushed.status), (7, Status::WR_FLUSH_ERR));
}

pub(super) fn a_port_without_listener_rejects<V: Verbs + Clone>(stand: &Stand<V>) {
    let (channel, listener, port) = stand.listen();
    drop((listener, channel));
    let host = stand.request(port, &ConnParam::default());
    assert_eq!(host.expect(CmEventType::Rejected).status, REJECTED_NO_LISTENER);
}

pub(super) fn too_much_private_data_is_refused<V: Verbs + Clone>(stand: &Stand<V>) {
    let (channel, _listener, port) = stand.listen();
    let most = with_data(&[1; limits::REQUEST_DATA_BYTES]);
    let mut host = stand.request(port, &most);
    let answer = with_data(&[2; limits::ACCEPT_DATA_BYTES]);
    let target = stand.accept(&channel, &answer, None);
    host.expect_established();
    assert_eq!(target.seen.private_data, most.private_data);
    assert_eq!(host.seen.private_data, answer.private_data);
    let (_channel, id) = stand.route(port);
    host.queues.make_qp(&stand.host, &id);
    let too_much = with_data(&[1; limits::REQUEST_DATA_BYTES + 1]);
    stand.host.connect(&id, &too_much).expect_err("the data is one byte too long");
}

pub(super) fn a_disconnection_flushes_and_notifies<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.expect(CmEventType::Established);
    for id in 0..3 {
        host.receive(id, &[host.slice(0, 8)]);
        target.receive(id, &[target.slice(0, 8)]);
    }
    host.verbs.disconnect(&host.id).expect("a connection");
    for id in 0..3 {
        let flushed = host.completion();
        assert_eq!((flushed.id, flushed.status), (id, Status::WR_FLUSH_ERR));
    }
    let event = target.expect(CmEventType::Disconnected);
    assert_eq!(target.verbs.qp_num(&event.id), target.verbs.qp_num(&target.id));
    target.verbs.disconnect(&target.id).expect("a connection");
    for id in 0..3 {
        let flushed = target.completion();
        assert_eq!((flushed.id, flushed.status), (id, Status::WR_FLUSH_ERR));
    }
    host.expect(CmEventType::Disconnected);
    // The queue pair also flushes requests that are posted later, such as this SEND. (Soft-RoCE
    // ignores later receives, so post none.)
    host.send(9, Operation::Send, &[host.slice(0, 8)]);
    assert_eq!(host.completion().status, Status::WR_FLUSH_ERR);
}

pub(super) fn a_dropped_connection_notifies_its_peer<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.expect(CmEventType::Established);
    drop(host);
    target.expect(CmEventType::Disconnected);
}
