//! Drops root's unneeded capabilities.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Needed to share other users' files, listen on low ports, and account the rings' memory.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK);

/// The users who may use io_uring: 0 for all, 1 for a group and administrators.
const IO_URING: &str = "/proc/sys/kernel/io_uring_disabled";

/// Drops all capabilities but [`NEEDED`].
///
/// # Errors
/// One sentence for people.
pub(super) fn drop_unneeded() -> Result<(), String> {
    let cannot = |error| format!("capabilities cannot be given up: {error}");
    let had = capabilities(None).map_err(cannot)?;
    let rings_are_rare = std::fs::read_to_string(IO_URING).is_ok_and(|text| text.trim() == "1");
    let needed = match rings_are_rare {
        true => NEEDED | CapabilitySet::SYS_ADMIN,
        false => NEEDED,
    };
    let kept = CapabilitySets {
        effective: had.effective & needed,
        permitted: had.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    if kept == had {
        return Ok(());
    }
    set_capabilities(None, kept).map_err(cannot)?;
    match kept.effective.contains(CapabilitySet::SYS_ADMIN) {
        true => Err(format!("sys_admin is kept, since {IO_URING} gives io_uring to it alone")),
        false => Ok(()),
    }
}

/// The capabilities of this process.
pub(super) fn held() -> Vec<String> {
    let mask = super::status("CapEff").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    let held = CapabilitySet::from_bits_truncate(mask.unwrap_or_default());
    held.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}
