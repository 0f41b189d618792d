//! The watchdog's last task: it releases the leaderships of the member's process that has ended.

use crate::notice::Enlisted;
use crate::proof::Disk;
use crate::store::EtcdStore;
use farblock_group::store::{StoreReply, StoreRequest, Txn};
use farblock_group::{KeySpace, release, release_reads};
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// The time limit of the whole task. Afterwards the leases in etcd have ended, too. systemd
/// restarts the member only when the watchdog has ended.
const LIMIT: Duration = Duration::from_secs(3);

/// The pause before another attempt at a transaction.
const AGAIN: Duration = Duration::from_millis(50);

/// The disks of the member, by ANA group.
pub(crate) type Disks = BTreeMap<u32, Vec<Disk>>;

/// Waits for proof that the operations of the member have ended, and releases its leaderships.
///
/// An ANA group without a disk has done no I/O. If the proof about a disk does not arrive in time,
/// an operation may be in flight for longer than the disk should need. Then the watchdog releases
/// nothing, and the next leader waits as after any lost member.
pub(crate) fn settle(enlisted: &Enlisted, disks: Disks) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    let can_prove = |(_, disks): &(u32, Vec<Disk>)| disks.iter().all(Disk::can_prove);
    let (provable, busy): (Disks, Disks) = disks.into_iter().partition(can_prove);
    if !are_quiet(provable, end)? {
        return Err(io::Error::other("writes of the ended target are still in flight"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = EtcdStore::new(&enlisted.etcd, Duration::from_millis(enlisted.hold_ms));
    LocalSet::new().block_on(&runtime, release_until(&store, enlisted, &busy, end))
}

/// Waits for proof about all disks, with a thread for each ANA group, because one disk may hang.
fn are_quiet(disks: Disks, end: Instant) -> io::Result<bool> {
    let count = disks.len();
    let (sender, proofs) = channel();
    for (group, disks) in disks {
        let sender = sender.clone();
        std::thread::Builder::new().name(format!("proof-{group}")).spawn(move || {
            let _ = sender.send(disks.iter().all(|disk| disk.is_quiet(end)));
        })?;
    }
    let left = || end.saturating_duration_since(Instant::now());
    Ok((0..count).all(|_| proofs.recv_timeout(left()) == Ok(true)))
}

/// Releases all ANA groups except those in `busy`. Repeats failed attempts until `end`.
async fn release_until(
    store: &EtcdStore,
    enlisted: &Enlisted,
    busy: &Disks,
    end: Instant,
) -> io::Result<()> {
    let keys = KeySpace::new(&enlisted.group);
    let (name, process) = (enlisted.name.as_str(), enlisted.process);
    let execute = |txn: Txn| store.request(StoreRequest::Txn(txn));
    loop {
        if let StoreReply::Done(seen) = execute(release_reads(&keys, name)).await {
            let is_quiet = |group| !busy.contains_key(&group);
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
