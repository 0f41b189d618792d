//! Refuses swap on an attached disk, which could hang the machine. The kernel would wait for this
//! disk in order to free memory, while the server needs memory to send the pages.
//!
//! The kernel has no means to refuse swap on a device. So the supervisor, which keeps its rights,
//! watches the kernel's table of swap areas. As soon as a swap area on the disk appears, the
//! supervisor runs swapoff, while the area is still empty.

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

/// The way to attach that is safe for swap, because the kernel itself serves the disk.
const SAFE_WAY: &str = "nvme";

/// The reason to refuse swap, for the log and for users.
const WHY: &str = "a machine that is short of memory hangs if it swaps to a disk that one of its \
                   own processes serves";
const ADVICE: &str = "run `swapoff` and swap to a local disk: a machine that is short of memory \
                      hangs if it swaps to a disk that one of its own processes serves";

/// Starts a thread that switches off swap on the disk whenever it appears.
pub(super) fn refuse(folder: &Folder) {
    let folder = folder.clone();
    let watch = move || {
        if let Err(error) = watch(&folder) {
            tracing::warn!("cannot detect swap on this disk any more: {error}");
        }
    };
    let thread = thread::Builder::new().name("swap".to_owned()).spawn(watch);
    if let Err(error) = thread {
        tracing::warn!("cannot detect swap on this disk: {error}");
    }
}

fn watch(folder: &Folder) -> io::Result<()> {
    // Open the table first: the kernel reports only changes after the open, so no swap is missed.
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
            return tracing::error!("switched off swap on {name}: {WHY}");
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("swapoff: {error}"),
    };
    tracing::error!("cannot switch off swap on {name} ({why}): {ADVICE}");
}

/// The active swap areas on the disk that can hang the machine.
pub(super) fn on(offer: &Offer) -> Vec<PathBuf> {
    if offer.way == SAFE_WAY || offer.used.kind != UseKind::Device {
        return Vec::new();
    }
    swaps_on(Path::new(&offer.used.path))
}

/// A warning if the disk has a swap signature, although it must not be used for swap.
pub(super) fn warning(offer: &Offer) -> Option<String> {
    let can_hang = offer.way != SAFE_WAY && offer.used.kind == UseKind::Device;
    let is_meant = || File::open(&offer.used.path).is_ok_and(|disk| has_signature(&disk));
    (can_hang && is_meant()).then(|| {
        format!("{} holds swap space, but farblock undoes `swapon`: {WHY}", offer.used.path)
    })
}

/// Whether the disk has a `mkswap` signature at the end of its first page, for any page size.
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

/// The problem and the advice, if the machine swaps to this disk.
pub(super) fn trouble(offer: &Offer) -> Option<(String, &'static str)> {
    let swaps = on(offer);
    let names: Vec<String> = swaps.iter().map(|swap| swap.display().to_string()).collect();
    (!names.is_empty()).then(|| (format!("the machine swaps to {}", names.join(", ")), ADVICE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_disk_is_recognized_by_its_signature() {
        let file = tempfile::tempfile().expect("a file");
        assert!(!has_signature(&file), "an empty file has a signature");
        file.set_len(1 << 20).expect("a size");
        assert!(!has_signature(&file));
        file.write_all_at(b"SWAPSPACE2", 65_526).expect("the write succeeds");
        assert!(has_signature(&file));
    }
}
