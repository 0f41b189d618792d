//! Hints about settings that slow a connection down.

use super::finding::Finding;
use farblock_block::size::Size;
use farblock_host::Options;
use farblock_proto::host::ControllerInfo;
use std::net::SocketAddr;
use std::time::Duration;

/// At this round trip time or more, the network dominates the latency of a command.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(2);
/// With a smaller transfer limit, large I/Os need noticeably more commands.
const SMALL_TRANSFER_BYTES: u32 = 128 << 10;
/// Controllers usually accept writes of up to this size in the command capsule, which saves a round
/// trip.
const USUAL_IN_CAPSULE_BYTES: u32 = 4096;
const CHECK: &str = "speed";

/// Returns hints about a connected controller.
pub(super) fn of_controller(
    info: &ControllerInfo,
    options: &Options,
    address: SocketAddr,
    round_trip: Duration,
) -> Vec<Finding> {
    let is_here = address.ip().to_canonical().is_loopback();
    let mut hints = Vec::new();
    if options.tcp.data_digest && (is_here || options.tcp.tls_key.is_some()) {
        let why = match is_here {
            true => "the data never leave this machine",
            false => "TLS checks the data, too",
        };
        hints.push(Finding::hint(
            CHECK,
            format!("data digests are on, although {why}"),
            "leave --data-digest out: digests cost processor time on both sides",
        ));
    }
    if info.in_capsule_bytes < USUAL_IN_CAPSULE_BYTES && !info.discovery {
        hints.push(Finding::hint(
            CHECK,
            format!(
                "the target accepts at most {} of data in a command capsule",
                Size(info.in_capsule_bytes.into())
            ),
            "raise the target's in-capsule data size to 4 KiB or more, which saves a round trip \
             for each small write",
        ));
    }
    if let Some(bytes) = info.max_transfer_bytes.filter(|&bytes| bytes < SMALL_TRANSFER_BYTES) {
        hints.push(Finding::hint(
            CHECK,
            format!("one command transfers {} at most", Size(bytes.into())),
            "raise the target's maximum data transfer size (MDTS)",
        ));
    }
    // On the loopback, only load causes long round trips.
    if round_trip >= LONG_ROUND_TRIP && !is_here {
        hints.push(Finding::hint(
            CHECK,
            format!("a round trip takes {round_trip:.1?}, and each I/O at least as long"),
            "keep many I/Os in flight (fio --iodepth=32), or shorten the network path",
        ));
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use farblock_host::TcpOptions;

    const NEAR: Duration = Duration::from_micros(100);
    const FAR: Duration = Duration::from_millis(20);

    /// The advice of each hint.
    fn advice(info: &ControllerInfo, options: &Options, to: &str, trip: Duration) -> Vec<String> {
        let address = to.parse().expect("the address is valid");
        let hints = of_controller(info, options, address, trip);
        assert!(hints.iter().all(|it| (it.check, it.verdict) == (CHECK, Verdict::Hint)));
        hints.into_iter().map(|hint| hint.advice.expect("the finding has advice")).collect()
    }

    #[track_caller]
    fn is_one(hints: &[String], part: &str) {
        assert!(hints.len() == 1 && hints[0].contains(part), "{hints:?}");
    }

    #[test]
    fn each_cause_of_a_slow_connection_is_a_hint() {
        let good = ControllerInfo { in_capsule_bytes: 8192, ..ControllerInfo::default() };
        let plain = Options::default();
        let (here, there) = ("127.0.0.1:4420", "192.0.2.7:4420");
        assert_eq!(advice(&good, &plain, there, NEAR), [""; 0]);
        is_one(&advice(&good, &plain, there, FAR), "--iodepth=32");
        assert_eq!(advice(&good, &plain, here, FAR), [""; 0]);
        assert_eq!(advice(&good, &plain, "[::ffff:127.0.0.1]:4420", FAR), [""; 0]);

        let tcp = TcpOptions { data_digest: true, ..TcpOptions::default() };
        let digests = Options { tcp, ..Options::default() };
        is_one(&advice(&good, &digests, here, NEAR), "leave --data-digest out");
        assert_eq!(advice(&good, &digests, there, NEAR), [""; 0]);

        let small = ControllerInfo { in_capsule_bytes: 0, ..good.clone() };
        is_one(&advice(&small, &plain, there, NEAR), "in-capsule data size");
        let discovery = ControllerInfo { discovery: true, ..small };
        assert_eq!(advice(&discovery, &plain, there, NEAR), [""; 0]);

        let least = ControllerInfo { max_transfer_bytes: Some(SMALL_TRANSFER_BYTES), ..good };
        assert_eq!(advice(&least, &plain, there, NEAR), [""; 0]);
        let less = ControllerInfo { max_transfer_bytes: Some(64 << 10), ..least };
        is_one(&advice(&less, &plain, there, NEAR), "MDTS");
    }
}
