//! Detects two live targets that have the same name but cannot be one subsystem, such as a machine
//! and its clone, or a disk and a copy with the same identity. If a host used them as two paths to
//! one disk, it would write some blocks to one target and some to the other.
//!
//! The controllers of a subsystem have the same serial number and different identifiers (NVMe Base
//! 2.1, Identify Controller: SN, CNTLID), and a namespace has one size. A farblock target also
//! reports its range of controller identifiers and the name of its process. Two processes that
//! share a subsystem need different ranges.
//!
//! **Not covered:** targets that do not report their range, unless both give this host the same
//! controller identifier.

use crate::controller::Controller;
use farblock_proto::host::ControllerInfo;
use std::net::SocketAddr;

/// A live controller and the namespace that it serves.
pub(super) struct Seen<'a> {
    pub(super) address: SocketAddr,
    pub(super) info: &'a ControllerInfo,
    /// The namespace's size, if it is known.
    pub(super) bytes: Option<u64>,
}

impl<'a> Seen<'a> {
    pub(super) fn of(controller: &'a Controller, bytes: Option<u64>) -> Seen<'a> {
        Seen { address: controller.address(), info: controller.info(), bytes }
    }
}

/// Returns the reason why two live controllers do not belong to one subsystem; `None` if they may.
pub(super) fn contradiction(one: &Seen<'_>, other: &Seen<'_>) -> Option<String> {
    let (why, remedy) = difference(one, other)?;
    Some(format!(
        "{} and {} are two targets with one name, not two paths to one disk: {why}; give the \
         copy another NQN and UUID, or, if both targets share one disk, {remedy}",
        one.address, other.address
    ))
}

/// Returns the difference, and the remedy if the targets do share one disk.
fn difference(one: &Seen<'_>, other: &Seen<'_>) -> Option<(String, &'static str)> {
    const RANGES: &str = "give each its own controller identifiers (serve --cntlids)";
    let (mine, its) = (one.info, other.info);
    if mine.cntlid == its.cntlid {
        let why = format!("both have a controller with the identifier {}", mine.cntlid);
        return Some((why, RANGES));
    }
    let is_successor = mine.origin.zip(its.origin).is_some_and(|(a, b)| a.is_succeeded_at(&b));
    if is_successor || (mine.process.is_some() && mine.process == its.process) {
        return None;
    }
    // By default, a Linux target has a random serial number on each machine.
    let is_farblock = mine.process.is_some() || its.process.is_some();
    if is_farblock && mine.serial != its.serial {
        let why = format!("their serial numbers are {:?} and {:?}", mine.serial, its.serial);
        return Some((why, "give them one serial number"));
    }
    if let (Some(mine), Some(its)) = (mine.controller_ids, its.controller_ids)
        && mine.overlaps(&its)
    {
        let (first, last) = (mine.first.max(its.first), mine.last.min(its.last));
        let why = format!("both may give controllers the identifiers {first} to {last}");
        return Some((why, RANGES));
    }
    match (one.bytes, other.bytes) {
        (Some(mine), Some(its)) if mine != its => {
            let why = format!("one disk has {mine} bytes, the other {its}");
            Some((why, "wait until both have its new size"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_wire::origin::{ControllerIds, ProcessName};

    fn info(cntlid: u16, process: u8, ids: (u16, u16)) -> ControllerInfo {
        ControllerInfo {
            cntlid,
            serial: "S1".to_owned(),
            process: (process > 0).then_some(ProcessName([process; 16])),
            controller_ids: (ids.0 > 0).then_some(ControllerIds { first: ids.0, last: ids.1 }),
            ..ControllerInfo::default()
        }
    }

    fn between(one: &ControllerInfo, other: &ControllerInfo, bytes: [u64; 2]) -> Option<String> {
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let seen = |info, port, bytes| Seen { address: address(port), info, bytes: Some(bytes) };
        contradiction(&seen(one, 1, bytes[0]), &seen(other, 2, bytes[1]))
    }

    #[test]
    fn two_controllers_of_one_subsystem_are_accepted() {
        let all = (1, 0xffef);
        for (one, other) in [
            // Two addresses of one target.
            (info(1, 5, all), info(2, 5, all)),
            // Two targets of one disk.
            (info(1, 5, (1, 999)), info(1000, 6, (1000, 1999))),
            // Targets that do not report their range.
            (info(1, 0, (0, 0)), info(2, 0, (0, 0))),
            // The Linux kernel's targets on two machines, with different serial numbers.
            (info(1, 0, (0, 0)), ControllerInfo { serial: "S2".into(), ..info(2, 0, (0, 0)) }),
        ] {
            assert_eq!(between(&one, &other, [512, 512]), None);
        }
    }

    #[test]
    fn a_clone_of_a_target_is_detected() {
        let all = (1, 0xffef);
        let (of, other) =
            (info(1, 5, all), ControllerInfo { serial: "S2".into(), ..info(2, 0, all) });
        for (clone, text) in [
            // A clone of the target's machine, including its memory.
            (info(1, 5, all), "a controller with the identifier 1"),
            (info(1, 0, (0, 0)), "a controller with the identifier 1"),
            (info(7, 6, all), "the identifiers 1 to 65519"),
            (info(700, 6, (500, 2000)), "the identifiers 500 to 2000"),
            (other, "serial numbers are \"S1\" and \"S2\""),
        ] {
            let refused = between(&of, &clone, [512, 512]).expect(text);
            assert!(refused.contains(text) && refused.contains("192.0.2.1:2 are"), "{refused}");
        }
        let larger = between(&of, &info(2, 0, (0, 0)), [512, 1024]).expect("different disks");
        assert!(larger.contains("one disk has 512 bytes, the other 1024"), "{larger}");
    }
}
