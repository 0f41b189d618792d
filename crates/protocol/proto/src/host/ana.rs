//! Asymmetric namespace access: reads the states of ANA groups from the ANA log page.

use super::command::LogPage;
use super::info::InfoError;
use alloc::vec::Vec;
use farblock_wire::log::{AnaGroupDescriptor, AnaLogHeader, AnaState, LogPageId};

/// The host reads at most this many groups of an ANA log page. Real subsystems have fewer.
const MAX_GROUPS: u32 = 4096;

/// Returns the parameters for reading an ANA log page with `groups` groups, without their
/// namespaces ([`AnaLogHeader::LSP_GROUPS_ONLY`]).
#[must_use]
pub fn ana_log_page(groups: u32) -> LogPage {
    let groups = groups.clamp(1, MAX_GROUPS) as usize;
    let bytes = AnaLogHeader::LEN + groups * AnaGroupDescriptor::LEN;
    let specific = AnaLogHeader::LSP_GROUPS_ONLY;
    LogPage { specific, ..LogPage::new(LogPageId::ANA, bytes as u32) }
}

/// The states of a subsystem's ANA groups, as reported by one controller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AnaLog {
    groups: Vec<(u32, AnaState)>,
}

impl AnaLog {
    /// Reads an ANA log page, with or without the namespaces of the groups.
    ///
    /// # Errors
    /// Fails if the page is shorter than its header announces.
    pub fn parse(data: &[u8]) -> Result<Self, InfoError> {
        let header = AnaLogHeader::parse(data).ok_or(InfoError::TooShort)?;
        let mut rest = &data[AnaLogHeader::LEN..];
        let mut groups = Vec::new();
        for _ in 0..header.ngrps.get() {
            let group = AnaGroupDescriptor::parse(rest).ok_or(InfoError::TooShort)?;
            let namespaces =
                usize::try_from(group.nnsids.get()).map_err(|_| InfoError::TooShort)?;
            let bytes = namespaces.checked_mul(4).ok_or(InfoError::TooShort)?;
            rest = &rest[AnaGroupDescriptor::LEN..];
            rest = rest.get(bytes..).ok_or(InfoError::TooShort)?;
            groups.push((group.grpid.get(), group.ana_state()));
        }
        Ok(Self { groups })
    }

    /// Returns the state of a group; `None` if the page does not contain the group.
    #[must_use]
    pub fn state(&self, group: u32) -> Option<AnaState> {
        self.groups.iter().find(|(id, _)| *id == group).map(|&(_, state)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_wire::IntoBytes;

    fn page(groups: &[(u32, AnaState, &[u32])]) -> Vec<u8> {
        let count = groups.len() as u16;
        let header = AnaLogHeader { ngrps: count.into(), ..AnaLogHeader::zeroed() };
        let mut page = header.as_bytes().to_vec();
        for (id, state, namespaces) in groups {
            let group = AnaGroupDescriptor {
                grpid: (*id).into(),
                nnsids: (namespaces.len() as u32).into(),
                state: state.0 | 0xf0,
                ..AnaGroupDescriptor::zeroed()
            };
            page.extend_from_slice(group.as_bytes());
            namespaces.iter().for_each(|nsid| page.extend_from_slice(&nsid.to_le_bytes()));
        }
        page
    }

    #[test]
    fn the_ana_log_maps_groups_to_states() {
        let bytes = page(&[(1, AnaState::OPTIMIZED, &[1, 2]), (7, AnaState::INACCESSIBLE, &[])]);
        let log = AnaLog::parse(&bytes).expect("well formed");
        assert_eq!(log.state(1), Some(AnaState::OPTIMIZED));
        assert_eq!((log.state(7), log.state(2)), (Some(AnaState::INACCESSIBLE), None));
        for length in 0..bytes.len() {
            assert_eq!(AnaLog::parse(&bytes[..length]), Err(InfoError::TooShort), "{length}");
        }
    }

    #[test]
    fn a_wrong_namespace_count_in_the_ana_log_is_an_error() {
        let mut bytes = page(&[(1, AnaState::OPTIMIZED, &[])]);
        bytes[16 + 4..16 + 8].fill(0xff);
        assert_eq!(AnaLog::parse(&bytes), Err(InfoError::TooShort));
    }
}
