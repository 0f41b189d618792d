//! Refuses swap on an attached disk. The server needs memory to send swapped pages, but the kernel
//! waits for that disk to free memory, and the machine hangs.
//!
//! The kernel cannot refuse swap on a device. So the supervisor, which keeps its rights, watches
//! the kernel's swap table and runs swapoff while such swap is still empty.

use super::folder::Folder;
use super::server::Saved;
use super::status::{Offer, UseKind};
use farblock_frontend::users::{SWAPS, swaps_on};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// The kernel itself serves these disks.
const SAFE_WAY: &str = "nvme";

/// The reason, for the log and for people.
const WHY: &str = "a machine that swaps to a disk which a process of its own serves hangs when it \
                   is short of memory";
/// The advice for the user.
const ADVICE: &str = "run `swapoff` and swap to a local disk: a machine that swaps to a disk \
                      which a process of its own serves hangs when it is short of memory";

/// Removes swap on the disk from now on.
pub(super) fn refuse(folder: &Folder) {
    let folder = folder.clone();
    let watch = move || {
        if let Err(error) = watch(&folder) {
            tracing::warn!("swap on this disk is not noticed any more: {error}");
        }
    };
    let thread = thread::Builder::new().name("swap".to_owned()).spawn(watch);
    if let Err(error) = thread {
        tracing::warn!("swap on this disk is not noticed: {error}");
    }
}

fn watch(folder: &Folder) -> io::Result<()> {
    // The kernel reports changes since this open.
    let table = File::open(SWAPS)?;
    loop {
        let saved = folder.read_json::<Saved>("state.json");
        for swap in saved.iter().flat_map(|saved| on(&saved.offer)) {
            switch_off(&swap);
        }
        let mut polled = [PollFd::new(&table, PollFlags::PRI)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn switch_off(swap: &Path) {
    let name = swap.display();
    let run = Command::new("swapoff").arg(swap).stdin(Stdio::null()).output();
    let why = match run {
        Ok(output) if output.status.success() => {
            return tracing::error!("swap on {name} was switched off: {WHY}");
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("swapoff: {error}"),
    };
    tracing::error!("{name} is swapped to, and that cannot be switched off ({why}): {ADVICE}");
}

/// Swap on the disk that can hang the machine.
pub(super) fn on(offer: &Offer) -> Vec<PathBuf> {
    if offer.way == SAFE_WAY || offer.used.kind != UseKind::Device {
        return Vec::new();
    }
    swaps_on(Path::new(&offer.used.path))
}

/// A warning, if the disk holds swap space.
pub(super) fn warning(offer: &Offer) -> Option<String> {
    let can_hang = offer.way != SAFE_WAY && offer.used.kind == UseKind::Device;
    let is_meant = || File::open(&offer.used.path).is_ok_and(|disk| has_signature(&disk));
    (can_hang && is_meant()).then(|| {
        format!("{} holds swap space, and `swapon` is undone at once: {WHY}", offer.used.path)
    })
}

/// Whether the disk has a `mkswap` signature, at the end of the first page, for any page size.
fn has_signature(disk: &File) -> bool {
    PAGES_BYTES.iter().any(|page| {
        let mut end = [0; SIGNATURE_BYTES];
        let read = disk.read_exact_at(&mut end, page - SIGNATURE_BYTES as u64);
        read.is_ok() && SIGNATURES.contains(&&end)
    })
}

const SIGNATURE_BYTES: usize = 10;
const SIGNATURES: [&[u8; SIGNATURE_BYTES]; 2] = [b"SWAPSPACE2", b"SWAP-SPACE"];
const PAGES_BYTES: [u64; 3] = [4096, 16_384, 65_536];

/// The problem and the advice.
pub(super) fn trouble(offer: &Offer) -> Option<(String, &'static str)> {
    let swaps = on(offer);
    let names: Vec<String> = swaps.iter().map(|swap| swap.display().to_string()).collect();
    (!names.is_empty()).then(|| (format!("the machine swaps to {}", names.join(", ")), ADVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_for_swap_is_known_by_its_signature() {
        let file = tempfile::tempfile().expect("a file");
        assert!(!has_signature(&file), "an empty one");
        file.set_len(1 << 20).expect("a size");
        assert!(!has_signature(&file));
        file.write_all_at(b"SWAPSPACE2", 65_526).expect("it writes");
        assert!(has_signature(&file));
    }
}
