//! What would make a connection faster, or what makes it slower than it need be.

use super::finding::Finding;
use farblock_block::size::Size;
use farblock_host::{Controller, Options};
use std::net::SocketAddr;
use std::time::Duration;

/// A round trip that is longer is felt with one command at a time.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(2);
/// Transfers that are smaller cost a command each.
const SMALL_TRANSFER_BYTES: u32 = 128 << 10;
/// Writes up to this size need no round trip more, if the controller takes them in the capsule.
const USUAL_IN_CAPSULE_BYTES: u32 = 4096;
const CHECK: &str = "speed";

/// Hints, if there are any.
pub(super) fn of_controller(
    controller: &Controller,
    options: &Options,
    address: SocketAddr,
    round_trip: Duration,
) -> Vec<Finding> {
    let info = controller.info();
    let is_here = address.ip().to_canonical().is_loopback();
    let mut hints = Vec::new();
    if options.data_digest && (is_here || options.tls_key.is_some()) {
        let why = if is_here { "never leave this machine" } else { "are checked by TLS already" };
        hints.push(Finding::hint(
            CHECK,
            format!("data have digests, and {why}"),
            "leave --data-digest out: it costs processor time on both sides",
        ));
    }
    if info.in_capsule_bytes < USUAL_IN_CAPSULE_BYTES && !info.discovery {
        hints.push(Finding::hint(
            CHECK,
            format!(
                "the target takes {} of data with a command",
                Size(info.in_capsule_bytes.into())
            ),
            "raise its in-capsule data size to 4 KiB or more: each small write costs a round trip \
             less",
        ));
    }
    if let Some(bytes) = info.max_transfer_bytes.filter(|&bytes| bytes < SMALL_TRANSFER_BYTES) {
        hints.push(Finding::hint(
            CHECK,
            format!("one command moves {} at most", Size(bytes.into())),
            "raise the target's largest transfer (MDTS)",
        ));
    }
    // Within a machine it is its load that takes time, not a way.
    if round_trip >= LONG_ROUND_TRIP && !is_here {
        hints.push(Finding::hint(
            CHECK,
            format!("a round trip takes {round_trip:.1?}, and each I/O at least as long"),
            "keep many I/Os in flight (fio --iodepth=32), or bring target and host nearer together",
        ));
    }
    hints
}
