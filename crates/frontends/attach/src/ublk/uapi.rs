//! The layout of the driver's structures: the part of `linux/ublk_cmd.h` that the server uses.
//!
//! Numbers have the machine's byte order.

use super::limits;
use farblock_block::Geometry;

/// The driver's unit of size, in bytes. It does not depend on the block size.
pub(super) const SECTOR_BYTES: u32 = 512;

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// Computes the number of a command, like `_IOC`.
const fn number(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// The commands `UBLK_U_CMD_…` for `/dev/ublk-control`.
pub(super) mod control {
    use super::{CONTROL_BYTES as BYTES, READ, READ_WRITE, number};

    pub(crate) const ADD_DEV: u32 = number(READ_WRITE, 0x04, BYTES);
    pub(crate) const DEL_DEV: u32 = number(READ_WRITE, 0x05, BYTES);
    pub(crate) const START_DEV: u32 = number(READ_WRITE, 0x06, BYTES);
    pub(crate) const STOP_DEV: u32 = number(READ_WRITE, 0x07, BYTES);
    pub(crate) const SET_PARAMS: u32 = number(READ_WRITE, 0x08, BYTES);
    pub(crate) const GET_PARAMS: u32 = number(READ, 0x09, BYTES);
    pub(crate) const START_USER_RECOVERY: u32 = number(READ_WRITE, 0x10, BYTES);
    pub(crate) const END_USER_RECOVERY: u32 = number(READ_WRITE, 0x11, BYTES);
    /// This command includes the path of the character device, so that any user may send it.
    pub(crate) const GET_DEV_INFO2: u32 = number(READ, 0x12, BYTES);
    pub(crate) const GET_FEATURES: u32 = number(READ, 0x13, BYTES);
    /// This command does not wait until all processes have closed the block device.
    pub(crate) const DEL_DEV_ASYNC: u32 = number(READ, 0x14, BYTES);
    pub(crate) const UPDATE_SIZE: u32 = number(READ_WRITE, 0x15, BYTES);
}

/// The commands `UBLK_U_IO_…` for `/dev/ublkcN`.
pub(super) mod io {
    use super::{IO_BYTES as BYTES, READ_WRITE, number};

    pub(crate) const FETCH_REQ: u32 = number(READ_WRITE, 0x20, BYTES);
    pub(crate) const COMMIT_AND_FETCH_REQ: u32 = number(READ_WRITE, 0x21, BYTES);
}

/// The features `UBLK_F_…` of a driver or a device.
pub(super) mod feature {
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(crate) const UNPRIVILEGED_DEV: u64 = 1 << 5;
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
}

/// The device states `UBLK_S_DEV_…`.
pub(super) mod state {
    pub(crate) const LIVE: u16 = 1;
    pub(crate) const QUIESCED: u16 = 2;
}

/// The operations `UBLK_IO_OP_…`: the low byte of a descriptor's first word.
pub(super) mod operation {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;
}

/// The flags `UBLK_IO_F_…`: the other bits of a descriptor's first word.
pub(super) mod flag {
    pub(crate) const FUA: u32 = 1 << 13;
    pub(crate) const NOUNMAP: u32 = 1 << 15;
}

/// The length of `struct ublksrv_ctrl_cmd`, in bytes.
pub(super) const CONTROL_BYTES: usize = 32;
/// The length of `struct ublksrv_io_cmd`, in bytes.
pub(super) const IO_BYTES: usize = 16;
/// The length of `struct ublksrv_io_desc`, in bytes.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// The length of `struct ublksrv_ctrl_dev_info`, in bytes.
pub(super) const INFO_BYTES: usize = 64;
/// The length of `struct ublk_params` up to `devt`, in bytes. Every kernel supports these fields.
pub(super) const PARAMS_BYTES: usize = 80;

fn put<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&value);
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("the field has this length")
}

/// A command to the control device.
pub(super) struct Control {
    pub(super) device: u32,
    /// The length of the buffer in bytes, followed by its address. For some commands, the buffer
    /// starts with the path of the character device.
    pub(super) length: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_length: u16,
}

impl Control {
    /// Encodes the command for an io_uring entry.
    pub(super) fn emit(&self) -> [u8; 80] {
        const NO_QUEUE: u16 = u16::MAX;
        let mut bytes = [0; 80];
        put(&mut bytes, 0, self.device.to_ne_bytes());
        put(&mut bytes, 4, NO_QUEUE.to_ne_bytes());
        put(&mut bytes, 6, self.length.to_ne_bytes());
        put(&mut bytes, 8, self.address.to_ne_bytes());
        put(&mut bytes, 16, self.data.to_ne_bytes());
        put(&mut bytes, 24, self.path_length.to_ne_bytes());
        bytes
    }
}

/// Encodes a command that asks for a request with this tag of a queue. The command also answers the
/// tag's last request, if there was one.
pub(super) fn io_command(queue: u16, tag: u16, result: i32, address: u64) -> [u8; IO_BYTES] {
    let mut bytes = [0; IO_BYTES];
    put(&mut bytes, 0, queue.to_ne_bytes());
    put(&mut bytes, 2, tag.to_ne_bytes());
    put(&mut bytes, 4, result.to_ne_bytes());
    put(&mut bytes, 8, address.to_ne_bytes());
    bytes
}

/// The properties of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) request_bytes: u32,
    pub(super) id: u32,
    /// The ID of the process that serves the device.
    pub(super) pid: i32,
    pub(super) flags: u64,
    /// The hash of the disk's identifier. The driver reserves this field for servers.
    pub(super) identity: u64,
}

impl Info {
    pub(super) fn emit(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        put(&mut bytes, 0, self.queues.to_ne_bytes());
        put(&mut bytes, 2, self.depth.to_ne_bytes());
        put(&mut bytes, 4, self.state.to_ne_bytes());
        put(&mut bytes, 8, self.request_bytes.to_ne_bytes());
        put(&mut bytes, 12, self.id.to_ne_bytes());
        put(&mut bytes, 16, self.pid.to_ne_bytes());
        put(&mut bytes, 24, self.flags.to_ne_bytes());
        put(&mut bytes, 32, self.identity.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; INFO_BYTES]) -> Info {
        Info {
            queues: u16::from_ne_bytes(at(bytes, 0)),
            depth: u16::from_ne_bytes(at(bytes, 2)),
            state: u16::from_ne_bytes(at(bytes, 4)),
            request_bytes: u32::from_ne_bytes(at(bytes, 8)),
            id: u32::from_ne_bytes(at(bytes, 12)),
            pid: i32::from_ne_bytes(at(bytes, 16)),
            flags: u64::from_ne_bytes(at(bytes, 24)),
            identity: u64::from_ne_bytes(at(bytes, 32)),
        }
    }
}

/// The parameters of a disk, as the driver takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Params {
    pub(super) read_only: bool,
    pub(super) volatile_cache: bool,
    pub(super) block_shift: u8,
    pub(super) physical_shift: u8,
    pub(super) optimal_shift: u8,
    pub(super) request_sectors: u32,
    pub(super) sectors: u64,
    pub(super) discard_sectors: u32,
    pub(super) zeroes_sectors: u32,
}

/// The attributes `UBLK_ATTR_…` of a disk.
mod attribute {
    pub(super) const READ_ONLY: u32 = 1 << 0;
    pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(super) const FUA: u32 = 1 << 3;
}

impl Params {
    /// The parameters of a namespace's disk. `request_bytes` is the length of the longest request.
    pub(super) fn of(geometry: &Geometry, request_bytes: u32) -> Params {
        let shift = |bytes: u32| bytes.trailing_zeros() as u8;
        let block_shift = shift(geometry.block_size);
        // The size of this many blocks, as an exponent of two. If the size is not a power of two,
        // the block size's exponent.
        let multiple = |blocks: u32| match blocks.checked_mul(geometry.block_size) {
            Some(bytes) if bytes.is_power_of_two() => shift(bytes),
            _ => block_shift,
        };
        let physical_shift = multiple(geometry.preferred_blocks);
        let range_sectors = limits::RANGE_BYTES / SECTOR_BYTES;
        Params {
            read_only: geometry.read_only,
            volatile_cache: geometry.volatile_cache,
            block_shift,
            physical_shift,
            optimal_shift: multiple(geometry.optimal_blocks).max(physical_shift),
            request_sectors: request_bytes / SECTOR_BYTES,
            sectors: geometry.capacity_bytes() / u64::from(SECTOR_BYTES),
            discard_sectors: if geometry.deallocate { range_sectors } else { 0 },
            zeroes_sectors: range_sectors,
        }
    }

    pub(super) fn emit(&self) -> [u8; PARAMS_BYTES] {
        const BASIC_AND_DISCARD: u32 = 1 << 0 | 1 << 1;
        let mut attributes = 0;
        if self.read_only {
            attributes |= attribute::READ_ONLY;
        }
        if self.volatile_cache {
            attributes |= attribute::VOLATILE_CACHE | attribute::FUA;
        }
        let mut bytes = [0; PARAMS_BYTES];
        put(&mut bytes, 0, (PARAMS_BYTES as u32).to_ne_bytes());
        put(&mut bytes, 4, BASIC_AND_DISCARD.to_ne_bytes());
        put(&mut bytes, 8, attributes.to_ne_bytes());
        let (optimal, least) = (self.optimal_shift, self.physical_shift);
        put(&mut bytes, 12, [self.block_shift, self.physical_shift, optimal, least]);
        put(&mut bytes, 16, self.request_sectors.to_ne_bytes());
        put(&mut bytes, 24, self.sectors.to_ne_bytes());
        // Discard parameters: granularity, limit of one discard, number of ranges.
        put(&mut bytes, 44, (1_u32 << self.block_shift).to_ne_bytes());
        put(&mut bytes, 48, self.discard_sectors.to_ne_bytes());
        put(&mut bytes, 52, self.zeroes_sectors.to_ne_bytes());
        put(&mut bytes, 56, 1_u16.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; PARAMS_BYTES]) -> Params {
        let attributes = u32::from_ne_bytes(at(bytes, 8));
        let [block_shift, physical_shift, optimal_shift, _] = at(bytes, 12);
        Params {
            read_only: attributes & attribute::READ_ONLY != 0,
            volatile_cache: attributes & attribute::VOLATILE_CACHE != 0,
            block_shift,
            physical_shift,
            optimal_shift,
            request_sectors: u32::from_ne_bytes(at(bytes, 16)),
            sectors: u64::from_ne_bytes(at(bytes, 24)),
            discard_sectors: u32::from_ne_bytes(at(bytes, 48)),
            zeroes_sectors: u32::from_ne_bytes(at(bytes, 52)),
        }
    }
}

/// A request from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptor {
    pub(super) operation: u8,
    pub(super) flags: u32,
    pub(super) sectors: u32,
    pub(super) sector: u64,
}

impl Descriptor {
    pub(super) fn parse(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let word = u32::from_ne_bytes(at(bytes, 0));
        Descriptor {
            operation: word as u8,
            flags: word & !0xff,
            sectors: u32::from_ne_bytes(at(bytes, 4)),
            sector: u64::from_ne_bytes(at(bytes, 8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_match_the_kernel_header() {
        // The numbers are the values that a C compiler computes for `_IOWR('u', 0x04, struct
        // ublksrv_ctrl_cmd)` and similar expressions.
        assert_eq!(control::ADD_DEV, 0xc020_7504);
        assert_eq!(control::GET_FEATURES, 0x8020_7513);
        assert_eq!(io::FETCH_REQ, 0xc010_7520);
        assert_eq!(io::COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn command_layouts_match_the_kernel_header() {
        let command =
            Control { device: 1, length: 2, address: 3 << 40, data: 4 << 40, path_length: 5 };
        let mut expected = [0; 80];
        (expected[0], expected[4], expected[5]) = (1, 0xff, 0xff);
        (expected[6], expected[13], expected[21], expected[24]) = (2, 3, 4, 5);
        assert_eq!(command.emit(), expected);
        let command = io_command(1, 2, -5, 7 << 40);
        assert_eq!(command, [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn device_information_round_trips() {
        let info = Info {
            queues: 1,
            depth: 2,
            state: 3,
            request_bytes: 4 << 16,
            id: 5 << 16,
            pid: -6,
            flags: 7 << 40,
            identity: 8 << 40,
        };
        let bytes = info.emit();
        assert_eq!(Info::parse(&bytes), info);
        assert_eq!((bytes[2], bytes[10], bytes[14], bytes[29], bytes[37]), (2, 4, 5, 7, 8));
        assert!(
            bytes[40..].iter().all(|&byte| byte == 0),
            "the server leaves the owner's fields zero"
        );
    }

    #[test]
    fn device_parameters_follow_the_geometry() {
        let geometry = Geometry { read_only: true, ..Geometry::new(512, 1000) };
        let params = Params::of(&geometry, 1 << 20);
        assert!(params.read_only && !params.volatile_cache);
        assert_eq!((params.block_shift, params.physical_shift, params.optimal_shift), (9, 9, 9));
        assert_eq!((params.sectors, params.request_sectors), (1000, 2048));
        assert_eq!(params.discard_sectors, 0);

        let geometry = Geometry {
            volatile_cache: true,
            deallocate: true,
            preferred_blocks: 4,
            optimal_blocks: 32,
            ..Geometry::new(4096, 1000)
        };
        let params = Params::of(&geometry, 1 << 20);
        assert_eq!((params.block_shift, params.physical_shift, params.optimal_shift), (12, 14, 17));
        assert_eq!((params.sectors, params.discard_sectors), (8000, 1 << 19));
        // The driver can express only powers of two.
        let odd = Geometry { preferred_blocks: 3, optimal_blocks: u32::MAX, ..geometry };
        let params = Params::of(&odd, 1 << 20);
        assert_eq!((params.physical_shift, params.optimal_shift), (12, 12));

        let bytes = params.emit();
        assert_eq!(Params::parse(&bytes), params);
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[12]), (80, 3, 0b1100, 12));
        assert_eq!(u64::from_ne_bytes(at(&bytes, 24)), 8000);
        assert_eq!(u32::from_ne_bytes(at(&bytes, 44)), 4096);
        assert_eq!(u16::from_ne_bytes(at(&bytes, 56)), 1);
    }

    #[test]
    fn a_request_descriptor_is_parsed() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        put(&mut bytes, 0, (u32::from(operation::WRITE) | flag::FUA).to_ne_bytes());
        put(&mut bytes, 4, 8_u32.to_ne_bytes());
        put(&mut bytes, 8, (1_u64 << 40).to_ne_bytes());
        let expected = Descriptor { operation: 1, flags: flag::FUA, sectors: 8, sector: 1 << 40 };
        assert_eq!(Descriptor::parse(&bytes), expected);
    }
}
