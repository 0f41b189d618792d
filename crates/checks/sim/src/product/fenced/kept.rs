//! The file in which the target stores reservations. It outlives the process of the target.

use farblock_reactor::os;
use farblock_target::ReservationStore;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LONGEST: Duration = Duration::from_millis(20);
const FAILS_ONE_IN: u8 = 8;

/// The simulated file, which successive target processes share.
#[derive(Clone, Default)]
pub(in crate::product) struct Kept(Arc<Mutex<Place>>);

#[derive(Default)]
struct Place {
    text: String,
    /// The value that is being stored.
    next: Option<String>,
    /// The number of earlier processes that have used the file.
    generation: u32,
    fails: bool,
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::product) fn store(&self) -> Arc<dyn ReservationStore> {
        Arc::new(Store { kept: self.clone(), generation: self.lock().generation })
    }

    /// Ends the process that uses the file. If it is storing a value, chance decides whether the
    /// value is stored.
    pub(in crate::product) fn orphan(&self) {
        let mut place = self.lock();
        place.generation += 1;
        if let Some(next) = place.next.take()
            && random().is_multiple_of(2)
        {
            place.text = next;
        }
    }

    pub(super) fn set_fails(&self, fails: bool) {
        self.lock().fails = fails;
    }
}

struct Store {
    kept: Kept,
    generation: u32,
}

impl ReservationStore for Store {
    fn load(&self) -> io::Result<String> {
        Ok(self.kept.lock().text.clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        let gone = || io::Error::other("the process is gone");
        let mut place = self.kept.lock();
        if place.generation != self.generation {
            return Err(gone());
        }
        place.next = Some(text.to_owned());
        drop(place);
        os::sleep(LONGEST * u32::from(random()) / 255);
        let mut place = self.kept.lock();
        if place.generation != self.generation {
            return Err(gone());
        }
        let next = place.next.take().expect("only one thread saves text");
        let fails = place.fails && random().is_multiple_of(FAILS_ONE_IN);
        if !fails || random().is_multiple_of(2) {
            place.text = next;
        }
        if fails { Err(io::Error::other("the text cannot be saved")) } else { Ok(()) }
    }
}

/// A byte from the random number generator of the simulated world.
fn random() -> u8 {
    let mut byte = [0];
    assert!(os::fill_simulated(&mut byte), "this code runs in a simulated world");
    byte[0]
}
