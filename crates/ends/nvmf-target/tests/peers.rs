//! The discovery log page lists the addresses of other targets that offer the same subsystems.

mod rig;

use farblock_backends::mem::Mem;
use farblock_host::{Options, discover};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use rig::{BLOCK, any, serve};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

fn listed(target: SocketAddr) -> BTreeSet<String> {
    let found = discover(&target.to_string(), &Options::default()).expect("a page");
    let disks = found.iter().filter(|entry| entry.subnqn == rig::NQN);
    disks.map(|entry| format!("{}:{}", entry.address, entry.service)).collect()
}

#[test]
fn the_discovery_log_page_lists_the_current_peers() {
    let target = serve(Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size")), &[any()]);
    let (control, own) = (target.control(), target.addresses()[0]);
    let peers = |all: &[&str]| -> BTreeMap<SocketAddr, u16> {
        all.iter().map(|it| it.parse().expect("an address")).zip(129..).collect()
    };
    let all = |all: &[&str]| -> BTreeSet<String> {
        all.iter().map(|it| (*it).to_owned()).chain([own.to_string()]).collect()
    };
    for these in [&["192.0.2.1:4420", "192.0.2.2:4420"][..], &["192.0.2.2:4420"], &[]] {
        control.set_peers(&peers(these)).expect("there is room");
        assert_eq!(listed(own), all(these));
    }
}

#[test]
fn targets_with_disjoint_controller_identifiers_have_different_port_numbers() {
    let numbers = |target: SocketAddr| -> BTreeMap<String, u16> {
        let found = discover(&target.to_string(), &Options::default()).expect("a page");
        let disks = found.iter().filter(|entry| entry.subnqn == rig::NQN);
        disks.map(|entry| (format!("{}:{}", entry.address, entry.service), entry.port_id)).collect()
    };
    let start = |controller_ids| {
        let disk = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
        let mut subsystem = Subsystem::new(rig::NQN);
        subsystem.config.allow_any_host = true;
        let export = Export { namespace: disk, identity: "disk".to_owned() };
        subsystem.exports.insert(NamespaceId(1), export);
        let config = TargetConfig {
            subsystems: vec![subsystem],
            listeners: vec![any()],
            controller_ids,
            ..TargetConfig::default()
        };
        Target::start(&config).expect("the target starts")
    };
    let (one, other) = (start(1..=2047), start(2048..=4094));
    let (first, second) = (one.addresses()[0], other.addresses()[0]);
    one.control().set_peers(&BTreeMap::from([(second, 128)])).expect("there is room");
    let expected = BTreeMap::from([(first.to_string(), 1), (second.to_string(), 128)]);
    assert_eq!(numbers(first), expected);
    assert_eq!(numbers(second), BTreeMap::from([(second.to_string(), 128)]));
}
