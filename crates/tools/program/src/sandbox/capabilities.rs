//! Drops the capabilities of root that a target does not need.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The capabilities that a target needs: to share other users' files, to listen on ports below
/// 1024, and to lock the memory of io_uring rings.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK);

/// The kernel setting that restricts io_uring: 0 allows all users; 1 allows a group, and processes
/// with `CAP_SYS_ADMIN`.
const IO_URING: &str = "/proc/sys/kernel/io_uring_disabled";

/// Drops all capabilities except [`NEEDED`].
///
/// # Errors
/// The capabilities cannot be dropped, or `CAP_SYS_ADMIN` must stay for io_uring. The error is a
/// sentence for the user.
pub(super) fn drop_unneeded() -> Result<(), String> {
    let cannot = |error| format!("cannot drop capabilities: {error}");
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
        true => Err(format!("kept sys_admin, since {IO_URING} reserves io_uring for it")),
        false => Ok(()),
    }
}

/// Returns the names of this process's effective capabilities.
pub(super) fn held() -> Vec<String> {
    let mask = super::status("CapEff").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    let held = CapabilitySet::from_bits_truncate(mask.unwrap_or_default());
    held.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}
