//! The origin of a controller: its place and the boot of its machine. farblock targets put the
//! origin into the vendor specific bytes of Identify Controller. A host compares origins to detect
//! that a restart of the target has ended the host's commands.
//!
//! Other targets use these bytes differently or not at all. Readers therefore ignore bytes that do
//! not start with [`MAGIC`].

/// The first 16 vendor specific bytes that a farblock target writes.
pub const MAGIC: [u8; 16] = *b"farblock.origin1";

/// The origin of a controller. The value of a field is unknown if all of its bytes are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerOrigin {
    /// A hash of the machine's boot, its network and the target's listen addresses. No two
    /// processes have the same place at the same time.
    pub place: [u8; 16],
    /// Identifies the boot of a machine. A different value means that the machine has restarted and
    /// lost the content of its memory.
    pub boot: [u8; 16],
}

impl ControllerOrigin {
    /// Length of an origin in bytes, including [`MAGIC`].
    pub const LEN: usize = 48;

    /// Reads the vendor specific bytes; `None` if farblock did not write them.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let part = |index: usize| bytes.get(16 * index..)?.first_chunk::<16>().copied();
        (part(0)? == MAGIC).then_some(())?;
        Some(Self { place: part(1)?, boot: part(2)? })
    }

    /// Writes [`Self::LEN`] bytes of vendor specific data.
    pub fn emit(&self, bytes: &mut [u8]) {
        for (index, part) in [MAGIC, self.place, self.boot].iter().enumerate() {
            bytes[16 * index..][..16].copy_from_slice(part);
        }
    }

    /// Whether the boot is known.
    pub fn knows_boot(&self) -> bool {
        self.boot != [0; 16]
    }

    /// Whether the target process with origin `self` has ended. It has ended if a process with
    /// origin `other` now listens at the same place.
    pub fn is_succeeded_at(&self, other: &Self) -> bool {
        self.place != [0; 16] && self.place == other.place
    }
}

/// 16 random bytes that identify one run of a target process. The same target has other bytes after
/// a restart. They follow the origin in the vendor specific bytes; older targets have zeroes there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessName(pub [u8; 16]);

impl ProcessName {
    /// Reads the vendor specific bytes; `None` if they contain no process name.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        ControllerOrigin::parse(bytes)?;
        let name = *bytes.get(ControllerOrigin::LEN..)?.first_chunk::<16>()?;
        (name != [0; 16]).then_some(Self(name))
    }

    /// Writes the name after the origin.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[ControllerOrigin::LEN..][..16].copy_from_slice(&self.0);
    }
}

/// The range of controller identifiers that a target assigns in a subsystem. The range follows the
/// process name in the vendor specific bytes. Older targets have zeroes there.
///
/// Targets that share a subsystem at the same time need ranges that do not overlap. So if the
/// ranges of two targets with the same subsystem name overlap, the two do not share a subsystem:
/// one is a copy of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerIds {
    /// The lowest identifier, at least 1.
    pub first: u16,
    /// The highest identifier.
    pub last: u16,
}

impl ControllerIds {
    const AT: usize = ControllerOrigin::LEN + 16;

    /// Reads the vendor specific bytes; `None` if they contain no range.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        ProcessName::parse(bytes)?;
        let part = |index: usize| bytes.get(Self::AT + 2 * index..)?.first_chunk::<2>().copied();
        let [first, last] = [part(0)?, part(1)?].map(u16::from_le_bytes);
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    /// Writes the range after the process name.
    pub fn emit(&self, bytes: &mut [u8]) {
        for (index, id) in [self.first, self.last].iter().enumerate() {
            bytes[Self::AT + 2 * index..][..2].copy_from_slice(&id.to_le_bytes());
        }
    }

    /// Whether the two ranges have an identifier in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_is_read_only_behind_an_origin() {
        let (name, mut bytes) = (ProcessName([3; 16]), [0; 1024]);
        name.emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), None, "bytes of another implementation are ignored");
        ControllerOrigin { place: [1; 16], boot: [2; 16] }.emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), Some(name));
        ProcessName([0; 16]).emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), None, "an older farblock reports no process name");
    }

    #[test]
    fn a_controller_identifier_range_is_read_only_behind_the_process_name() {
        let ids = |first, last| ControllerIds { first, last };
        let mut bytes = [0; 1024];
        ids(1, 999).emit(&mut bytes);
        assert_eq!(
            ControllerIds::parse(&bytes),
            None,
            "bytes of another implementation are ignored"
        );
        ControllerOrigin { place: [1; 16], boot: [2; 16] }.emit(&mut bytes);
        ProcessName([3; 16]).emit(&mut bytes);
        assert_eq!(ControllerIds::parse(&bytes), Some(ids(1, 999)));
        for nonsense in [ids(0, 0), ids(0, 5), ids(6, 5)] {
            nonsense.emit(&mut bytes);
            assert_eq!(ControllerIds::parse(&bytes), None, "{nonsense:?}");
        }
        assert!(ids(1, 999).overlaps(&ids(999, 1000)) && ids(5, 6).overlaps(&ids(1, 999)));
        assert!(!ids(1, 999).overlaps(&ids(1000, 1999)) && !ids(7, 9).overlaps(&ids(1, 6)));
    }

    #[test]
    fn an_origin_without_our_signature_is_ignored() {
        let origin = ControllerOrigin { place: [1; 16], boot: [2; 16] };
        let mut bytes = [0; 1024];
        assert_eq!(ControllerOrigin::parse(&bytes), None);
        origin.emit(&mut bytes);
        assert_eq!(ControllerOrigin::parse(&bytes), Some(origin));
        assert_eq!(ControllerOrigin::parse(&bytes[..47]), None);
        assert!(origin.is_succeeded_at(&origin));
        let unknown = ControllerOrigin { place: [0; 16], boot: [0; 16] };
        assert!(!unknown.is_succeeded_at(&unknown));
    }
}
