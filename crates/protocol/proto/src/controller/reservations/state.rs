//! The reservation state of one namespace: the registrants, the reservation and its holder (NVMe
//! Base Specification 2.0, "Reservations").
//!
//! A registrant is a host, identified by its Host Identifier. A change through one of the host's
//! controllers applies to all controllers of the host.

use super::access::Access;
use super::command::KeyedCommand;
use crate::controller::identifiers::HostMark;
use crate::controller::limits;
use alloc::vec;
use alloc::vec::Vec;
use farblock_wire::reservation::{
    AcquireAction, NotificationType, RegisterAction, Registrant as RegistrantData, ReleaseAction,
    ReservationStatus, ReservationType,
};
use farblock_wire::status::Status;

/// The 128-bit Host Identifier (HOSTID) of a host.
pub type HostId = [u8; 16];

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

/// A host that has registered a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Registrant {
    pub(super) host: HostId,
    pub(super) key: u64,
    /// The hash of the host's name, if the host has proved the name.
    pub(super) mark: Option<HostMark>,
}

/// A reservation that one or all registrants hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) rtype: ReservationType,
    /// The host that acquired the reservation. For reservation types that every registrant holds,
    /// this value has no meaning.
    pub(super) holder: HostId,
}

impl Held {
    fn is_all_registrants(&self) -> bool {
        is_all_registrants(self.rtype)
    }
}

/// The reservation state of one namespace. While there is a reservation, there is at least one
/// registrant.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reservations {
    pub(super) generation: u32,
    pub(super) persist: bool,
    pub(super) registrants: Vec<Registrant>,
    pub(super) held: Option<Held>,
}

/// The effects of a request, besides the new state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Effects {
    /// The hosts to notify.
    pub(super) notices: Vec<(HostId, NotificationType)>,
    /// The hosts whose commands the data path must abort.
    pub(super) aborted: Vec<HostId>,
}

impl Reservations {
    /// Whether the state persists through a power loss (PTPLS).
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persist
    }

    /// Returns the access rights that the data path must enforce; `None` if there is no
    /// reservation.
    #[must_use]
    pub fn access(&self) -> Option<Access> {
        let held = self.held?;
        let hosts = match held.rtype {
            ReservationType::WRITE_EXCLUSIVE | ReservationType::EXCLUSIVE_ACCESS => {
                vec![held.holder]
            }
            _ => self.registrants.iter().map(|registrant| registrant.host).collect(),
        };
        Some(Access { rtype: held.rtype, hosts })
    }

    /// Executes a request of `host`, which must not be a report. `can_persist`: whether the target
    /// can store the state through a power loss.
    ///
    /// # Errors
    /// Returns the status with which to complete the command. A failed command does not change the
    /// state.
    pub(super) fn change(
        &mut self,
        host: HostId,
        request: &KeyedCommand,
        can_persist: bool,
    ) -> Result<Effects, Status> {
        match *request {
            KeyedCommand::Register { action, current, new, persist } => {
                if persist == Some(true) && !can_persist {
                    return Err(INVALID);
                }
                let effects = self.register(host, action, current, new)?;
                self.persist = persist.unwrap_or(self.persist);
                self.generation = self.generation.wrapping_add(1);
                Ok(effects)
            }
            KeyedCommand::Acquire { action, rtype, current, preempted } => {
                self.check_key(&host, current)?;
                if action == AcquireAction::ACQUIRE {
                    return self.acquire(host, rtype);
                }
                let mut effects = self.preempt(host, rtype, preempted)?;
                self.generation = self.generation.wrapping_add(1);
                if action != AcquireAction::PREEMPT_ABORT {
                    effects.aborted.clear();
                }
                Ok(effects)
            }
            KeyedCommand::Release { action, rtype, current } => {
                self.check_key(&host, current)?;
                match action {
                    ReleaseAction::CLEAR => Ok(self.clear(host)),
                    _ => self.release(host, rtype),
                }
            }
            KeyedCommand::Persist { persist } if persist && !can_persist => Err(INVALID),
            KeyedCommand::Persist { persist } => {
                self.persist = persist;
                Ok(Effects::default())
            }
            KeyedCommand::Report { .. } => Ok(Effects::default()),
        }
    }

    fn register(
        &mut self,
        host: HostId,
        action: RegisterAction,
        current: Option<u64>,
        new: u64,
    ) -> Result<Effects, Status> {
        let place = self.registrants.iter().position(|registrant| registrant.host == host);
        let registered = place.map(|place| self.registrants[place].key);
        let matches = registered.is_some_and(|key| current.is_none_or(|current| current == key));
        match action {
            // Key 0 is invalid, because in a Preempt it denotes all registrants.
            RegisterAction::REGISTER | RegisterAction::REPLACE if new == 0 => return Err(INVALID),
            RegisterAction::REGISTER => match registered {
                None => self.add(host, new)?,
                Some(key) if key == new => {}
                Some(_) => return Err(CONFLICT),
            },
            RegisterAction::REPLACE => match place {
                Some(place) if matches => self.registrants[place].key = new,
                // A Replace with IEKEY works "without regard to its registration status", so it
                // registers a host that is not registered yet.
                None if current.is_none() => self.add(host, new)?,
                _ => return Err(CONFLICT),
            },
            _ if matches => return Ok(self.unregister(&host)),
            _ => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    fn add(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        if self.registrants.len() >= limits::MAX_REGISTRANTS {
            // Do not set Do Not Retry: a registrant may unregister, so a later attempt can succeed.
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.push(Registrant { host, key, mark: None });
        Ok(())
    }

    /// Removes a registrant. Also releases the reservation if no holder remains.
    fn unregister(&mut self, host: &HostId) -> Effects {
        self.registrants.retain(|registrant| registrant.host != *host);
        let mut effects = Effects::default();
        let Some(held) = self.held else { return effects };
        let ends = match held.is_all_registrants() {
            true => self.registrants.is_empty(),
            false => held.holder == *host,
        };
        if ends {
            self.held = None;
            if tells_release(held.rtype) {
                self.tell_others(host, NotificationType::RESERVATION_RELEASED, &mut effects);
            }
        }
        effects
    }

    fn acquire(&mut self, host: HostId, rtype: ReservationType) -> Result<Effects, Status> {
        match self.held {
            None => self.held = Some(Held { rtype, holder: host }),
            Some(held) if self.is_holder(&host) && held.rtype == rtype => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    /// Executes a Preempt ("Preempting a Reservation or Registration").
    fn preempt(
        &mut self,
        host: HostId,
        rtype: ReservationType,
        preempted: u64,
    ) -> Result<Effects, Status> {
        let Some(held) = self.held else {
            return self.unregister_key(&host, preempted);
        };
        let all = held.is_all_registrants();
        let key = |host: &HostId| self.registrant(host).map(|registrant| registrant.key);
        let takes_over = match all {
            true => preempted == 0,
            false => key(&held.holder) == Some(preempted),
        };
        if !takes_over && preempted == 0 {
            return Err(INVALID);
        }
        if !takes_over {
            return self.unregister_key(&host, preempted);
        }
        let mut effects = Effects::default();
        let is_out = |one: &Registrant| one.host != host && (all || one.key == preempted);
        for registrant in self.registrants.iter().filter(|one| is_out(one)) {
            effects.aborted.push(registrant.host);
            effects.notices.push((registrant.host, NotificationType::REGISTRATION_PREEMPTED));
        }
        self.registrants.retain(|one| !is_out(one));
        self.held = Some(Held { rtype, holder: host });
        if rtype != held.rtype {
            self.tell_others(&host, NotificationType::RESERVATION_RELEASED, &mut effects);
        }
        Ok(effects)
    }

    /// Removes every registrant with this key, including the host that sent the request.
    fn unregister_key(&mut self, host: &HostId, key: u64) -> Result<Effects, Status> {
        let found = self.registrants.iter().filter(|registrant| registrant.key == key);
        let out: Vec<_> = found.map(|registrant| registrant.host).collect();
        if out.is_empty() {
            return Err(CONFLICT);
        }
        let mut effects = Effects::default();
        for gone in &out {
            effects.notices.append(&mut self.unregister(gone).notices);
            if gone != host {
                effects.notices.push((*gone, NotificationType::REGISTRATION_PREEMPTED));
                effects.aborted.push(*gone);
            }
        }
        // A registrant that this command removed gets only the notice about its own removal.
        effects.notices.retain(|(to, what)| {
            *what == NotificationType::REGISTRATION_PREEMPTED || !out.contains(to)
        });
        Ok(effects)
    }

    fn release(&mut self, host: HostId, rtype: ReservationType) -> Result<Effects, Status> {
        let mut effects = Effects::default();
        let Some(held) = self.held.filter(|_| self.is_holder(&host)) else { return Ok(effects) };
        if held.rtype != rtype {
            return Err(INVALID);
        }
        self.held = None;
        if tells_release(rtype) {
            self.tell_others(&host, NotificationType::RESERVATION_RELEASED, &mut effects);
        }
        Ok(effects)
    }

    fn clear(&mut self, host: HostId) -> Effects {
        let mut effects = Effects::default();
        self.tell_others(&host, NotificationType::RESERVATION_PREEMPTED, &mut effects);
        self.registrants.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        effects
    }

    /// Records that the host with this identifier has proved its name.
    pub(super) fn mark(&mut self, host: &HostId, mark: HostMark) {
        let its = self.registrants.iter_mut().filter(|registrant| registrant.host == *host);
        its.for_each(|registrant| registrant.mark = Some(mark));
    }

    /// Adds the name hashes of `other` to registrants without one.
    pub(super) fn add_marks(&mut self, other: &Self) {
        for registrant in self.registrants.iter_mut().filter(|it| it.mark.is_none()) {
            registrant.mark = other.registrant(&registrant.host).and_then(|known| known.mark);
        }
    }

    fn registrant(&self, host: &HostId) -> Option<&Registrant> {
        self.registrants.iter().find(|registrant| registrant.host == *host)
    }

    /// Checks the key of a registrant that acquires or releases a reservation.
    fn check_key(&self, host: &HostId, key: u64) -> Result<(), Status> {
        let registrant = self.registrant(host).filter(|registrant| registrant.key == key);
        registrant.map(|_| ()).ok_or(CONFLICT)
    }

    fn is_holder(&self, host: &HostId) -> bool {
        self.held.is_some_and(|held| match held.is_all_registrants() {
            true => self.registrant(host).is_some(),
            false => held.holder == *host,
        })
    }

    fn tell_others(&self, but: &HostId, what: NotificationType, effects: &mut Effects) {
        let others = self.registrants.iter().filter(|registrant| registrant.host != *but);
        effects.notices.extend(others.map(|registrant| (registrant.host, what)));
    }

    /// Returns the whole data of Reservation Report. It has one entry for each registrant. The
    /// entries contain no controller identifier.
    #[must_use]
    pub fn report(&self) -> Vec<u8> {
        let status = ReservationStatus {
            gen_count: self.generation.into(),
            rtype: self.held.map_or(ReservationType::NONE, |held| held.rtype).0,
            regctl: (self.registrants.len() as u16).into(),
            ptpls: self.persist.into(),
            ..ReservationStatus::zeroed()
        };
        let length = ReservationStatus::LEN + self.registrants.len() * RegistrantData::LEN;
        let mut page = vec![0; length];
        let mut at = status.emit(&mut page);
        for registrant in &self.registrants {
            let holds = self.is_holder(&registrant.host);
            let entry = RegistrantData {
                cntlid: RegistrantData::CNTLID_DYNAMIC.into(),
                rcsts: if holds { RegistrantData::RCSTS_HOLDS } else { 0 },
                rkey: registrant.key.into(),
                hostid: registrant.host,
                ..RegistrantData::zeroed()
            };
            at += entry.emit(&mut page[at..]);
        }
        page
    }
}

/// Whether every registrant holds a reservation of this type.
fn is_all_registrants(rtype: ReservationType) -> bool {
    matches!(rtype, ReservationType::WRITE_EXCLUSIVE_ALL | ReservationType::EXCLUSIVE_ACCESS_ALL)
}

/// Whether the target notifies the other registrants when a host releases a reservation of this
/// type. It notifies them if their rights change.
fn tells_release(rtype: ReservationType) -> bool {
    !matches!(rtype, ReservationType::WRITE_EXCLUSIVE | ReservationType::EXCLUSIVE_ACCESS)
}
