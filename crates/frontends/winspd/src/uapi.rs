//! The structures shared with WinSpd's library, from `winspd/ioctl.h` and `winspd/winspd.h` of
//! WinSpd 0.10 for 64-bit systems. Assertions check every size and offset, because the Rust
//! compiler does not read the library's headers.

use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The kinds of requests: `SpdIoctlTransactReadKind` and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum TransactKind {
    Read = 1,
    Write = 2,
    Flush = 3,
    Unmap = 4,
}

/// `WriteProtected`: the disk refuses writes.
pub(crate) const WRITE_PROTECTED: u32 = 1 << 0;
/// `CacheSupported`: the disk has a cache. Without this flag, the driver sets FUA on every write
/// and never flushes.
pub(crate) const CACHE_SUPPORTED: u32 = 1 << 1;
/// `UnmapSupported`: the disk supports unmap.
pub(crate) const UNMAP_SUPPORTED: u32 = 1 << 2;
/// `EjectDisabled`: Explorer does not offer to eject the disk. Ejecting works only for disks whose
/// process WinSpd's launcher started.
pub(crate) const EJECT_DISABLED: u32 = 1 << 3;

/// `SPD_STORAGE_UNIT_PARAMS`: the properties of a disk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) guid: [u8; 16],
    pub(crate) block_count: u64,
    pub(crate) block_length: u32,
    pub(crate) product_id: [u8; 16],
    pub(crate) product_revision: [u8; 4],
    /// The SCSI device type; 0 is a direct access block device.
    pub(crate) device_type: u8,
    pub(crate) padding: [u8; 3],
    pub(crate) flags: u32,
    pub(crate) max_transfer_length: u32,
    pub(crate) padding2: u32,
    pub(crate) reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<Params>() == 128);
    assert!(offset_of!(Params, guid) == 0);
    assert!(offset_of!(Params, block_count) == 16);
    assert!(offset_of!(Params, block_length) == 24);
    assert!(offset_of!(Params, product_id) == 28);
    assert!(offset_of!(Params, product_revision) == 44);
    assert!(offset_of!(Params, device_type) == 48);
    assert!(offset_of!(Params, flags) == 52);
    assert!(offset_of!(Params, max_transfer_length) == 56);
    assert!(offset_of!(Params, reserved) == 64);
};

/// `InformationValid`, the bit after `ReservedFRU`: the field `information` is valid.
pub(crate) const INFORMATION_VALID: u32 = 1 << 8;

/// `SPD_STORAGE_UNIT_STATUS`: the SCSI status of a request.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Status {
    pub(crate) scsi_status: u8,
    pub(crate) sense_key: u8,
    pub(crate) asc: u8,
    pub(crate) ascq: u8,
    pub(crate) padding: u32,
    pub(crate) information: u64,
    pub(crate) reserved_csi: u64,
    pub(crate) reserved_sks: u32,
    pub(crate) flags: u32,
}

const _: () = {
    assert!(size_of::<Status>() == 32);
    assert!(offset_of!(Status, scsi_status) == 0);
    assert!(offset_of!(Status, sense_key) == 1);
    assert!(offset_of!(Status, asc) == 2);
    assert!(offset_of!(Status, ascq) == 3);
    assert!(offset_of!(Status, information) == 8);
    assert!(offset_of!(Status, reserved_csi) == 16);
    assert!(offset_of!(Status, reserved_sks) == 24);
    assert!(offset_of!(Status, flags) == 28);
};

/// `SPD_UNMAP_DESCRIPTOR`: a range to unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UnmapDescriptor {
    pub(crate) block_address: u64,
    pub(crate) block_count: u32,
    pub(crate) reserved: u32,
}

const _: () = {
    assert!(size_of::<UnmapDescriptor>() == 16);
    assert!(offset_of!(UnmapDescriptor, block_address) == 0);
    assert!(offset_of!(UnmapDescriptor, block_count) == 8);
};

/// `SPD_IOCTL_TRANSACT_RSP`: the answer to a request.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Response {
    /// The request's hint (identifier).
    pub(crate) hint: u64,
    /// The request's kind.
    pub(crate) kind: u8,
    pub(crate) padding: [u8; 7],
    pub(crate) status: Status,
}

const _: () = {
    assert!(size_of::<Response>() == 48);
    assert!(offset_of!(Response, hint) == 0);
    assert!(offset_of!(Response, kind) == 8);
    assert!(offset_of!(Response, status) == 16);
};

impl Response {
    pub(crate) fn new(hint: u64, kind: TransactKind, status: Status) -> Response {
        Response { hint, kind: kind as u8, padding: [0; 7], status }
    }
}
