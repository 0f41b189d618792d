//! The discovery log page lists the addresses of other targets that offer the same subsystems.

mod rig;

use farblock_backends::mem::Mem;
use farblock_host::{Options, discover};
use rig::{BLOCK, any, serve};
use std::collections::BTreeSet;
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
    let peers = |all: &[&str]| -> BTreeSet<SocketAddr> {
        all.iter().map(|it| it.parse().expect("an address")).collect()
    };
    let all = |all: &[&str]| -> BTreeSet<String> {
        all.iter().map(|it| (*it).to_owned()).chain([own.to_string()]).collect()
    };
    for these in [&["192.0.2.1:4420", "192.0.2.2:4420"][..], &["192.0.2.2:4420"], &[]] {
        control.set_peers(&peers(these)).expect("there is room");
        assert_eq!(listed(own), all(these));
    }
}
