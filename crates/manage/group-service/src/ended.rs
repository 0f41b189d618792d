//! The last task of a watchdog: to release the leaderships of the member that has ended.

use crate::notice::Enlisted;
use crate::proof::Disk;
use crate::store::EtcdStore;
use farblock_group::store::{StoreReply, StoreRequest, Txn};
use farblock_group::{KeySpace, release, release_reads};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// The time limit of the whole task. Afterwards the leases in etcd have ended, too. systemd
/// restarts the member only when the watchdog has ended.
const LIMIT: Duration = Duration::from_secs(3);

/// The time for which the first release waits for proof about more ANA groups.
const TOGETHER: Duration = Duration::from_millis(100);

/// The pause before another attempt at a transaction.
const AGAIN: Duration = Duration::from_millis(50);

/// The disks of the ANA groups.
pub(crate) type Disks = BTreeMap<u32, Vec<Disk>>;

/// Waits for proof that the operations of the member have ended, and releases its leaderships.
///
/// A group without a disk has done no I/O. If a disk can give the proof but does not, an operation
/// has been in flight for seconds, and may be for longer than the disk flight. Then the watchdog
/// releases nothing, and the next leader waits for the lease and the whole hold.
pub(crate) fn settle(enlisted: &Enlisted, disks: Disks) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    let mut busy: BTreeSet<u32> = disks.keys().copied().collect();
    let can_prove = |disks: &Vec<Disk>| disks.iter().all(Disk::can_prove);
    let provable = disks.iter().filter(|(_, disks)| can_prove(disks)).map(|(group, _)| *group);
    let provable: BTreeSet<u32> = provable.collect();
    let proofs = prove(disks, end)?;
    let is_stuck = |busy: &BTreeSet<u32>| !busy.is_disjoint(&provable);
    collect(&proofs, &mut busy, end.min(Instant::now() + TOGETHER));
    while is_stuck(&busy) && collect(&proofs, &mut busy, end) {}
    if is_stuck(&busy) {
        return Err(io::Error::other("writes of the ended target are still in flight"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = EtcdStore::new(&enlisted.etcd, Duration::from_millis(enlisted.hold_ms));
    LocalSet::new().block_on(&runtime, release_until(&store, enlisted, &busy, end))
}

/// Starts a thread for each ANA group, which reports the group when there is proof.
fn prove(disks: Disks, end: Instant) -> io::Result<Receiver<u32>> {
    let (sender, proofs) = channel();
    for (group, disks) in disks {
        let sender = sender.clone();
        std::thread::Builder::new().name(format!("proof-{group}")).spawn(move || {
            if disks.iter().all(|disk| disk.is_quiet(end)) {
                let _ = sender.send(group);
            }
        })?;
    }
    Ok(proofs)
}

/// Removes the groups with proof from `busy`, until `end` or until all threads have ended. Returns
/// whether there was one.
fn collect(proofs: &Receiver<u32>, busy: &mut BTreeSet<u32>, end: Instant) -> bool {
    let before = busy.len();
    while !busy.is_empty() {
        match proofs.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(group) => busy.remove(&group),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        };
    }
    busy.len() < before
}

/// Releases all groups that are not busy. Repeats failed attempts until `end`.
async fn release_until(
    store: &EtcdStore,
    enlisted: &Enlisted,
    busy: &BTreeSet<u32>,
    end: Instant,
) -> io::Result<()> {
    let keys = KeySpace::new(&enlisted.group);
    let (name, process) = (enlisted.name.as_str(), enlisted.process);
    let execute = |txn: Txn| store.request(StoreRequest::Txn(txn));
    loop {
        if let StoreReply::Done(seen) = execute(release_reads(&keys, name)).await {
            let is_quiet = |group| !busy.contains(&group);
            match release(&keys, (name, process), &seen.entries, is_quiet) {
                None => return Ok(()),
                Some(txn) => match execute(txn).await {
                    StoreReply::Done(done) if done.succeeded => return Ok(()),
                    _ => {}
                },
            }
        }
        if Instant::now() >= end {
            return Err(io::Error::other("etcd did not answer in time; the group waits"));
        }
        tokio::time::sleep(AGAIN).await;
    }
}
