//! Compares the private data of RDMA connections with bytes that we computed by hand.

use farblock_wire::rdma::{CmAccept, CmReject, CmRequest, RejectStatus};

/// A host's request for I/O queue 3 of controller 0x1234, with 128 entries.
const REQUEST: [u8; 10] = [0, 0, 3, 0, 128, 0, 127, 0, 0x34, 0x12];

fn padded(prefix: &[u8], bytes: usize) -> Vec<u8> {
    let mut padded = prefix.to_vec();
    padded.resize(bytes, 0);
    padded
}

#[test]
fn a_cm_request_equals_the_bytes_that_linux_sends() {
    let request = CmRequest::new(3, 128, 127, 0x1234);
    let mut out = [0xa5; 40];
    assert_eq!(request.emit(&mut out), 32);
    assert_eq!(out[..32], padded(&REQUEST, 32));
    assert_eq!(out[32..], [0xa5; 8]);
    // The connection manager of RoCE pads with zeroes.
    assert_eq!(CmRequest::parse(&padded(&REQUEST, 56)), Some(request));
    assert_eq!(CmRequest::parse(&padded(&REQUEST, 31)), None);
}

#[test]
fn cm_answers_equal_the_bytes_that_linux_sends() {
    let mut out = [0xa5; 32];
    assert_eq!(CmAccept::new(128).emit(&mut out), 32);
    assert_eq!(out[..], padded(&[0, 0, 128], 32));
    assert_eq!(CmAccept::parse(&out[..31]), None);
    let reject = CmReject::new(RejectStatus::NO_RESOURCES);
    assert_eq!(reject.emit(&mut out), 4);
    assert_eq!(out[..4], [0, 0, 6, 0]);
    assert_eq!(CmReject::parse(&out), Some(reject));
    assert_eq!(reject.status(), RejectStatus::NO_RESOURCES);
}

#[test]
fn reject_reasons_have_names() {
    let names: Vec<_> = (1..=8).map(|code| RejectStatus(code).to_string()).collect();
    assert_eq!(names[0], "invalid private data length");
    assert_eq!(names[5], "no RDMA resources");
    assert!(names.iter().all(|name| !name.contains("unknown")), "{names:?}");
    assert_eq!(RejectStatus(9).to_string(), "unknown reject status 0x09");
}
