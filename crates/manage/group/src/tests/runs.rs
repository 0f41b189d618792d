//! Runs of many seeds, and of deliberate mistakes.

use super::hosts::HOSTS;
use super::process::Condition;
use super::scenarios::{
    a_fence_fails_and_the_next_succeeds, a_leader_dies_with_writes_in_flight, a_release_is_late,
    a_suspect_leader_takes_another_group,
};
use super::world::{Counts, MS, World};
use crate::mistake::make_mistake;

/// The time with faults, and the time without faults that follows.
const FAULTY: u64 = 20_000 * MS;
const CALM: u64 = 20_000 * MS;
/// The last part of the time without faults, in which all hosts must succeed.
const PROGRESS: u64 = 4_000 * MS;

/// Runs a seed.
///
/// # Errors
/// The first wrong result that the oracle, the checks at the disks and hosts, found.
fn run(seed: u64) -> Result<Counts, String> {
    let mut world = World::new(seed);
    world.run(FAULTY);
    world.calm();
    world.run(FAULTY + CALM - PROGRESS);
    let before = world.disks.values().map(|disk| disk.begun).collect::<Vec<_>>();
    let done: Vec<_> = world.hosts.iter().map(|host| host.done).collect();
    world.run(FAULTY + CALM);
    if let Some(wrong) = world.wrong {
        return Err(wrong);
    }
    let after = world.disks.values().map(|disk| disk.begun).collect::<Vec<_>>();
    if (0..HOSTS).any(|host| world.hosts[host].done < done[host] + 3) {
        let ops: Vec<_> = world.hosts.iter().map(|host| &host.op).collect();
        return Err(format!("hosts do not succeed after all faults: {before:?} {after:?} {ops:?}"));
    }
    Ok(world.counts)
}

impl World {
    /// Ends all faults.
    fn calm(&mut self) {
        for fault in self.faults.clone() {
            self.heal(fault);
        }
        self.is_calm = true;
        for number in 0..self.processes.len() {
            if self.processes[number].condition == Condition::Stopped {
                self.resume(number);
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn a_group_survives_two_faults_at_a_time() {
    let seeds = match (number("GROUP_SEED"), number("GROUP_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => {
            let first = number("GROUP_FIRST").unwrap_or(0);
            first..first + seeds.unwrap_or(25)
        }
    };
    let (mut all, mut bad) = (Counts::default(), Vec::new());
    let count = seeds.end - seeds.start;
    for seed in seeds {
        match run(seed) {
            Ok(counts) => {
                all.done += counts.done;
                all.takeovers += counts.takeovers;
                all.answers += counts.answers;
                all.conflicts += counts.conflicts;
                all.refused += counts.refused;
                all.faults += counts.faults;
                all.held_over += counts.held_over;
                all.released += counts.released;
                all.suspicions += counts.suspicions;
            }
            Err(wrong) => {
                eprintln!("GROUP_SEED={seed}: {wrong}");
                bad.push(seed);
            }
        }
    }
    eprintln!("{count} seeds, {} bad: {all:?}", bad.len());
    assert!(bad.is_empty(), "GROUP_SEED=N repeats one of these seeds: {bad:?}");
    assert!(all.done > 100 * count && all.takeovers > count && all.answers > count, "{all:?}");
    assert!(all.released > count && all.suspicions > count, "{all:?}");
}

#[test]
fn a_seed_repeats_its_run() {
    assert_eq!(run(3), run(3));
}

/// Deliberate mistakes, and a seed with which the oracle finds each. After a change of the
/// simulation, `GROUP_MISTAKE_SEEDS=1000` finds new seeds.
const MISTAKES: &[(&str, u64)] = &[
    ("the lease of a victim is not waited out", 6),
    ("a permit lasts three holds", 0),
    ("a takeover does not compare", 17),
    ("a leader does not fence", 10),
    ("a leader does not wait for the barrier", 17),
    ("a hand-over does not wait for the operations in flight", 6),
    ("every leader holds over", 10),
    ("a renewed lease permits I/O", 59),
    ("a leader keeps a disk that it cannot open", 87),
    ("a preempt is answered at its commit", 0),
    ("a report shows a change that is not in force", 1),
    ("a report reads the member's own copy", 0),
];

#[test]
fn the_oracle_finds_deliberate_mistakes() {
    let most = number("GROUP_MISTAKE_SEEDS");
    let only = std::env::var("GROUP_MISTAKE").ok();
    let mut missed = Vec::new();
    for (mistake, seed) in MISTAKES {
        if only.as_deref().is_some_and(|only| !mistake.contains(only)) {
            continue;
        }
        let mut seeds = most.map_or(*seed..seed + 1, |most| 0..most);
        make_mistake(Some(mistake));
        let found = seeds.find_map(|seed| run(seed).err().map(|wrong| (seed, wrong)));
        make_mistake(None);
        match found {
            Some((seed, wrong)) => eprintln!("{mistake}: seed {seed}: {wrong}"),
            None => missed.push(mistake),
        }
    }
    assert!(missed.is_empty(), "the oracle does not find: {missed:?}");
}

#[test]
fn the_oracle_finds_forgotten_victims() {
    make_mistake(Some("a second takeover forgets the victims of the first"));
    let (wrong, _) = a_fence_fails_and_the_next_succeeds();
    make_mistake(None);
    assert!(wrong.is_some_and(|wrong| wrong.contains("late write")));
}

#[test]
fn the_oracle_finds_wrong_uses_of_suspicions() {
    for mistake in ["the proof of a suspect permits I/O", "an old suspicion counts"] {
        make_mistake(Some(mistake));
        let wrong = a_suspect_leader_takes_another_group();
        make_mistake(None);
        assert!(wrong.is_some_and(|wrong| wrong.contains("two writers")), "{mistake}");
    }
}

#[test]
fn the_oracle_finds_wrong_releases() {
    make_mistake(Some("the watchdog does not wait"));
    let early = a_leader_dies_with_writes_in_flight();
    make_mistake(Some("a late release compares nothing"));
    let late = a_release_is_late();
    make_mistake(None);
    assert!(early.is_some_and(|wrong| wrong.contains("late write")));
    assert!(late.is_some_and(|wrong| wrong.contains("two writers")));
}
