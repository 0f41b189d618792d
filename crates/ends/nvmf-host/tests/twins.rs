//! Two different targets with the same name: a machine and its clone.

mod peer;
mod stage;

use farblock_block::Namespace;
use farblock_host::disk::{DiskState, PathState};
use farblock_host::{Disk, Error};
use farblock_wire::log::AnaState;
use stage::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SAME: &str = "both have a controller with the identifier 7";

fn two_stages() -> [Arc<Stage>; 2] {
    [Stage::new(AnaState::OPTIMIZED), Stage::new(AnaState::OPTIMIZED)]
}

#[test]
fn a_disk_and_its_clone_are_not_paths_of_one_disk() {
    let stages = two_stages();
    stages.iter().for_each(|stage| stage.cntlid.store(7, Ordering::SeqCst));
    let peers = [target(&stages[0]), target(&stages[1])];
    let error = Disk::connect(&urls(&[&peers[0], &peers[1]]), &usual()).expect_err("twins");
    assert!(matches!(error, Error::Twin(_)), "{error:?}");
    assert!(error.to_string().contains(SAME), "{error}");
    let disk = disk(&[&peers[0]], &usual());
    let error = disk.add_path(&urls(&[&peers[1]])[0]).expect_err("a twin");
    assert!(error.to_string().contains(SAME), "{error}");
    assert_eq!(disk.paths().len(), 1);
}

/// If a path leads to a clone after a reconnect, the disk sends the clone no operations and does
/// not adopt its size.
#[test]
fn a_clone_behind_a_path_is_not_used() {
    let stages = two_stages();
    stages[0].cntlid.store(7, Ordering::SeqCst);
    let peers = [target(&stages[0]), target(&stages[1])];
    let disk = disk(&[&peers[0], &peers[1]], &usual());
    until("both paths are live", || disk.state() == DiskState::Live);
    let blocks = 2 * stages[0].blocks.load(Ordering::SeqCst);
    stages[1].cntlid.store(7, Ordering::SeqCst);
    stages[1].blocks.store(blocks, Ordering::SeqCst);
    peers[1].cut();
    until("the path is refused", || error(&disk, 1).contains(SAME));
    let (mut user, before) = (User::new(&disk), stages[1].ios());
    (0..5).for_each(|lba| assert_eq!(user.write(lba), Ok(())));
    assert_eq!(stages[1].ios(), before, "the write went to the clone");
    assert_ne!(disk.geometry().blocks, blocks);
    assert_ne!(disk.paths()[1].state, PathState::Live);
    // The path leads to the disk's second target again.
    stages[1].cntlid.store(8, Ordering::SeqCst);
    stages[1].blocks.store(stages[0].blocks.load(Ordering::SeqCst), Ordering::SeqCst);
    until("both paths are live", || disk.state() == DiskState::Live);
}

/// A target may reuse an identifier as soon as its controller has ended.
#[test]
fn an_identifier_is_free_once_its_controller_has_closed() {
    let stages = two_stages();
    stages[0].cntlid.store(7, Ordering::SeqCst);
    let peers = [target(&stages[0]), target(&stages[1])];
    let disk = disk(&[&peers[0], &peers[1]], &quick());
    until("both paths are live", || disk.state() == DiskState::Live);
    stages[1].cntlid.store(7, Ordering::SeqCst);
    stages[0].cntlid.store(8, Ordering::SeqCst);
    peers.iter().for_each(|peer| peer.cut());
    until("both paths are live", || {
        disk.state() == DiskState::Live && disk.paths().iter().all(|path| path.reconnects > 0)
    });
    let ids: Vec<_> = disk.paths().iter().map(|path| path.controller.expect("live").1).collect();
    assert_eq!(ids, [8, 7]);
}
