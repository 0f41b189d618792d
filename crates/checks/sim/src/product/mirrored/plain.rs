//! A plain disk of a target, while another program changes the file of the disk.
//!
//! | change of the file | report of the target |
//! |---|---|
//! | it is truncated | reads and writes of missing blocks fail, and no write extends it again |
//! | it is truncated and extended within a second | nothing: its size is the same |
//! | an older copy overwrites it | nothing: only the user knows the right contents |
//! | it grows | a larger namespace |
//!
//! After a truncation, a read fails or returns data that the [model](super::super::model) allows.

use super::legs::Leg;
use super::user::User;
use super::{GONE_TIME, IO_BOUND, Named, Outcome, memory};
use crate::product::model::{BLOCK_BYTES, BLOCKS};
use farblock_random::Random;
use farblock_reactor::os;
use farblock_reactor::sim::{DiskFaults, World};
use std::time::Duration;

/// Runs the disk of a seed.
///
/// # Panics
/// Panics if a check fails. The message contains the seed.
pub fn run(seed: u64) -> Outcome {
    let _named = Named { seed, test: "plain_disks_survive_changes_of_their_file" };
    let world = World::enter(seed);
    let (outcome, machines) = cut(&world, Random::new(Random::mix(&[seed, 12])));
    memory::check_end(machines);
    assert_eq!(world.threads(), Vec::<String>::new(), "threads are left");
    outcome
}

fn cut(world: &World, mut random: Random) -> (Outcome, Vec<u32>) {
    let mut leg = Leg::plain(world, DiskFaults::default());
    let disk = leg.source().open().expect("no fault occurs yet");
    let mut user = User::new(world, &*disk);
    let mut outcome = Outcome::default();
    pass(world, &mut user, &mut random, &mut outcome);
    assert_eq!(outcome.failed, 0, "an operation failed without a fault");
    let end = random.below(BLOCKS);
    leg.set_size(world, end as usize * BLOCK_BYTES);
    outcome.faults += 1;
    if random.one_in(2) {
        // Write to the last block, so that the extended file has its old length.
        user.write(BLOCKS - 1);
    }
    pass(world, &mut user, &mut random, &mut outcome);
    assert!(outcome.failed > 0, "no operation failed; the disk ends at {end}");
    drop(user);
    drop(disk);
    leg.stop();
    os::sleep(GONE_TIME);
    outcome.trace = world.trace();
    (outcome, leg.machine().into_iter().chain([0]).collect())
}

/// Uses the disk for a while, and reads the whole disk.
fn pass(world: &World, user: &mut User<'_>, random: &mut Random, outcome: &mut Outcome) {
    for _ in 0..200 {
        user.submit(random);
        turn(world, user, Duration::from_micros(random.below(20_000)), outcome);
    }
    for lba in (0..BLOCKS).step_by(super::MOST_BLOCKS as usize) {
        while user.in_flight() > 0 {
            turn(world, user, Duration::from_millis(20), outcome);
        }
        user.read(lba);
    }
    while user.in_flight() > 0 {
        turn(world, user, Duration::from_millis(20), outcome);
    }
}

fn turn(world: &World, user: &mut User<'_>, wait: Duration, outcome: &mut Outcome) {
    for ended in user.turn(wait) {
        if let Some(wrong) = ended.wrong {
            panic!("at {:?}, operation {}: {wrong}", world.elapsed(), ended.token);
        }
        match ended.result {
            Ok(()) => outcome.succeeded += 1,
            Err(_) => outcome.failed += 1,
        }
    }
    let late = user.older_than(world.elapsed().saturating_sub(IO_BOUND));
    assert!(late.is_none(), "an operation does not end: {late:?}");
}
