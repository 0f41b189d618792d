//! The keys of a group in the store.
//!
//! | key below `farblock/GROUP/` | value | lease |
//! |---|---|---|
//! | `member/NAME` | [`MemberRecord`](crate::MemberRecord) | |
//! | `alive/NAME` | [`AliveRecord`](crate::AliveRecord) | of the member |
//! | `suspect/NAME` | [`SuspectRecord`](crate::SuspectRecord): another member misses renewals | |
//! | `range/NUMBER` | [`RangeRecord`](crate::RangeRecord): a range of controller identifiers | |
//! | `order/NAME` | [`OrderRecord`](crate::OrderRecord): drain, pause, weight | |
//! | `ana/NUMBER` | [`AnaGroupRecord`](crate::AnaGroupRecord): an ANA group and its fences | |
//! | `pin/NUMBER` | [`PinRecord`](crate::PinRecord): the member that an operator chose | |
//! | `leader/NUMBER` | [`LeaderRecord`](crate::LeaderRecord) | |
//! | `reservation/UUID` | [`ReservationRecord`](crate::ReservationRecord) of a namespace | |
//! | `hosts/NAME` | [`HostsRecord`](crate::HostsRecord): the member's hosts | of the member |
//! | `upgrade/rolling` | [`UpgradeRecord`](crate::UpgradeRecord): the members to restart | |
//! | `ack/UUID` | [`AckRecord`](crate::AckRecord): the changes that the leader applies | |

use crate::limits::{MAX_ANA_GROUPS, MAX_NAME};

/// A key, without the group's prefix.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    /// A member.
    Member(String),
    /// The sign that a member is alive.
    Alive(String),
    /// The suspicion that a member is dead.
    Suspect(String),
    /// A range of controller identifiers.
    Range(u16),
    /// The order for a member.
    Order(String),
    /// An ANA group.
    Ana(u32),
    /// The member that an operator chose for an ANA group.
    Pin(u32),
    /// The leadership of an ANA group.
    Leader(u32),
    /// The reservations of a namespace.
    Reservation(String),
    /// The reservation changes that a leader applies.
    Ack(String),
    /// The hosts of a member.
    Hosts(String),
    /// The rolling upgrade.
    Upgrade,
}

/// Checks the name of a member, of a group or of a namespace: lowercase letters, digits, `-` and
/// `.`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_letter)
}

/// The key prefix of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySpace {
    prefix: String,
}

impl KeySpace {
    /// The keys of the group with this name.
    ///
    /// # Panics
    /// If the name is invalid; see [`is_name`].
    #[must_use]
    pub fn new(group: &str) -> Self {
        assert!(is_name(group), "{group} is not a name");
        Self { prefix: format!("farblock/{group}/") }
    }

    /// Returns the prefix of all keys of the group.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the prefix of the leadership records.
    #[must_use]
    pub fn leaders(&self) -> String {
        format!("{}leader/", self.prefix)
    }

    /// Returns the prefix of the reservation records.
    #[must_use]
    pub fn reservations(&self) -> String {
        format!("{}reservation/", self.prefix)
    }

    /// Returns the whole key, with the group's prefix.
    #[must_use]
    pub fn name(&self, key: &Key) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Member(name) => format!("{prefix}member/{name}"),
            Key::Alive(name) => format!("{prefix}alive/{name}"),
            Key::Suspect(name) => format!("{prefix}suspect/{name}"),
            Key::Range(number) => format!("{prefix}range/{number}"),
            Key::Order(name) => format!("{prefix}order/{name}"),
            Key::Ana(number) => format!("{prefix}ana/{number}"),
            Key::Pin(number) => format!("{prefix}pin/{number}"),
            Key::Leader(number) => format!("{prefix}leader/{number}"),
            Key::Reservation(name) => format!("{prefix}reservation/{name}"),
            Key::Ack(name) => format!("{prefix}ack/{name}"),
            Key::Hosts(name) => format!("{prefix}hosts/{name}"),
            Key::Upgrade => format!("{prefix}upgrade/rolling"),
        }
    }

    /// The key with this whole name; `None`: this version does not know the key.
    #[must_use]
    pub fn parse(&self, name: &str) -> Option<Key> {
        let (kind, rest) = name.strip_prefix(self.prefix.as_str())?.split_once('/')?;
        let text = || is_name(rest).then(|| rest.to_owned());
        let number = || {
            let number: u32 = rest.parse().ok()?;
            (number.to_string() == rest && number <= MAX_ANA_GROUPS).then_some(number)
        };
        Some(match kind {
            "member" => Key::Member(text()?),
            "alive" => Key::Alive(text()?),
            "suspect" => Key::Suspect(text()?),
            "range" => Key::Range(u16::try_from(number()?).ok()?),
            "order" => Key::Order(text()?),
            "ana" => Key::Ana(number()?),
            "pin" => Key::Pin(number()?),
            "leader" => Key::Leader(number()?),
            "reservation" => Key::Reservation(text()?),
            "ack" => Key::Ack(text()?),
            "hosts" => Key::Hosts(text()?),
            "upgrade" if rest == "rolling" => Key::Upgrade,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back() {
        let keys = KeySpace::new("gold");
        let name = || "a-1.example".to_owned();
        let all = [
            Key::Member(name()),
            Key::Alive(name()),
            Key::Suspect(name()),
            Key::Range(31),
            Key::Order(name()),
            Key::Ana(128),
            Key::Pin(1),
            Key::Leader(7),
            Key::Reservation(name()),
            Key::Ack(name()),
            Key::Hosts(name()),
            Key::Upgrade,
        ];
        for key in all {
            assert_eq!(keys.parse(&keys.name(&key)), Some(key));
        }
        for wrong in [
            "leader/129",
            "leader/07",
            "leader/x",
            "member/",
            "member/A",
            "new/1",
            "x",
            "upgrade/1",
        ] {
            assert_eq!(keys.parse(&format!("farblock/gold/{wrong}")), None, "{wrong}");
        }
        assert_eq!(keys.parse("farblock/silver/leader/1"), None);
    }
}
