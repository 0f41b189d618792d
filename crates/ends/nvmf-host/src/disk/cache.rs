//! Tracks writes that the target acknowledged but has not flushed. If the target may have lost such
//! a write, the next flush must fail.
//!
//! ```text
//!  written --> dirty --- a flush begins ---> flushing --- it succeeds ---> (durable)
//!                ^                              |
//!                +--------- it fails -----------+
//! ```
//! A reboot of the target's machine may lose writes that were acknowledged but not flushed. The
//! disk then reports the next successful flush of any of its queues as failed, once. If this
//! process dies before its user has certainly received the error, its successor process reports the
//! loss again.
//!
//! A *boot* is one run of a machine's operating system. A farblock target reports its identifier.

use super::fencing::ControllerLife;
use crate::error::Error;
use crate::limits;
use farblock_block::BlockError;
use farblock_reactor::os;
use farblock_wire::origin::ControllerOrigin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Boot = [u8; 16];

/// The path number for a path of a predecessor process that this disk does not have.
const NO_PATH: usize = usize::MAX;

#[derive(Default)]
pub(super) struct Cache {
    dirty: AtomicBool,
    flushing: AtomicUsize,
    /// Whether the next flush must fail, because acknowledged writes may be lost.
    lost: AtomicBool,
    /// Whether the user has received this error, so that the disk can delete the record of the
    /// loss.
    told: AtomicBool,
    boots: Mutex<Boots>,
}

/// The boot identifiers of the targets' machines.
#[derive(Default)]
struct Boots {
    /// Each path, with the boot of a machine that may have the disk's data in its cache.
    of_paths: Vec<(usize, Boot)>,
    /// Boots that have certainly ended. A machine has a new boot identifier each time it starts.
    over: Vec<Boot>,
    /// Boots that have probably ended: a new path led to another boot, and the machines of these
    /// boots did not answer a probe. The disk has reported the unflushed writes of these boots as
    /// lost.
    supposed: Vec<Boot>,
    /// For each boot, the value of `connections` when a path last connected to it.
    seen: Vec<(Boot, u64)>,
    connections: u64,
    /// Pairs of paths (twins) that once led to the same machine. Each pair is stored in both
    /// orders.
    twins: Vec<(usize, usize)>,
    /// Records of losses for a successor process, kept until a flush has reported them.
    marks: Vec<ControllerLife>,
}

impl Boots {
    /// Records that a path leads to this boot, and that all paths with the same boot are twins.
    fn meet(&mut self, path: usize, boot: Boot) {
        self.over.retain(|over| *over != boot);
        self.lives(boot);
        for index in 0..self.of_paths.len() {
            let (other, of_other) = self.of_paths[index];
            if of_other == boot && other != path && !self.twins.contains(&(path, other)) {
                self.twins.extend([(path, other), (other, path)]);
            }
        }
    }

    /// Records that a path is connected to a machine with this boot, so the boot has not ended.
    fn lives(&mut self, boot: Boot) {
        self.supposed.retain(|supposed| *supposed != boot);
        self.seen.retain(|(seen, _)| *seen != boot);
        self.connections += 1;
        self.seen.push((boot, self.connections));
        let surplus = self.seen.len().saturating_sub(limits::BOOTS);
        self.seen.drain(..surplus);
    }

    fn last_seen(&self, boot: Boot) -> u64 {
        self.seen.iter().find(|(seen, _)| *seen == boot).map_or(0, |(_, at)| *at)
    }

    /// Returns the boots that have ended if `path` now leads to boot `now`: the other boots of this
    /// path and of its twins.
    fn before(&self, path: usize, now: Boot) -> Vec<Boot> {
        let is_twin = |other| path == other || self.twins.contains(&(path, other));
        let others = self.of_paths.iter().filter(|(other, boot)| *boot != now && is_twin(*other));
        others.map(|(_, boot)| *boot).filter(|boot| !self.over.contains(boot)).collect()
    }

    /// Returns the boots that may have ended; none if `path` is not new. A new path may lead to any
    /// known machine after a reboot, so the list has all other boots that did not answer a probe.
    fn silent(&self, path: usize, now: Boot, answers: &[Answer]) -> Vec<Boot> {
        let lives = |boot| answers.iter().any(|answer| answer.boot == Some(boot));
        let others = self.of_paths.iter().map(|(_, boot)| *boot).filter(|_| self.is_new(path));
        others.filter(|boot| *boot != now && !lives(*boot) && !self.over.contains(boot)).collect()
    }

    /// Whether a machine may have lost the writes that it acknowledged during this boot.
    fn is_over(&self, boot: Boot) -> bool {
        self.over.contains(&boot) || self.supposed.contains(&boot)
    }

    /// Whether the path is new: neither this process nor a predecessor ever connected it.
    fn is_new(&self, path: usize) -> bool {
        self.of_paths.iter().all(|(other, _)| *other != path)
    }

    /// Returns the paths to probe before the disk can judge the connection of `path` to boot `now`.
    /// A machine has one boot at a time. So if another boot still answers, it belongs to another
    /// machine.
    fn doubts(&self, path: usize, now: Boot, answers: &[Answer]) -> Vec<usize> {
        let silent = self.silent(path, now, answers);
        // A failed probe is outdated if another path has connected to the same boot since: the boot
        // has not ended.
        let is_stale = |answer: &Answer, boot| {
            answer.boot.is_none() && self.last_seen(boot) > answer.connections
        };
        let is_asked = |other, boot| {
            let mut of_path = answers.iter().filter(|answer| answer.path == other);
            of_path.next_back().is_some_and(|answer| !is_stale(answer, boot))
        };
        let others = self.of_paths.iter().filter(|(_, boot)| silent.contains(boot));
        others.filter(|(other, boot)| !is_asked(*other, *boot)).map(|(other, _)| *other).collect()
    }
}

/// The result of probing a path's controller after another path connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) path: usize,
    /// The boot of the machine that answered; `None` if none answered.
    pub(super) boot: Option<Boot>,
    /// The value of [`Cache::connections`] before the probe.
    pub(super) connections: u64,
}

/// Whether acknowledged writes are lost, judged from the boot of a newly connected path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Meeting {
    /// Nothing is lost.
    Well,
    /// Acknowledged, unflushed writes may be lost.
    Lost,
    /// Whether writes are lost is unknown until these paths have been probed.
    Doubt(Vec<usize>),
}

impl Cache {
    fn boots(&self) -> MutexGuard<'_, Boots> {
        // A panic cannot leave this state half-changed, so ignore poisoning.
        self.boots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the target acknowledged a write, which may be only in the target's cache.
    pub(super) fn wrote(&self) {
        // Read the flag first and write it only if needed, so that the cores can keep sharing its
        // cache line.
        if !self.dirty.load(Ordering::SeqCst) {
            self.dirty.store(true, Ordering::SeqCst);
        }
    }

    /// Records a write that a controller acknowledged before the host lost the controller. Returns
    /// whether the write may be lost.
    pub(super) fn wrote_before(&self, life: &ControllerLife) -> bool {
        let is_over = |origin: &ControllerOrigin| self.boots().is_over(origin.boot);
        let lost = life.origin.as_ref().is_some_and(is_over);
        match lost {
            true => self.lost.store(true, Ordering::SeqCst),
            false => self.wrote(),
        }
        lost
    }

    /// Records a submitted flush. Returns whether the flush has data to make durable.
    pub(super) fn flush_begins(&self) -> bool {
        // Count the flush before clearing `dirty`, so that another thread never sees both as unset.
        self.flushing.fetch_add(1, Ordering::SeqCst);
        let carries = self.dirty.swap(false, Ordering::SeqCst);
        if !carries {
            self.flushing.fetch_sub(1, Ordering::SeqCst);
        }
        carries
    }

    pub(super) fn flush_ends(&self, carries: bool, result: Result<(), BlockError>) {
        if carries {
            if result.is_err() {
                self.dirty.store(true, Ordering::SeqCst);
            }
            self.flushing.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns whether the disk must report a successful flush as failed. If so, the caller must
    /// call [`Cache::was_told`] when the user has received this error.
    pub(super) fn take_loss(&self) -> bool {
        let is_silent = os::has_mistake("host: a flush does not report a lost cache");
        !is_silent && self.lost.load(Ordering::SeqCst) && self.lost.swap(false, Ordering::SeqCst)
    }

    /// Records that the user has received the error of the failed flush.
    pub(super) fn was_told(&self) {
        self.told.store(true, Ordering::SeqCst);
    }

    /// Takes over the acknowledged writes of a process that died.
    pub(super) fn inherit(&self, path: Option<usize>, life: &ControllerLife) {
        let Some(origin) = life.origin else { return };
        let mut boots = self.boots();
        if life.is_mark() {
            boots.marks.push(life.clone());
            self.lost.store(true, Ordering::SeqCst);
        } else if origin.knows_boot() {
            // Keep the boot even if the disk no longer has this path, or has it with another URL.
            boots.of_paths.push((path.unwrap_or(NO_PATH), origin.boot));
            self.dirty.store(true, Ordering::SeqCst);
        }
    }

    /// Decides whether a path that now leads to this controller reveals lost writes. `answers` are
    /// the results of probes of other paths. If writes may be lost, `record` stores the loss first.
    pub(super) fn connected(
        &self,
        path: usize,
        life: &ControllerLife,
        answers: &[Answer],
        record: impl FnOnce(&ControllerLife) -> Result<(), Error>,
    ) -> Result<Meeting, Error> {
        let Some(origin) = life.origin.filter(ControllerOrigin::knows_boot) else {
            return Ok(Meeting::Well);
        };
        let mut boots = self.boots();
        let doubts = boots.doubts(path, origin.boot, answers);
        if !doubts.is_empty() {
            return Ok(Meeting::Doubt(doubts));
        }
        let silent = boots.silent(path, origin.boot, answers);
        boots.meet(path, origin.boot);
        // Include the boots of twin paths, which lead to the same machine: after a reboot, only one
        // of the twins may reconnect.
        let over = boots.before(path, origin.boot);
        let unflushed =
            self.dirty.load(Ordering::SeqCst) || self.flushing.load(Ordering::SeqCst) > 0;
        let lost =
            silent.iter().chain(&over).find(|boot| unflushed && !boots.supposed.contains(boot));
        if let Some(&boot) = lost {
            let mark = life.mark(boot);
            record(&mark)?;
            boots.marks.push(mark);
            self.lost.store(true, Ordering::SeqCst);
            tracing::error!(
                path = %life.url,
                "the target's machine restarted, and may have lost writes that it acknowledged \
                 since the last flush: the next flush fails, so that the disk's user notices; \
                 check the data that were written last"
            );
        }
        let meeting = if lost.is_some() { Meeting::Lost } else { Meeting::Well };
        boots.of_paths.retain(|(other, _)| *other != path);
        boots.of_paths.push((path, origin.boot));
        boots.supposed.retain(|boot| !over.contains(boot));
        for boot in silent {
            if !boots.supposed.contains(&boot) {
                boots.supposed.push(boot);
            }
        }
        let surplus = boots.supposed.len().saturating_sub(limits::BOOTS);
        boots.supposed.drain(..surplus);
        boots.over.extend(over);
        let surplus = boots.over.len().saturating_sub(limits::BOOTS);
        boots.over.drain(..surplus);
        Ok(meeting)
    }

    pub(super) fn connections(&self) -> u64 {
        self.boots().connections
    }

    /// Records that a queue is about to use a path to this controller. The controller's boot has
    /// therefore not ended, even if probes had no answer.
    pub(super) fn published(&self, life: &ControllerLife) {
        if let Some(origin) = life.origin.filter(ControllerOrigin::knows_boot) {
            self.boots().lives(origin.boot);
        }
    }

    /// Whether the user has received the error of a loss, so that the disk can delete its records.
    pub(super) fn has_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }

    pub(super) fn take_told(&self) -> Vec<ControllerLife> {
        match self.told.swap(false, Ordering::SeqCst) {
            // If another loss has occurred since, keep the records until a flush has reported it.
            true if !self.lost.load(Ordering::SeqCst) => std::mem::take(&mut self.boots().marks),
            _ => Vec::new(),
        }
    }
}

impl ControllerLife {
    /// Returns a record that the controller's machine may have lost writes of the boot `boot`.
    fn mark(&self, boot: Boot) -> ControllerLife {
        let origin = Some(ControllerOrigin { place: [0; 16], boot });
        ControllerLife { url: self.url.clone(), name: None, quiesce_time: Duration::ZERO, origin }
    }

    /// Whether `mark` made this record: it describes a loss instead of a controller, and has no
    /// commands for which the disk must wait.
    pub(super) fn is_mark(&self) -> bool {
        self.name.is_none() && self.quiesce_time.is_zero() && self.origin.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(boot: u8) -> ControllerLife {
        let origin = Some(ControllerOrigin { place: [9; 16], boot: [boot; 16] });
        let url = "nvme+tcp://a/nqn.2024-01.example:a".parse().expect("a URL");
        ControllerLife { url, name: None, quiesce_time: Duration::MAX, origin }
    }

    /// Connects a path while all other paths answer probes. Returns the number of recorded losses.
    fn connect(cache: &Cache, path: usize, boot: u8) -> usize {
        connect_beside(cache, path, boot, true)
    }

    fn connect_beside(cache: &Cache, path: usize, boot: u8, lives: bool) -> usize {
        let of_paths = cache.boots().of_paths.clone();
        let connections = cache.connections();
        let answer =
            |(path, boot)| Answer { path, boot: Some(boot).filter(|_| lives), connections };
        let answers: Vec<_> = of_paths.into_iter().map(answer).collect();
        let mut records = 0;
        let record = |mark: &ControllerLife| {
            assert!(mark.is_mark());
            records += 1;
            Ok(())
        };
        let meeting = cache.connected(path, &life(boot), &answers, record).expect("recorded");
        assert_eq!(meeting, if records > 0 { Meeting::Lost } else { Meeting::Well });
        records
    }

    fn flush(cache: &Cache) -> bool {
        let carries = cache.flush_begins();
        cache.flush_ends(carries, Ok(()));
        !cache.take_loss()
    }

    #[test]
    fn one_flush_fails_after_an_unflushed_write_was_lost() {
        let cache = Cache::default();
        assert_eq!((connect(&cache, 0, 1), connect(&cache, 1, 1)), (0, 0));
        // A flush has made all writes durable.
        cache.wrote();
        assert!(flush(&cache));
        assert_eq!(connect(&cache, 0, 2), 0);
        assert!(flush(&cache));
        // A write is not flushed, and two paths lead to the same machine.
        cache.wrote();
        assert_eq!((connect(&cache, 0, 3), connect(&cache, 1, 3)), (1, 0));
        assert!(cache.take_told().is_empty());
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        assert!(cache.take_told().is_empty(), "an error reaches the user too early");
        cache.was_told();
        assert_eq!((cache.take_told().len(), cache.take_told().len()), (1, 0));
    }

    /// The disk notices the loss of writes over one path even if only the other path reconnects.
    #[test]
    fn a_reboot_is_noticed_on_any_path_to_the_machine() {
        let cache = Cache::default();
        connect(&cache, 0, 1);
        connect(&cache, 1, 1);
        assert_eq!(connect(&cache, 0, 2), 0);
        cache.wrote();
        assert_eq!(connect(&cache, 1, 3), 1);
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        // The machine of another path has a new boot, which proves nothing about the first machine.
        connect(&cache, 2, 9);
        cache.wrote();
        assert_eq!(connect(&cache, 2, 10), 1);
        cache.wrote();
        assert_eq!(connect(&cache, 0, 3), 0);
    }

    /// The disk does not know to which machine a path led before its first connection. So the disk
    /// probes whether the machines of other paths are alive.
    #[test]
    fn a_new_path_reports_a_reboot_unless_another_path_is_alive() {
        let inherited = || {
            let cache = Cache::default();
            cache.inherit(Some(1), &life(1));
            cache
        };
        let cache = inherited();
        assert_eq!((connect_beside(&cache, 0, 2, false), connect(&cache, 1, 2)), (1, 0));
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        // The machine still answers with its old boot, so the new path leads to another machine.
        let cache = inherited();
        assert_eq!((connect(&cache, 1, 1), connect(&cache, 0, 2)), (0, 0));
        assert!(flush(&cache));
        // The machine was alive at first, and rebooted before the other path connected.
        let cache = inherited();
        assert_eq!((connect(&cache, 1, 1), connect_beside(&cache, 0, 2, false)), (0, 1));
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        // Repeat this case without a predecessor.
        let cache = Cache::default();
        connect(&cache, 1, 1);
        cache.wrote();
        assert_eq!((connect_beside(&cache, 0, 2, false), connect(&cache, 1, 2)), (1, 0));
        // Both paths lead to the same machine, and the cache remembers that they do.
        let cache = inherited();
        assert_eq!((connect(&cache, 0, 1), connect_beside(&cache, 0, 2, false)), (0, 1));
    }

    #[test]
    fn other_paths_are_probed_only_for_an_unknown_path() {
        let cache = Cache::default();
        let meet = |path, boot, answers: &[Answer]| {
            cache.connected(path, &life(boot), answers, |_| Ok(())).expect("recorded")
        };
        let silent = |path| Answer { path, boot: None, connections: cache.connections() };
        let answer = Answer { boot: Some([1; 16]), ..silent(1) };
        assert_eq!(meet(0, 1, &[]), Meeting::Well);
        assert_eq!(meet(1, 1, &[]), Meeting::Well, "a path leads to the same boot");
        cache.wrote();
        assert_eq!(meet(2, 2, &[]), Meeting::Doubt(vec![0, 1]));
        assert_eq!(meet(2, 2, &[silent(0)]), Meeting::Doubt(vec![1]));
        assert_eq!(
            meet(2, 2, &[silent(0), answer]),
            Meeting::Well,
            "the answer of one path suffices"
        );
        assert_eq!(meet(2, 3, &[]), Meeting::Lost, "the path led to an older boot");
        let elsewhere = Answer { path: 0, boot: Some([9; 16]), ..silent(0) };
        assert_eq!(
            meet(3, 3, &[elsewhere, silent(1)]),
            Meeting::Lost,
            "the old boots do not answer"
        );
    }

    /// The disk may report writes as lost because it supposes a reboot that did not occur. If the
    /// machine then really reboots, the disk must report later writes as lost, too.
    #[test]
    fn a_supposed_reboot_is_reported_once_and_forgotten_if_it_did_not_occur() {
        let supposed = || {
            let cache = Cache::default();
            connect(&cache, 1, 1);
            // No write was lost, whether or not the machine rebooted.
            assert_eq!(connect_beside(&cache, 0, 2, false), 0);
            cache.wrote();
            cache
        };
        // Both paths lead to one machine, which rebooted before the write, so the write is safe.
        assert_eq!(connect(&supposed(), 1, 2), 0);
        // The machine had not rebooted, and reboots later. The disk also notices this if a queue
        // was about to use the path in between.
        let cache = supposed();
        assert_eq!((connect(&cache, 1, 1), connect(&cache, 1, 3)), (0, 1));
        let cache = supposed();
        cache.published(&life(1));
        assert_eq!(connect(&cache, 1, 2), 1);
        // The machine rebooted, but the disk did not use it before the next reboot: no write is
        // lost.
        assert_eq!(connect(&supposed(), 1, 3), 0);
        // The machine may have lost a write whose acknowledgement the disk had not processed yet.
        assert!(supposed().wrote_before(&life(1)));
    }

    #[test]
    fn a_probe_is_repeated_after_a_newer_connection() {
        let cache = Cache::default();
        connect(&cache, 0, 1);
        let before = Answer { path: 0, boot: None, connections: cache.connections() };
        cache.published(&life(1));
        let meet = |answers: &[Answer]| {
            cache.connected(1, &life(2), answers, |_| Ok(())).expect("recorded")
        };
        assert_eq!(meet(&[before]), Meeting::Doubt(vec![0]));
        let after = Answer { boot: Some([1; 16]), connections: cache.connections(), ..before };
        assert_eq!(meet(&[before, after]), Meeting::Well);
        assert!(!cache.wrote_before(&life(1)), "a boot that has not ended counts as lost");
    }

    /// The disk tracks a predecessor process's acknowledged writes even if it does not know the
    /// path of these writes.
    #[test]
    fn a_recorded_boot_counts_even_if_its_path_is_unknown() {
        let cache = Cache::default();
        cache.inherit(None, &life(1));
        assert_eq!(connect_beside(&cache, 0, 1, false), 0);
        assert!(flush(&cache), "a flush on the same boot succeeds");
        let cache = Cache::default();
        cache.inherit(None, &life(1));
        assert_eq!(connect_beside(&cache, 0, 2, false), 1);
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
    }

    #[test]
    fn writes_of_a_flush_in_progress_are_not_durable_yet() {
        let cache = Cache::default();
        connect(&cache, 0, 1);
        cache.wrote();
        let carries = cache.flush_begins();
        assert_eq!(connect(&cache, 0, 2), 1);
        cache.flush_ends(carries, Ok(()));
        assert!(cache.take_loss());
        // A failed flush makes no write durable.
        cache.wrote();
        let carries = cache.flush_begins();
        cache.flush_ends(carries, Err(BlockError::Disconnected));
        assert_eq!(connect(&cache, 0, 3), 1);
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
    }

    #[test]
    fn a_successor_fails_the_flush_of_a_dead_process() {
        let url = life(0).url;
        let cache = Cache::default();
        cache.inherit(Some(0), &life(1));
        assert_eq!(connect(&cache, 0, 1), 0);
        assert!(flush(&cache), "a flush on the same boot succeeds");
        let cache = Cache::default();
        cache.inherit(Some(0), &life(1));
        assert_eq!(connect(&cache, 0, 2), 1);
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        let cache = Cache::default();
        cache.inherit(None, &ControllerLife { url, ..life(2).mark([1; 16]) });
        assert_eq!(connect(&cache, 0, 2), 0);
        assert_eq!((flush(&cache), flush(&cache)), (false, true));
        cache.was_told();
        assert_eq!(cache.take_told().len(), 1);
    }
}
