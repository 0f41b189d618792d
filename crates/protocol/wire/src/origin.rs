//! A controller's origin: farblock targets put it into the vendor specific bytes of Identify
//! Controller, for hosts that want to know which operations a restart has ended.
//!
//! Other targets use these bytes differently, or not at all: only bytes that start with [`MAGIC`]
//! count.

/// The first of the vendor specific bytes, if farblock wrote them.
pub const MAGIC: [u8; 16] = *b"farblock.origin1";

/// A controller's origin. All zeroes: unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerOrigin {
    /// The boot of a machine, its network and its listening addresses: unique among the processes
    /// that run at the same time.
    pub place: [u8; 16],
    /// The boot of a machine. A new boot means that the content of its memory is lost.
    pub boot: [u8; 16],
}

impl ControllerOrigin {
    /// Bytes of it, [`MAGIC`] included.
    pub const LEN: usize = 48;

    /// Reads the vendor specific bytes; `None` if farblock did not write them.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let part = |index: usize| bytes.get(16 * index..)?.first_chunk::<16>().copied();
        (part(0)? == MAGIC).then_some(())?;
        Some(Self { place: part(1)?, boot: part(2)? })
    }

    /// Writes [`Self::LEN`] vendor specific bytes.
    pub fn emit(&self, bytes: &mut [u8]) {
        for (index, part) in [MAGIC, self.place, self.boot].iter().enumerate() {
            bytes[16 * index..][..16].copy_from_slice(part);
        }
    }

    /// Whether the boot is known.
    pub fn knows_boot(&self) -> bool {
        self.boot != [0; 16]
    }

    /// Whether the process with a controller of `self` has ended, because `other` belongs to
    /// another process that listens at the same place.
    pub fn is_succeeded_at(&self, other: &Self) -> bool {
        self.place != [0; 16] && self.place == other.place
    }
}

/// 16 random bytes that tell a target process from every other one, also from the same target
/// before a restart. They follow the origin in the vendor specific bytes; older targets have zeroes
/// there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessName(pub [u8; 16]);

impl ProcessName {
    /// Reads the vendor specific bytes; `None` if they name no process.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        ControllerOrigin::parse(bytes)?;
        let name = *bytes.get(ControllerOrigin::LEN..)?.first_chunk::<16>()?;
        (name != [0; 16]).then_some(Self(name))
    }

    /// Writes it behind an origin.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[ControllerOrigin::LEN..][..16].copy_from_slice(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_behind_an_origin() {
        let (name, mut bytes) = (ProcessName([3; 16]), [0; 1024]);
        name.emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), None, "they are somebody else's");
        ControllerOrigin { place: [1; 16], boot: [2; 16] }.emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), Some(name));
        ProcessName([0; 16]).emit(&mut bytes);
        assert_eq!(ProcessName::parse(&bytes), None, "an older farblock has nothing there");
    }

    #[test]
    fn only_our_own_bytes_count() {
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
