//! Tests with legs that may still execute writes of an earlier process.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_volumes::{LegSource, LegState, Mirror, MirrorOptions, Taking, limits};

const LEG_BYTES: u64 = 8 * limits::MIN_REGION_BYTES + limits::RESERVED_BYTES;

/// A leg whose [`LegSource::settle`] fails `questions` times, and then succeeds.
struct Late {
    name: &'static str,
    memory: Arc<Mem>,
    questions: AtomicUsize,
}

impl Late {
    fn new(name: &'static str) -> Arc<Late> {
        let memory = Arc::new(Mem::new(512, LEG_BYTES).unwrap());
        Arc::new(Late { name, memory, questions: AtomicUsize::new(0) })
    }

    fn asks(&self, questions: usize) {
        self.questions.store(questions, Ordering::SeqCst);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut data = vec![0; LEG_BYTES as usize];
        Blocking::new(&*self.memory).unwrap().read(0, &mut data).unwrap();
        data
    }
}

impl LegSource for Late {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn settle(&self) -> Result<(), String> {
        let left = |left: usize| left.checked_sub(1);
        let asked = self.questions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
        asked.map_or(Ok(()), |_| Err("something may come".to_owned()))
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        Ok(Arc::clone(&self.memory) as _)
    }
}

fn open(legs: &[Arc<Late>; 2], taking: Taking) -> Mirror {
    let options = MirrorOptions { taking, ..MirrorOptions::default() };
    Mirror::open(legs.iter().map(|leg| Arc::clone(leg) as _).collect(), options).unwrap()
}

fn write(mirror: &Mirror, value: u8) {
    Blocking::new(mirror).unwrap().write(0, &[value; 512]).unwrap();
}

/// Two legs to which the mirror has written once before it was closed.
fn used() -> [Arc<Late>; 2] {
    let legs = [Late::new("one"), Late::new("two")];
    let mirror = open(&legs, Taking::Empty);
    support::wait_until(|| support::is_whole(&mirror));
    write(&mirror, 1);
    legs
}

#[test]
fn a_leg_with_outstanding_writes_starts_as_out_and_is_not_written() {
    for late in [0, 1] {
        let legs = used();
        legs[late].asks(usize::MAX);
        let before = legs[late].bytes();
        let mirror = open(&legs, Taking::Members);
        write(&mirror, 2);
        let found = mirror.status().legs[late].clone();
        assert_eq!(
            (found.state, found.reason.as_deref()),
            (LegState::Out, Some("something may come"))
        );
        assert!(legs[late].bytes() == before, "the leg was written");
        assert_eq!(legs[1 - late].bytes()[0], 2);
        // When the leg returns, copying undoes the late write.
        Blocking::new(&*legs[late].memory).unwrap().write(0, &[9; 512]).unwrap();
        legs[late].asks(0);
        support::wait_until(|| support::is_whole(&mirror));
        assert_eq!(legs[late].bytes()[0], 2);
    }
}

#[test]
fn a_mirror_waits_for_one_leg_with_all_data() {
    let legs = used();
    legs[0].asks(usize::MAX);
    legs[1].asks(3);
    let mirror = open(&legs, Taking::Members);
    assert_eq!(legs[1].questions.load(Ordering::SeqCst), 0);
    let states = mirror.status().legs.into_iter().map(|leg| leg.state);
    assert_eq!(states.collect::<Vec<_>>(), [LegState::Out, LegState::InSync]);
    write(&mirror, 2);
    assert_eq!([legs[0].bytes()[0], legs[1].bytes()[0]], [1, 2]);
    // If both legs may get late writes, the mirror waits until one leg cannot.
    drop(mirror);
    legs[0].asks(0);
    let mirror = open(&legs, Taking::Members);
    support::wait_until(|| support::is_whole(&mirror));
    drop(mirror);
    legs.iter().for_each(|leg| leg.asks(3));
    let mirror = open(&legs, Taking::Members);
    assert!(support::is_whole(&mirror));
    // The first leg of a new mirror provides the data.
    let new = [Late::new("three"), Late::new("four")];
    new.iter().for_each(|leg| leg.asks(3));
    let mirror = open(&new, Taking::Empty);
    support::wait_until(|| support::is_whole(&mirror));
}
