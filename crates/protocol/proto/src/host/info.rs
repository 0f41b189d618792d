//! Reads the properties and the Identify data of a controller.

use super::error::ConnectError;
use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;
use farblock_wire::features::AsyncEventConfig;
use farblock_wire::identify::{ControllerType, IdentifyController};
use farblock_wire::origin::{ControllerIds, ControllerOrigin, ProcessName};
use farblock_wire::property::{Cc, Version};
use farblock_wire::reset::CrossControllerReset;

/// Base-two logarithm of the smallest memory page in bytes, the unit of MDTS.
const PAGE_SHIFT: u32 = 12;
/// IOCCSZ of a capsule with only a submission queue entry, in units of 16 bytes.
const IOCCSZ_MIN: u32 = 4;

/// The reason why the host cannot use a controller's data: the data is malformed or describes an
/// unsupported feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InfoError {
    /// The data has fewer bytes than the structure.
    TooShort,
    /// The controller is a discovery controller, which has no namespaces.
    DiscoveryController,
    /// The namespace identifier is not active.
    NoSuchNamespace,
    /// The namespace's current LBA format (FLBAS) is not in its list of formats.
    FormatOutOfRange,
    /// The host does not support the block size, 2 to the power `shift`.
    BlockSize {
        /// Base-two logarithm of the block size (LBADS).
        shift: u8,
    },
    /// Blocks carry metadata.
    Metadata {
        /// Metadata bytes per block.
        bytes: u16,
    },
    /// The capacity in bytes exceeds the largest supported offset.
    TooLarge {
        /// Capacity in blocks (NSZE).
        blocks: u64,
    },
    /// A list of namespaces is not in ascending order.
    NotAscending,
    /// The records of the discovery log page have an unknown format.
    RecordFormat(u16),
    /// The discovery log page reports more records than the host accepts.
    TooManyRecords(u64),
    /// The discovery log page changes faster than the host can read it.
    Unstable,
}

impl fmt::Display for InfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the answer is too short"),
            Self::DiscoveryController => f.write_str(
                "the controller reports that it is a discovery controller (CNTRLTYPE 2), which has \
                 no namespaces: give the URL of a subsystem with disks, or correct the target",
            ),
            Self::NoSuchNamespace => f.write_str("the namespace does not exist"),
            Self::FormatOutOfRange => f.write_str("the LBA format in use does not exist"),
            Self::BlockSize { shift } => {
                write!(f, "the block size (2^{shift} bytes) is not supported")
            }
            Self::Metadata { bytes } => {
                write!(f, "blocks carry {bytes} bytes of metadata, which is not supported")
            }
            Self::TooLarge { blocks } => write!(f, "a namespace cannot have {blocks} blocks"),
            Self::NotAscending => f.write_str("the list of namespaces is out of order"),
            Self::RecordFormat(format) => {
                write!(f, "the discovery log page has the unknown format {format}")
            }
            Self::TooManyRecords(count) => {
                write!(f, "the discovery log page claims {count} records, which are too many")
            }
            Self::Unstable => f.write_str("the discovery log page keeps changing"),
        }
    }
}

impl core::error::Error for InfoError {}

/// Returns the text of a fixed-length field, without its padding. The text may contain any
/// character. Use [`farblock_wire::text::Plain`] to show it.
pub(super) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = String::from_utf8_lossy(&field[..end]);
    text.trim().to_string()
}

/// The properties and limits of a controller that is ready.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ControllerInfo {
    /// Controller identifier (CNTLID).
    pub cntlid: u16,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// NQN of the subsystem, as the controller reports it. May be empty.
    pub subnqn: String,
    /// Version of the NVMe specification (VS).
    pub version: Version,
    /// Whether the controller is a discovery controller.
    pub discovery: bool,
    /// Largest number of bytes that a command may transfer (MDTS); `None`: no limit.
    pub max_transfer_bytes: Option<u32>,
    /// Largest in-capsule data of an I/O queue, in bytes (IOCCSZ).
    pub in_capsule_bytes: u32,
    /// Largest namespace identifier (NN).
    pub namespaces: u32,
    /// SGL support (SGLS), as reported.
    pub sgls: u32,
    /// Optional NVM commands (ONCS), as reported.
    pub oncs: u16,
    /// Whether the controller has a volatile write cache (VWC).
    pub volatile_cache: bool,
    /// Keep alive granularity (KAS); zero if the controller does not report it.
    pub keep_alive_granularity: Duration,
    /// Largest number of outstanding Asynchronous Event Requests (AERL, 1-based).
    pub event_requests: u16,
    /// Events that the host can enable (OAES).
    pub events_supported: AsyncEventConfig,
    /// Largest number of outstanding commands on an I/O queue (MAXCMD); 0 if the controller does
    /// not report it.
    pub max_commands: u16,
    /// Largest number of entries in an I/O queue (MQES, 1-based).
    pub max_queue_entries: u32,
    /// Number of I/O queues that the controller granted.
    pub queues: u16,
    /// The longest time that the controller may take to become ready.
    pub ready_timeout: Duration,
    /// The value that the host wrote to CC.
    pub configuration: Cc,
    /// The name of this controller instance for a Cross-Controller Reset (CIU, CIRN), if the
    /// controller supports this command (CCRL).
    pub life: Option<CrossControllerReset>,
    /// The longest time for which the controller may still execute commands after the end of its
    /// association (CQT); zero if the controller does not report it.
    pub quiesce_time: Duration,
    /// The three retry delays that the status of a failed command can select (CRDT1 to CRDT3).
    pub retry_delays: [Duration; 3],
    /// Whether every command, and not only Keep Alive, restarts the controller's keep-alive timer
    /// (CTRATT.TBKAS).
    pub traffic_keep_alive: bool,
    /// The origin (boot and addresses) of the controller's process, if the controller is from
    /// farblock.
    pub origin: Option<ControllerOrigin>,
    /// The name of the controller's process, if a farblock controller reports it.
    pub process: Option<ProcessName>,
    /// The range of controller identifiers that the target assigns, if a farblock target reports
    /// it.
    pub controller_ids: Option<ControllerIds>,
    /// Number of ANA groups that the subsystem may have (NANAGRPID), if the controller reports
    /// asymmetric namespace access.
    pub ana_groups: Option<u32>,
}

impl ControllerInfo {
    /// Returns the longest time for which the controller may still execute commands after the host
    /// lost the connection (Base 2.1, "Communication Loss Handling"). In this time the keep-alive
    /// timer expires and the controller quiesces (CQT). `None`: there is no limit, because with a
    /// `keep_alive` of zero the controller has no timer. A reset of the controller ends the
    /// commands earlier.
    #[must_use]
    pub fn time_to_end(&self, keep_alive: Duration) -> Option<Duration> {
        if keep_alive.is_zero() {
            return None;
        }
        // Base 2.1 counts two keep-alive intervals, or three with traffic based keep alive.
        let intervals = if self.traffic_keep_alive { 3 } else { 2 };
        // Controllers round the interval up to their granularity.
        let unit_ms = self.keep_alive_granularity.as_millis().max(1);
        let interval_ms = keep_alive.as_millis().div_ceil(unit_ms).saturating_mul(unit_ms);
        let interval = Duration::from_millis(interval_ms.try_into().unwrap_or(u64::MAX));
        Some(interval.saturating_mul(intervals).saturating_add(self.quiesce_time))
    }

    /// Whether the controller supports Dataset Management.
    #[must_use]
    pub fn has_deallocate(&self) -> bool {
        self.oncs & IdentifyController::ONCS_DATASET_MANAGEMENT != 0
    }

    /// Whether the controller supports Write Zeroes.
    #[must_use]
    pub fn has_write_zeroes(&self) -> bool {
        self.oncs & IdentifyController::ONCS_WRITE_ZEROES != 0
    }

    /// Returns the largest number of commands in flight on an I/O queue, at most `depth`. The
    /// number is also the SQSIZE (0's-based): a queue needs one more entry than commands, because a
    /// full queue would look like an empty queue.
    #[must_use]
    pub fn queue_depth(&self, depth: u16) -> u16 {
        let most = self.max_queue_entries.saturating_sub(1);
        let most = match self.max_commands {
            0 => most,
            commands => most.min(commands.into()),
        };
        // With 0FFFFh commands in flight, no command identifier would be left over to mean "no
        // command".
        let most = u16::try_from(most).unwrap_or(u16::MAX).min(u16::MAX - 1);
        depth.clamp(1, most.max(1))
    }

    /// Copies an Identify Controller data structure into the matching fields.
    pub(super) fn read_identify(&mut self, data: &[u8], mpsmin: u8) -> Result<(), ConnectError> {
        let Some(identify) = IdentifyController::parse(data) else {
            return Err(ConnectError::Protocol("the Identify Controller data is too short"));
        };
        self.discovery = identify.controller_type() == ControllerType::DISCOVERY;
        if !self.discovery && identify.ioccsz.get() < IOCCSZ_MIN {
            return Err(ConnectError::Protocol("IOCCSZ is too small for a command"));
        }
        self.serial = text(&identify.sn);
        self.model = text(&identify.mn);
        self.firmware = text(&identify.fr);
        self.subnqn = text(&identify.subnqn);
        let page_bytes = 1 << (PAGE_SHIFT + u32::from(mpsmin));
        let most = identify.max_transfer_bytes(page_bytes);
        self.max_transfer_bytes = most.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        self.cntlid = identify.cntlid.get();
        self.events_supported = AsyncEventConfig(identify.oaes.get());
        self.event_requests = u16::from(identify.aerl_z) + 1;
        self.keep_alive_granularity = Duration::from_millis(100) * identify.kas.get().into();
        self.max_commands = identify.maxcmd.get();
        self.namespaces = identify.nn.get();
        self.oncs = identify.oncs.get();
        self.volatile_cache = identify.vwc & IdentifyController::VWC_PRESENT != 0;
        self.sgls = identify.sgls.get();
        let life = CrossControllerReset {
            icid: identify.cntlid.get(),
            ciu: identify.ciu,
            cirn: identify.cirn.get(),
        };
        self.life = (identify.ccrl > 0 && life.ciu > 0).then_some(life);
        self.quiesce_time = Duration::from_millis(identify.cqt.get().into());
        self.retry_delays = [identify.crdt1, identify.crdt2, identify.crdt3]
            .map(|delay| Duration::from_millis(100) * delay.get().into());
        let traffic = IdentifyController::CTRATT_TRAFFIC_KEEP_ALIVE;
        self.traffic_keep_alive = identify.ctratt.get() & traffic != 0;
        self.origin = ControllerOrigin::parse(&identify.vs);
        self.process = ProcessName::parse(&identify.vs);
        self.controller_ids = ControllerIds::parse(&identify.vs);
        let reports_ana = identify.cmic & IdentifyController::CMIC_ANA != 0;
        self.ana_groups = reports_ana.then_some(identify.nanagrpid.get());
        // ICDOFF: if in-capsule data must not directly follow the submission queue entry, the host
        // sends none.
        self.in_capsule_bytes = match identify.icdoff.get() {
            0 => u32::try_from(identify.in_capsule_data_bytes()).unwrap_or(u32::MAX),
            _ => 0,
        };
        Ok(())
    }
}
