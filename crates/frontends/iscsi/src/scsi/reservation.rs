//! Persistent reservations (SPC-4, 5.13): an initiator that shares a unit can exclude other
//! initiators. The target reports that reservations do not survive a power loss, and drops them
//! when it stops.

use super::cdb::{Command, be64};
use super::sense::{Failure, Sense};
use crate::limits::MAX_REGISTRATIONS;
use crate::login::Initiator;

/// The length of PERSISTENT RESERVE OUT's parameter list, in bytes.
const PARAMETER_BYTES: usize = 24;

/// The type of a reservation. It determines which commands other initiators may not use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReservationKind(u8);

impl ReservationKind {
    fn parse(code: u8) -> Option<ReservationKind> {
        matches!(code, 1 | 3 | 5..=8).then_some(ReservationKind(code))
    }

    /// True if the reservation also forbids reads by other initiators.
    fn is_exclusive(self) -> bool {
        matches!(self.0, 3 | 6 | 8)
    }

    /// True if the reservation does not apply to registered initiators.
    fn lets_registrants(self) -> bool {
        self.0 >= 5
    }

    /// True if all registered initiators hold the reservation.
    fn is_held_by_all(self) -> bool {
        self.0 >= 7
    }
}

/// An initiator, and the unit attention that it gets.
pub(crate) type Notice = (Initiator, Sense);

/// The registered initiators, and the holder of the reservation.
#[derive(Default, Debug)]
pub(crate) struct Reservations {
    generation: u32,
    registered: Vec<(Initiator, u64)>,
    /// The reservation's type and holder. The holder is always registered.
    reservation: Option<(ReservationKind, Initiator)>,
}

impl Reservations {
    fn key(&self, of: &Initiator) -> Option<u64> {
        self.registered.iter().find(|(who, _)| who == of).map(|(_, key)| *key)
    }

    fn holds(&self, who: &Initiator) -> bool {
        self.reservation.as_ref().is_some_and(|(kind, holder)| {
            holder == who || kind.is_held_by_all() && self.key(who).is_some()
        })
    }

    /// True if the reservation forbids this initiator to execute this command.
    pub(crate) fn conflicts(&self, who: &Initiator, command: &Command) -> bool {
        let Some((kind, holder)) = &self.reservation else { return false };
        if holder == who || kind.lets_registrants() && self.key(who).is_some() {
            return false;
        }
        match command {
            Command::Read(_) | Command::Verify { .. } | Command::ModeSense { .. } => {
                kind.is_exclusive()
            }
            Command::Flush(_) | Command::ModeSelect { .. } | Command::Nothing => true,
            other => other.writes(),
        }
    }

    /// Answers PERSISTENT RESERVE IN.
    pub(crate) fn report(&self, action: u8) -> Result<Vec<u8>, Sense> {
        let mut data = self.generation.to_be_bytes().to_vec();
        match action {
            0 => {
                data.extend((8 * self.registered.len() as u32).to_be_bytes());
                self.registered.iter().for_each(|(_, key)| data.extend(key.to_be_bytes()));
            }
            1 => match &self.reservation {
                None => data.extend([0; 4]),
                Some((kind, holder)) => {
                    let key = if kind.is_held_by_all() { Some(0) } else { self.key(holder) };
                    data.extend(16_u32.to_be_bytes());
                    data.extend(key.unwrap_or(0).to_be_bytes());
                    data.extend([0, 0, 0, 0, 0, kind.0, 0, 0]);
                }
            },
            // The supported types of reservations. The optional features are all unsupported.
            2 => data = vec![0, 8, 0, 0x80, 0xea, 1, 0, 0],
            3 => {
                let all: Vec<u8> =
                    self.registered.iter().flat_map(|entry| self.full_status(entry)).collect();
                data.extend((all.len() as u32).to_be_bytes());
                data.extend(all);
            }
            _ => return Err(Sense::in_cdb(1)),
        }
        Ok(data)
    }

    /// The full status descriptor of a registration: its key, whether its initiator holds the
    /// reservation, and the initiator's name.
    fn full_status(&self, (who, key): &(Initiator, u64)) -> Vec<u8> {
        const ISCSI_PORT: u8 = 0x45;
        let mut name = format!("{},i,0x", who.name);
        who.isid.iter().for_each(|byte| name.push_str(&format!("{byte:02x}")));
        // The name ends with at least one zero, and is padded to a multiple of four bytes (SPC-4,
        // 7.6.4.6).
        let mut name = name.into_bytes();
        name.resize((name.len() + 4) & !3, 0);
        let holds = self.holds(who);
        let kind = self.reservation.as_ref().filter(|_| holds).map_or(0, |(kind, _)| kind.0);
        let mut data = key.to_be_bytes().to_vec();
        data.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0, 0, 1]);
        data.extend((4 + name.len() as u32).to_be_bytes());
        data.extend([ISCSI_PORT, 0]);
        data.extend((name.len() as u16).to_be_bytes());
        data.extend(name);
        data
    }

    /// Executes PERSISTENT RESERVE OUT.
    pub(crate) fn change(
        &mut self,
        who: &Initiator,
        (action, scope, kind): (u8, u8, u8),
        parameters: &[u8],
    ) -> Result<Vec<Notice>, Failure> {
        if !matches!(action, 0..=4 | 6) {
            return Err(Sense::in_cdb(1).into());
        }
        if parameters.len() != PARAMETER_BYTES {
            return Err(Sense::PARAMETER_LENGTH.into());
        }
        let (key, new_key) = (be64(parameters, 0), be64(parameters, 8));
        // The target cannot register other initiators or other ports, and cannot keep reservations
        // while it is stopped.
        if parameters[20] & 0x0d != 0 {
            return Err(Sense::in_parameters(20).into());
        }
        let registers = matches!(action, 0 | 6);
        let matches = self.key(who) == Some(key);
        let may = match action {
            0 => matches || self.key(who).is_none() && key == 0,
            6 => true,
            _ => matches,
        };
        if !may {
            return Err(Failure::Conflict);
        }
        if registers {
            return self.register(who, new_key);
        }
        let kind = || match (scope, ReservationKind::parse(kind)) {
            (0, Some(kind)) => Ok(kind),
            _ => Err(Sense::in_cdb(2)),
        };
        match action {
            1 => self.reserve(who, kind()?),
            2 => self.release(who, (scope, kind()?)),
            3 => Ok(self.clear(who)),
            _ => self.preempt(who, kind()?, new_key),
        }
    }

    fn register(&mut self, who: &Initiator, key: u64) -> Result<Vec<Notice>, Failure> {
        let found = self.registered.iter().position(|(known, _)| known == who);
        let mut notices = Vec::new();
        match found {
            Some(index) if key == 0 => {
                self.registered.remove(index);
                notices = self.left(who);
            }
            Some(index) => self.registered[index].1 = key,
            None if key == 0 => {}
            None if self.registered.len() >= MAX_REGISTRATIONS => {
                return Err(Sense::NO_REGISTRATION_RESOURCES.into());
            }
            None => self.registered.push((who.clone(), key)),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    /// Updates the reservation after the registration of `who` was removed. Returns the unit
    /// attentions for other initiators.
    fn left(&mut self, who: &Initiator) -> Vec<Notice> {
        let Some((kind, holder)) = self.reservation.take() else { return Vec::new() };
        if kind.is_held_by_all() {
            let next = self.registered.first().map(|(next, _)| next.clone());
            self.reservation = next.map(|next| (kind, next));
        } else if holder != *who {
            self.reservation = Some((kind, holder));
        } else if kind.lets_registrants() {
            return self.tell_others(who, Sense::RESERVATIONS_RELEASED);
        }
        Vec::new()
    }

    fn tell_others(&self, who: &Initiator, what: Sense) -> Vec<Notice> {
        let others = self.registered.iter().filter(|(other, _)| other != who);
        others.map(|(other, _)| (other.clone(), what)).collect()
    }

    fn reserve(&mut self, who: &Initiator, kind: ReservationKind) -> Result<Vec<Notice>, Failure> {
        match &self.reservation {
            None => self.reservation = Some((kind, who.clone())),
            Some((held, _)) if self.holds(who) && *held == kind => {}
            Some(_) => return Err(Failure::Conflict),
        }
        Ok(Vec::new())
    }

    fn release(
        &mut self,
        who: &Initiator,
        (_, kind): (u8, ReservationKind),
    ) -> Result<Vec<Notice>, Failure> {
        match &self.reservation {
            Some((held, _)) if self.holds(who) => {
                if *held != kind {
                    return Err(Sense::INVALID_RELEASE.into());
                }
                self.reservation = None;
                let tell = kind.lets_registrants();
                let notices = self.tell_others(who, Sense::RESERVATIONS_RELEASED);
                Ok(if tell { notices } else { Vec::new() })
            }
            _ => Ok(Vec::new()),
        }
    }

    fn clear(&mut self, who: &Initiator) -> Vec<Notice> {
        let notices = self.tell_others(who, Sense::RESERVATIONS_PREEMPTED);
        self.reservation = None;
        self.registered.clear();
        self.generation = self.generation.wrapping_add(1);
        notices
    }

    /// Removes the registrations of other initiators that have this `key`. If one of them holds the
    /// reservation, `who` takes the reservation over, with the type `kind`. Key 0 stands for all
    /// other registrations. It is valid only if all registered initiators hold the reservation.
    fn preempt(
        &mut self,
        who: &Initiator,
        kind: ReservationKind,
        key: u64,
    ) -> Result<Vec<Notice>, Failure> {
        let takes_over = match &self.reservation {
            Some((held, _)) if held.is_held_by_all() => key == 0,
            Some((_, holder)) => self.key(holder) == Some(key),
            None => false,
        };
        let hit = |&(ref other, theirs): &(Initiator, u64)| {
            other != who && (theirs == key || takes_over && key == 0)
        };
        if key == 0 && !takes_over {
            return Err(Sense::in_parameters(8).into());
        }
        if !takes_over && !self.registered.iter().any(|(_, theirs)| *theirs == key) {
            return Err(Failure::Conflict);
        }
        let gone: Vec<_> = self.registered.extract_if(.., |entry| hit(entry)).collect();
        if takes_over {
            self.reservation = Some((kind, who.clone()));
        }
        self.generation = self.generation.wrapping_add(1);
        let mut notices: Vec<Notice> = Vec::new();
        for (other, _) in gone {
            if self.reservation.as_ref().is_some_and(|(_, holder)| *holder == other) {
                notices.extend(self.left(&other));
            }
            notices.push((other, Sense::REGISTRATIONS_PREEMPTED));
        }
        Ok(notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::Extent;

    fn host(number: u8) -> Initiator {
        Initiator { name: format!("iqn.host{number}"), isid: [number; 6] }
    }

    fn parameters(key: u64, new_key: u64) -> Vec<u8> {
        [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat()
    }

    /// Reservations with two registered initiators. The third initiator is not registered.
    fn two() -> (Reservations, [Initiator; 3]) {
        let mut reservations = Reservations::default();
        let hosts = [host(1), host(2), host(3)];
        for (number, host) in hosts[..2].iter().enumerate() {
            let key = number as u64 + 1;
            let done = reservations.change(host, (0, 0, 0), &parameters(0, key));
            assert_eq!(done, Ok(Vec::new()));
        }
        (reservations, hosts)
    }

    const READ: Command = Command::Read(Extent { lba: 0, blocks: 1 });
    const WRITE: Command = Command::Write { extent: Extent { lba: 0, blocks: 1 }, fua: false };

    #[test]
    fn a_reservation_of_each_type_refuses_conflicting_commands() {
        for (kind, registrant_writes, stranger_reads) in [
            (1, false, true),
            (3, false, false),
            (5, true, true),
            (6, true, false),
            (7, true, true),
            (8, true, false),
        ] {
            let (mut reservations, [one, two, stranger]) = two();
            reservations.change(&one, (1, 0, kind), &parameters(1, 0)).expect("no conflict");
            assert!(!reservations.conflicts(&one, &WRITE));
            assert_eq!(reservations.conflicts(&two, &WRITE), !registrant_writes, "{kind}");
            assert_eq!(reservations.conflicts(&stranger, &READ), !stranger_reads, "{kind}");
            assert!(reservations.conflicts(&stranger, &WRITE));
            let other = if kind == 1 { 3 } else { 1 };
            let again = reservations.change(&two, (1, 0, other), &parameters(2, 0));
            assert_eq!(again, Err(Failure::Conflict));
            let wrong = reservations.change(&one, (2, 0, other), &parameters(1, 0));
            assert_eq!(wrong, Err(Sense::INVALID_RELEASE.into()));
            let told = reservations
                .change(&one, (2, 0, kind), &parameters(1, 0))
                .expect("the command succeeds");
            assert_eq!(told.len(), usize::from(kind >= 5));
            assert!(!reservations.conflicts(&stranger, &WRITE));
        }
    }

    #[test]
    fn reservation_keys_are_registered_and_reported() {
        let (mut reservations, [one, _, stranger]) = two();
        assert_eq!(reservations.report(0).expect("keys")[4..8], [0, 0, 0, 16]);
        let wrong = reservations.change(&one, (0, 0, 0), &parameters(7, 8));
        assert_eq!(wrong, Err(Failure::Conflict));
        reservations.change(&one, (6, 0, 0), &parameters(7, 8)).expect("the old key is ignored");
        assert_eq!(reservations.key(&one), Some(8));
        let nobody = reservations.change(&stranger, (1, 0, 1), &parameters(0, 0));
        assert_eq!(nobody, Err(Failure::Conflict));
        let short = reservations.change(&one, (1, 0, 1), &[0; 23]);
        assert_eq!(short, Err(Sense::PARAMETER_LENGTH.into()));
        let odd = reservations.change(&one, (1, 0, 2), &parameters(8, 0));
        assert_eq!(odd, Err(Sense::in_cdb(2).into()));
        for number in 3..=MAX_REGISTRATIONS as u8 {
            let done = reservations.change(&host(number), (0, 0, 0), &parameters(0, 9));
            assert!(done.is_ok(), "{number}");
        }
        let full = reservations.change(&host(200), (0, 0, 0), &parameters(0, 9));
        assert_eq!(full, Err(Sense::NO_REGISTRATION_RESOURCES.into()));
    }

    #[test]
    fn the_full_status_lists_every_registrant() {
        let (mut reservations, [one, ..]) = two();
        reservations.change(&one, (1, 0, 3), &parameters(1, 0)).expect("the unit is not reserved");
        let all = reservations.report(3).expect("a list");
        let length = 24 + 4 + 28;
        assert_eq!(all.len(), 8 + 2 * length);
        assert_eq!((all[8 + 7], all[8 + 12], all[8 + 13]), (1, 1, 3), "the holder is not reported");
        assert_eq!(all[8 + 28..][..25], *b"iqn.host1,i,0x01010101010");
        assert_eq!((all[8 + length + 7], all[8 + length + 12], all[8 + length + 13]), (2, 0, 0));
    }

    #[test]
    fn preempting_the_holder_takes_the_reservation() {
        let (mut reservations, [one, two, _]) = two();
        reservations.change(&one, (1, 0, 3), &parameters(1, 0)).expect("the unit is not reserved");
        assert!(reservations.conflicts(&two, &READ));
        let told =
            reservations.change(&two, (4, 0, 1), &parameters(2, 1)).expect("the command succeeds");
        assert_eq!(told, [(one.clone(), Sense::REGISTRATIONS_PREEMPTED)]);
        assert!(reservations.conflicts(&one, &WRITE) && !reservations.conflicts(&two, &WRITE));
        assert_eq!(reservations.key(&one), None);
        let none = reservations.change(&two, (4, 0, 1), &parameters(2, 99));
        assert_eq!(none, Err(Failure::Conflict));
    }

    #[test]
    fn unregistering_the_holder_releases_the_reservation() {
        let (mut reservations, [one, two, stranger]) = two();
        reservations.change(&one, (1, 0, 5), &parameters(1, 0)).expect("the unit is not reserved");
        let told =
            reservations.change(&one, (0, 0, 0), &parameters(1, 0)).expect("the command succeeds");
        assert_eq!(told, [(two.clone(), Sense::RESERVATIONS_RELEASED)]);
        assert!(!reservations.conflicts(&stranger, &WRITE));
        reservations.change(&two, (1, 0, 8), &parameters(2, 0)).expect("the unit is not reserved");
        let told =
            reservations.change(&two, (3, 0, 0), &parameters(2, 0)).expect("the command succeeds");
        assert_eq!(told, []);
        assert_eq!(reservations.report(1).expect("the report succeeds")[4..], [0; 4]);
    }
}
