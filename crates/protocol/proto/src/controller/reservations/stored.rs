//! The state of a namespace's reservations as text, to be kept through a power loss.
//!
//! ```text
//! farblock reservations 1
//! generation 7
//! reservation 1 00112233445566778899aabbccddeeff
//! host 00112233445566778899aabbccddeeff 1f
//! ```
//!
//! All numbers but the generation and the type are hexadecimal. A reader that does not know a line
//! refuses all of it: half a state would let somebody write who must not.

use super::HostId;
use super::state::{Held, Registrant, Reservations};
use crate::controller::limits;
use alloc::format;
use alloc::string::String;
use farblock_wire::reservation::ReservationType;

const HEAD: &str = "farblock reservations 1";

impl Reservations {
    /// What to keep: nothing if the state does not persist.
    #[must_use]
    pub fn to_text(&self) -> String {
        if !self.persist {
            return String::new();
        }
        let hex = |host: &HostId| format!("{:032x}", u128::from_be_bytes(*host));
        let mut text = format!("{HEAD}\ngeneration {}\n", self.generation);
        if let Some(held) = &self.held {
            text += &format!("reservation {} {}\n", held.rtype.0, hex(&held.holder));
        }
        for registrant in &self.registrants {
            text += &format!("host {} {:x}\n", hex(&registrant.host), registrant.key);
        }
        text
    }

    /// Reads what was kept. `None`: it is not what [`Self::to_text`] writes.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut state = Self::default();
        if text.is_empty() {
            return Some(state);
        }
        let mut lines = text.strip_suffix('\n')?.split('\n');
        lines.next().filter(|head| *head == HEAD)?;
        state.persist = true;
        state.generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
        for line in lines {
            let mut words = line.split(' ');
            let (kind, one, two) = (words.next()?, words.next()?, words.next()?);
            match kind {
                "reservation" if state.held.is_none() => {
                    let rtype = ReservationType(one.parse().ok()?);
                    rtype.name().filter(|_| rtype != ReservationType::NONE)?;
                    state.held = Some(Held { rtype, holder: host(two)? });
                }
                "host" => {
                    let key = u64::from_str_radix(two, 16).ok().filter(|key| *key != 0)?;
                    state.registrants.push(Registrant { host: host(one)?, key });
                }
                _ => return None,
            }
            words.next().is_none().then_some(())?;
        }
        state.is_sound().then_some(state)
    }

    fn is_sound(&self) -> bool {
        let hosts = || self.registrants.iter().map(|registrant| registrant.host);
        let distinct = hosts().enumerate().all(|(place, host)| {
            host != [0; 16] && !hosts().take(place).any(|other| other == host)
        });
        let held = self.held.is_none_or(|held| match held.rtype {
            ReservationType::WRITE_EXCLUSIVE_ALL | ReservationType::EXCLUSIVE_ACCESS_ALL => {
                !self.registrants.is_empty()
            }
            _ => hosts().any(|host| host == held.holder),
        });
        distinct && held && self.registrants.len() <= limits::MAX_REGISTRANTS
    }
}

fn host(text: &str) -> Option<HostId> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}
