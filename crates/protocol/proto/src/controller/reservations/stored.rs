//! The text form of a namespace's reservations, which the target stores durably.
//!
//! ```text
//! farblock reservations 1
//! generation 7
//! reservation 1 00112233445566778899aabbccddeeff
//! host 00112233445566778899aabbccddeeff 1f
//! ```
//!
//! All numbers are hexadecimal, except the generation and the type. If a registrant has proved its
//! name, the first line states format 2, so that older versions of farblock refuse the text. Format
//! 2 is shorter, because some file systems have little room. In it, a registrant's line contains,
//! in base 36, its identifier, its key, and the hash of its name if the host has proved it.
//!
//! ```text
//! h 54v5h7phl5wc4e458l6ckxr v 25snvgpyuided
//! ```
//!
//! farblock refuses the whole text if it does not recognise a line. With only a part of the state,
//! the target might let a host write without permission.

use super::HostId;
use super::state::{Held, Registrant, Reservations};
use crate::controller::identifiers::HostMark;
use crate::controller::limits;
use alloc::format;
use alloc::string::String;
use farblock_wire::reservation::ReservationType;

const HEAD: &str = "farblock reservations 1";
const HEAD_WITH_MARKS: &str = "farblock reservations 2";
/// The base of the numbers in the short form.
const BASE: u32 = 36;

impl Reservations {
    /// Returns the text to store; empty if the state does not persist.
    #[must_use]
    pub fn to_text(&self) -> String {
        if self.persist { self.lines() } else { String::new() }
    }

    /// Returns the text for targets that share the reservations. The first line states whether the
    /// reservations persist through a power loss; the rest is as in [`Self::to_text`].
    #[must_use]
    pub fn to_shared_text(&self) -> String {
        format!("persist {}\n{}", u8::from(self.persist), self.lines())
    }

    /// Reads the text of [`Self::to_shared_text`]. `None`: the text is not from that function.
    #[must_use]
    pub fn from_shared_text(text: &str) -> Option<Self> {
        let (head, lines) = text.split_once('\n')?;
        let persist = match head {
            "persist 0" => false,
            "persist 1" => true,
            _ => return None,
        };
        let state = Self::from_text(lines).filter(|_| !lines.is_empty())?;
        Some(Self { persist, ..state })
    }

    fn lines(&self) -> String {
        let hex = |host: &HostId| format!("{:032x}", u128::from_be_bytes(*host));
        let has_marks = self.registrants.iter().any(|registrant| registrant.mark.is_some());
        let head = if has_marks { HEAD_WITH_MARKS } else { HEAD };
        let mut text = format!("{head}\ngeneration {}\n", self.generation);
        if let Some(held) = &self.held {
            text += &format!("reservation {} {}\n", held.rtype.0, hex(&held.holder));
        }
        for registrant in &self.registrants {
            let Registrant { host, key, mark } = registrant;
            if !has_marks {
                text += &format!("host {} {key:x}\n", hex(host));
                continue;
            }
            text += &format!("h {} {}", short(u128::from_be_bytes(*host)), short((*key).into()));
            if let Some(HostMark(mark)) = mark {
                text += &format!(" {}", short((*mark).into()));
            }
            text += "\n";
        }
        text
    }

    /// Reads the stored text. `None`: the text is not from [`Self::to_text`].
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut state = Self::default();
        if text.is_empty() {
            return Some(state);
        }
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let head = lines.next()?;
        let has_marks = head == HEAD_WITH_MARKS;
        (has_marks || head == HEAD).then_some(())?;
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
                "host" if !has_marks => {
                    let key = u64::from_str_radix(two, 16).ok().filter(|key| *key != 0)?;
                    state.registrants.push(Registrant { host: host(one)?, key, mark: None });
                }
                "h" if has_marks => {
                    let host = u128::from_str_radix(one, BASE).ok()?.to_be_bytes();
                    let key = u64::from_str_radix(two, BASE).ok().filter(|key| *key != 0)?;
                    let mark = match words.next() {
                        Some(mark) => Some(HostMark(u64::from_str_radix(mark, BASE).ok()?)),
                        None => None,
                    };
                    state.registrants.push(Registrant { host, key, mark });
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

/// Returns a number in base 36, in the shortest form that [`u128::from_str_radix`] reads.
fn short(number: u128) -> String {
    let digit = |digit| char::from_digit(digit, BASE).expect("a digit is less than the base");
    let (mut rest, mut digits) = (number, String::new());
    loop {
        digits.insert(0, digit((rest % u128::from(BASE)) as u32));
        rest /= u128::from(BASE);
        if rest == 0 {
            return digits;
        }
    }
}

fn host(text: &str) -> Option<HostId> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
    Some(number.to_be_bytes())
}
