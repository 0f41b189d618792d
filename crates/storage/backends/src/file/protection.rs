//! Detects files and devices that become write-protected, or writable again, while they are open.
//!
//! Once a second the growth thread checks for `blockdev --setro`, `chattr +i` or `+a`, and a
//! read-only file system. Some file systems turn read-only after an error, but do not report it. So
//! if the system refuses a write for this reason, the namespace stays read-only for
//! [`REFUSED_LOOKS`] further checks.
//!
//! Flushes of a protected file still reach the system, because earlier writes may need them.

use super::{FileKind, FileShared, probe};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// After the system has refused a write, the namespace stays read-only for this many checks (one a
/// second).
const REFUSED_LOOKS: u32 = 60;

/// Why an open file or device cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux reports the reason"))]
pub(super) enum Obstacle {
    /// The device is set to read-only.
    Device,
    /// The file system is mounted read-only.
    FileSystem,
    /// The file has the attribute `i` or `a`.
    Attribute,
    /// The system has refused a write because of a read-only file system.
    Refused,
}

impl Obstacle {
    const ALL: [Obstacle; 4] = [Self::Device, Self::FileSystem, Self::Attribute, Self::Refused];

    fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// Whether an open file is write-protected at present.
#[derive(Default)]
pub(super) struct Protection {
    /// The number of the [`Obstacle`]; 0 if the file can be written.
    obstacle: AtomicU8,
    /// The number of further checks for which the namespace stays read-only because of the last
    /// refused write.
    refused: AtomicU32,
}

impl Protection {
    pub(super) fn is_set(&self) -> bool {
        // Relaxed ordering suffices: if an outdated value admits a write, the system refuses it.
        self.obstacle.load(Ordering::Relaxed) != 0
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let number = self.obstacle.load(Ordering::Relaxed);
        Obstacle::ALL.into_iter().find(|it| it.number() == number)
    }

    /// Records that the system refused a write with `error`.
    pub(super) fn note_refusal(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
            self.refused.store(REFUSED_LOOKS, Ordering::Relaxed);
        }
    }

    /// Whether a refused write still makes the file read-only. Each call counts as one check.
    fn was_refused(&self) -> bool {
        let later = |looks: u32| looks.checked_sub(1);
        self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later).is_ok()
    }
}

impl FileShared {
    /// Checks whether the file can be written at present. Returns true if that has changed since
    /// the last check.
    pub(super) fn look_for_protection(&self, kind: FileKind) -> bool {
        let Some(file) = self.system().filter(|_| !self.geometry.read_only) else { return false };
        let refused = self.protection.was_refused();
        let reported = probe::obstacle(file, kind);
        let found = reported.or_else(|| refused.then_some(Obstacle::Refused));
        let number = found.map_or(0, Obstacle::number);
        let before = self.protection.obstacle.swap(number, Ordering::Relaxed);
        match self.protection_text() {
            Some(text) if before == 0 => tracing::warn!("{text}"),
            None if before != 0 => tracing::warn!("{} can be written again", self.extent.name()),
            _ => {}
        }
        (before == 0) != found.is_none()
    }

    /// The reason why the file cannot be written, and what the operator can do.
    pub(super) fn protection_text(&self) -> Option<String> {
        let name = self.extent.name();
        let (why, advice) = match self.protection.obstacle()? {
            Obstacle::Device => {
                let advice = format!("`blockdev --setrw {name}` makes it writable");
                ("the device was set to read-only", advice)
            }
            Obstacle::FileSystem => {
                let advice = "mount its file system writable again".to_owned();
                ("its file system became read-only", advice)
            }
            Obstacle::Attribute => {
                let advice = format!("`chattr -i -a {name}` makes it writable");
                ("it was made immutable or append-only", advice)
            }
            Obstacle::Refused => {
                let advice = "see the system's log (`dmesg`) for the error".to_owned();
                ("its file system became read-only, perhaps after an error", advice)
            }
        };
        Some(format!("{name} cannot be written while it is in use, because {why}: {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_write_is_remembered_for_a_limited_number_of_checks() {
        let protection = Protection::default();
        protection.note_refusal(&io::ErrorKind::PermissionDenied.into());
        assert!(!protection.was_refused(), "an error without write protection was remembered");
        protection.note_refusal(&io::ErrorKind::ReadOnlyFilesystem.into());
        let looks = (0..1000).take_while(|_| protection.was_refused()).count();
        assert_eq!(looks, REFUSED_LOOKS as usize);
    }

    #[test]
    fn every_obstacle_is_stored_and_read_as_a_number() {
        for obstacle in Obstacle::ALL {
            let protection = Protection::default();
            assert!(!protection.is_set() && protection.obstacle().is_none());
            protection.obstacle.store(obstacle.number(), Ordering::Relaxed);
            assert_eq!((protection.is_set(), protection.obstacle()), (true, Some(obstacle)));
        }
    }
}
