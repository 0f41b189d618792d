//! Tests with targets that violate the protocol. Every command must name the violation and exit.

mod support;

#[allow(unexpected_cfgs, reason = "this crate lacks the feature `memory` of the module")]
#[path = "../../../ends/nvmf-host/tests/peer/mod.rs"]
mod peer;

use farblock_wire::Status;
use farblock_wire::opcode::AdminOpcode;
use peer::{Handled, Peer, SUBSYSTEM, Script};
use support::Scratch;

fn url(peer: &Peer) -> String {
    format!("nvme+tcp://{}/{SUBSYSTEM}?ns=1", peer.address())
}

#[test]
fn every_command_reports_a_successful_read_without_data_as_a_protocol_error() {
    let scratch = Scratch::new();
    let peer = Peer::with_hook(|connection, qid, capsule| match (qid, capsule.sqe.opcode) {
        // Answer a read with success, but without data.
        (1.., 0x02) => connection.succeed(capsule.cid()).map(|()| Handled::Yes),
        _ => Ok(Handled::No),
    });
    let url = url(&peer);
    let breach = "the controller broke the protocol: it reported success for a read";
    let read = scratch.run(["read", &url, "--length", "4KiB", "-o", "out"]);
    assert!(read.code == Some(1) && read.stderr.contains(breach), "{}", read.stderr);
    assert!(!read.stderr.contains("cannot be read"), "{}", read.stderr);
    let doctor = scratch.run(["doctor", &url]);
    assert!(doctor.out().contains(breach), "{}", doctor.out());
    let bench = ["bench", &url, "--rw", "read", "--runtime", "500ms", "--ramp-time", "0"];
    let bench = scratch.run(bench);
    // Join the lines that the report wraps.
    let said = bench.out().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(breach), "{said}");
}

#[test]
fn read_refuses_a_discovery_controller() {
    let scratch = Scratch::new();
    let peer = Peer::new(Script { cntrltype: 2, ..Script::default() });
    let read = scratch.run(["read", &url(&peer), "-o", "out"]);
    assert!(read.stderr.contains("CNTRLTYPE 2"), "{}", read.stderr);
    assert!(!read.stderr.contains("memory"), "{}", read.stderr);
}

#[test]
fn id_lists_the_other_namespaces_if_one_fails() {
    let scratch = Scratch::new();
    let peer = Peer::with_hook(|connection, qid, capsule| {
        let (sqe, cid) = (&capsule.sqe, capsule.cid());
        if qid > 0 || sqe.opcode != AdminOpcode::IDENTIFY.0 {
            return Ok(Handled::No);
        }
        match (sqe.cdw10.get() as u8, sqe.nsid.get()) {
            // Fail Identify Namespace for namespace 2, and list three namespaces.
            (0, 2) => connection.respond(cid, Status::INTERNAL_ERROR.with_dnr(), 0)?,
            (2, 0) => {
                let mut list = vec![0; 4096];
                (list[0], list[4]) = (1, 2);
                connection.push_all(cid, &list, 4096, true)?;
            }
            _ => return Ok(Handled::No),
        }
        Ok(Handled::Yes)
    });
    let url = format!("nvme+tcp://{}/{SUBSYSTEM}", peer.address());
    let id = scratch.run(["id", &url]);
    assert_eq!(id.code, Some(1));
    assert!(id.out().contains("16 MiB"), "{}", id.out());
    assert!(
        id.stderr.contains("namespace 2: ") && id.stderr.contains("Internal Error"),
        "{}",
        id.stderr
    );
    let id = scratch.run(["id", &url, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&id.out()).expect("the text is JSON");
    assert_eq!(
        (&json["namespaces"][0]["nsid"], &json["failed"][0]["nsid"]),
        (&1.into(), &2.into())
    );
}
