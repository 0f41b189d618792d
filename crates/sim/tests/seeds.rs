//! Runs over many seeds. A failure names its seed: `SIM_SEED=… cargo test -p farblock-sim`
//! repeats it.

use farblock_proto::tcp::Digests;
use farblock_sim::{Faults, Random, World};
use std::time::Duration;

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SIM_SEED") {
        Ok(text) => vec![text.parse().expect("SIM_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

fn run(seed: u64, faults: Faults, operations: u64) -> World {
    struct Named(u64, Faults);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with SIM_SEED={} {:?}", self.0, self.1);
            }
        }
    }
    let _named = Named(seed, faults);
    let mut world = World::new(seed, faults);
    world.run(operations);
    world
}

const DIGESTS: [Digests; 4] = [Digests::NONE, Digests::HEADER, Digests::DATA, Digests::BOTH];

#[test]
fn a_quiet_network() {
    for seed in seeds(40) {
        let faults = Faults {
            network_delay: Duration::ZERO,
            disk_delay: Duration::ZERO,
            cut_one_in: 0,
            digests: DIGESTS[seed as usize % 4],
        };
        assert_eq!(run(seed, faults, 300).connects, 1);
    }
}

#[test]
fn delays_splits_and_late_disks() {
    for seed in seeds(60) {
        let mut random = Random::new(seed ^ 0xde1a);
        let faults = Faults {
            network_delay: Duration::from_micros(random.below(100_000)),
            disk_delay: Duration::from_micros(random.below(300_000)),
            cut_one_in: 0,
            digests: DIGESTS[seed as usize % 4],
        };
        assert_eq!(run(seed, faults, 300).connects, 1);
    }
}

#[test]
fn cuts_at_any_moment() {
    let mut connects = 0;
    for seed in seeds(120) {
        let mut random = Random::new(seed ^ 0xc07);
        let faults = Faults {
            network_delay: Duration::from_micros(random.below(5_000)),
            disk_delay: Duration::from_micros(random.below(20_000)),
            cut_one_in: 20 + random.below(400),
            digests: DIGESTS[seed as usize % 4],
        };
        connects += run(seed, faults, 200).connects;
    }
    assert!(connects > 120, "the cuts cut something");
}
