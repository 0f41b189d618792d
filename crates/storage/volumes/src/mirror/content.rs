//! Determines the size of the data on a disk from its first sectors.
//!
//! A new mirror keeps the data of its first leg, and is smaller than that leg. A file system that
//! is larger than its disk cannot be mounted, so the mirror checks its size first.

/// The length of the data, in bytes from the start of the disk. `None` if the format is unknown.
///
/// The length covers the whole file system or volume, without the area that the format leaves
/// unused at the end of the disk.
pub(crate) fn bytes(start: &[u8]) -> Option<u64> {
    [ext, xfs, btrfs, lvm, ntfs, partitions].iter().find_map(|format| format(start))
}

fn has(start: &[u8], at: usize, magic: &[u8]) -> bool {
    start.get(at..at + magic.len()) == Some(magic)
}

fn field<const N: usize>(start: &[u8], at: usize) -> Option<[u8; N]> {
    start.get(at..at + N)?.try_into().ok()
}

fn le16(start: &[u8], at: usize) -> Option<u64> {
    field(start, at).map(u16::from_le_bytes).map(u64::from)
}

fn le32(start: &[u8], at: usize) -> Option<u64> {
    field(start, at).map(u32::from_le_bytes).map(u64::from)
}

fn le64(start: &[u8], at: usize) -> Option<u64> {
    field(start, at).map(u64::from_le_bytes)
}

/// The size of ext2, ext3 and ext4: `struct ext4_super_block` in Linux's `fs/ext4/ext4.h`.
fn ext(start: &[u8]) -> Option<u64> {
    const AT: usize = 1024;
    const IS_64_BIT: u64 = 0x80;
    if !has(start, AT + 0x38, &0xef53_u16.to_le_bytes()) {
        return None;
    }
    let has_high_half = le32(start, AT + 0x60)? & IS_64_BIT != 0;
    let high = if has_high_half { le32(start, AT + 0x150)? } else { 0 };
    let blocks = (high << 32) | le32(start, AT + 0x4)?;
    let block_bytes = 1024_u64.checked_shl(le32(start, AT + 0x18)?.try_into().ok()?)?;
    blocks.checked_mul(block_bytes)
}

/// The size of XFS: `struct xfs_dsb` in Linux's `fs/xfs/libxfs/xfs_format.h`.
fn xfs(start: &[u8]) -> Option<u64> {
    if !has(start, 0, b"XFSB") {
        return None;
    }
    let block_bytes = u32::from_be_bytes(field(start, 4)?);
    u64::from_be_bytes(field(start, 8)?).checked_mul(u64::from(block_bytes))
}

/// The size of this device in Btrfs: `struct btrfs_super_block` in Linux's
/// `uapi/linux/btrfs_tree.h`.
fn btrfs(start: &[u8]) -> Option<u64> {
    const AT: usize = 0x1_0000;
    has(start, AT + 0x40, b"_BHRfS_M").then(|| le64(start, AT + 0xd1))?
}

/// The size of an LVM physical volume: `struct pv_header` in LVM's `lib/format_text/layout.h`,
/// behind the label in one of the first four sectors.
fn lvm(start: &[u8]) -> Option<u64> {
    let label = (0..4).map(|sector| sector * 512).find(|&at| has(start, at, b"LABELONE"))?;
    let header = label + usize::try_from(le32(start, label + 20)?).ok()?;
    le64(start, header + 32)
}

/// The size of NTFS, from its boot sector. A copy of the boot sector follows the last sector of the
/// stated size.
fn ntfs(start: &[u8]) -> Option<u64> {
    if !has(start, 3, b"NTFS    ") {
        return None;
    }
    le64(start, 0x28)?.checked_add(1)?.checked_mul(le16(start, 0xb)?)
}

/// The end of the last partition in a master boot record, in bytes. (A GUID partition table has a
/// copy at the end of the disk, where a mirror needs zeroes.)
fn partitions(start: &[u8]) -> Option<u64> {
    if !has(start, 510, &[0x55, 0xaa]) {
        return None;
    }
    let ends = (0..4).map(|entry| {
        let at = 446 + 16 * entry;
        Some((le32(start, at + 8)? + le32(start, at + 12)?) * 512)
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max().filter(|&end| end > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_size_of_an_ext_file_system_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        for (kind, kib) in [("ext2", 5000_u64), ("ext4", 20_000)] {
            std::fs::write(&image, []).unwrap();
            let mut tool = std::process::Command::new("/usr/sbin/mke2fs");
            tool.args(["-q", "-F", "-t", kind, "-b", "1024"]).arg(&image).arg(kib.to_string());
            let made = tool.status().expect("mke2fs (of e2fsprogs) runs");
            assert!(made.success(), "{kind}");
            assert_eq!(bytes(&std::fs::read(&image).unwrap()), Some(kib << 10), "{kind}");
        }
    }

    #[test]
    fn the_size_in_each_other_format_is_found() {
        let start = |fields: &[(usize, &[u8])]| {
            let mut start = vec![0; 128 << 10];
            for (at, bytes) in fields {
                start[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            start
        };
        let gib = (1_u64 << 30).to_le_bytes();
        for (name, fields) in [
            ("xfs", [(0, &b"XFSB"[..]), (4, &[0, 0, 16, 0]), (8, &[0, 0, 0, 0, 0, 4, 0, 0])]),
            ("btrfs", [(0x1_0040, b"_BHRfS_M"), (0x1_00d1, &gib), (0, &[0])]),
            ("LVM", [(512, b"LABELONE"), (532, &[32, 0, 0, 0]), (576, &gib)]),
            ("NTFS", [(3, b"NTFS    "), (0x28, &[0xff, 0xff, 0x1f]), (0xb, &[0, 2])]),
            ("MBR", [(510, &[0x55, 0xaa]), (454, &[0, 8, 0, 0]), (458, &[0, 0xf8, 0x1f, 0])]),
        ] {
            assert_eq!(bytes(&start(&fields)), Some(1 << 30), "{name}");
        }
    }

    #[test]
    fn unknown_and_damaged_content_has_no_size() {
        assert_eq!(bytes(&[]), None);
        assert_eq!(bytes(&[0; 1 << 20]), None);
        assert_eq!(bytes(&[0x41; 1 << 20]), None);
        // A truncated start must not cause a panic.
        let mut start = vec![0; 2048];
        start[1080..1082].copy_from_slice(&0xef53_u16.to_le_bytes());
        start[1048..1052].fill(0xff);
        (0..start.len()).for_each(|end| assert_eq!(bytes(&start[..end]), None));
        assert_eq!(bytes(&start), None, "an invalid block size was accepted");
    }
}
