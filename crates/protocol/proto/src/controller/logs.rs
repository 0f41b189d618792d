//! Log pages (NVMe Base Specification 2.0, "Get Log Page command").

use super::discovery::DiscoveryPage;
use super::events::Notice;
use super::io::data_pointer;
use super::registry::Registry;
use super::state::Controller;
use super::{features, limits};
use crate::capsule::RemoteForm;
use crate::ids::{CommandId, ControllerId, Lba, NamespaceId, QueueId};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use farblock_wire::features::FeatureId;
use farblock_wire::identify::{CommandSet, NamespaceList, ascii_field};
use farblock_wire::log::{
    AnaLogHeader, CommandEffects, CommandEffectsLog, ErrorLogEntry, FirmwareSlotLog, LogPageId,
    LogPageParameters, SmartLog, SupportedLogPages, TransportType,
};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::{IntoBytes, Sqe, Status};

/// A failed command, for the error information log ("Error Information").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorRecord {
    /// The queue that the command arrived on.
    pub queue: QueueId,
    /// The command's identifier.
    pub command: CommandId,
    /// The status of its completion.
    pub status: Status,
    /// The namespace of the command; 0 if it has no namespace.
    pub namespace: NamespaceId,
    /// The first block that the target could not access; `None`: the error concerns no block.
    pub lba: Option<Lba>,
}

/// The counters of a subsystem's SMART log page ("SMART / Health Information"). They never
/// decrease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SmartCounters {
    /// Bytes that Read commands transferred (reported as Data Units Read).
    pub read_bytes: u128,
    /// Bytes that Write commands transferred (reported as Data Units Written).
    pub written_bytes: u128,
    /// The number of successful Read commands.
    pub read_commands: u128,
    /// The number of successful Write commands.
    pub write_commands: u128,
    /// The time in which at least one I/O command was outstanding, in milliseconds (reported in
    /// minutes).
    pub busy_ms: u128,
    /// The time since the target started, in milliseconds (reported in hours).
    pub uptime_ms: u128,
    /// The number of times a backend reported damaged data.
    pub media_errors: u128,
}

/// The most recent failed commands of a controller.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    /// The records, newest first. Each has its error count: the number of failed commands up to
    /// this one.
    entries: VecDeque<(u64, ErrorRecord)>,
    count: u64,
}

impl ErrorLog {
    /// Returns the log page with all entries. Unused entries are zero.
    fn emit(&self, remote: RemoteForm) -> Vec<u8> {
        /// Parameter Error Location: the error is not specific to a parameter.
        const NO_PARAMETER: u16 = 0xffff;
        let transport = match remote {
            RemoteForm::Transport => TransportType::TCP,
            RemoteForm::Keyed => TransportType::RDMA,
        };
        let mut page = vec![0; usize::from(limits::ERROR_LOG_ENTRIES) * ErrorLogEntry::LEN];
        let slots = page.chunks_exact_mut(ErrorLogEntry::LEN);
        for (slot, (number, record)) in slots.zip(&self.entries) {
            let entry = ErrorLogEntry {
                error_count: (*number).into(),
                sqid: record.queue.0.into(),
                cid: record.command.0.into(),
                status: (record.status.0 << 1).into(),
                parameter_error_location: NO_PARAMETER.into(),
                lba: record.lba.map_or(0, |lba| lba.0).into(),
                nsid: record.namespace.0.into(),
                trtype: transport.0,
                ..ErrorLogEntry::zeroed()
            };
            entry.emit(slot);
        }
        page
    }

    /// The number of failed commands.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn push(&mut self, record: &ErrorRecord) {
        // An error count of zero would mark the entry as unused, so the count starts at one.
        self.count += 1;
        self.entries.truncate(usize::from(limits::ERROR_LOG_ENTRIES) - 1);
        self.entries.push_front((self.count, *record));
    }
}

/// The namespaces that changed since the host last read the list ("Changed Namespace List").
#[derive(Debug, Default)]
pub(crate) struct ChangedNamespaces {
    ids: BTreeSet<NamespaceId>,
    /// The removed namespaces among `ids`.
    gone: BTreeSet<NamespaceId>,
    /// The identifiers among `ids` that now belong to a different namespace.
    replaced: BTreeSet<NamespaceId>,
}

/// The kind of a namespace's change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NamespaceChange {
    /// The namespace was added.
    Came,
    /// The namespace was removed.
    Went,
    /// The namespace has changed, but is still the same namespace.
    Altered,
    /// A different namespace now has the identifier.
    Replaced,
}

impl ChangedNamespaces {
    pub(crate) fn push(&mut self, id: NamespaceId, change: NamespaceChange) {
        self.ids.insert(id);
        match change {
            NamespaceChange::Went => {
                self.gone.insert(id);
            }
            NamespaceChange::Came if !self.gone.contains(&id) => {}
            NamespaceChange::Came | NamespaceChange::Replaced => {
                self.replaced.insert(id);
            }
            NamespaceChange::Altered => {}
        }
    }

    /// Clears the list after the host has read it. Returns whether the host must read the list
    /// again.
    ///
    /// A host that finds a different namespace under a known identifier may remove the old
    /// namespace without adding the new one, as Linux does. It adds the new namespace when it reads
    /// the list again.
    fn was_read(&mut self) -> bool {
        let again = core::mem::take(self).replaced;
        self.ids = again;
        !self.ids.is_empty()
    }

    /// Returns the log page: identifiers in ascending order, then zeroes. If there are too many
    /// identifiers, the page contains only `TOO_MANY`.
    fn emit(&self) -> Vec<u8> {
        /// The only entry of a page that cannot list all changed namespaces.
        const TOO_MANY: u32 = 0xffff_ffff;
        if self.ids.len() > NamespaceList::LEN / size_of::<u32>() {
            return NamespaceList::from_nsids([TOO_MANY]).as_bytes().to_vec();
        }
        NamespaceList::from_nsids(self.ids.iter().map(|id| id.0)).as_bytes().to_vec()
    }
}

/// The part of a log page that a host requests.
#[derive(Clone, Copy, Debug)]
struct Window {
    page: LogPageId,
    /// Whether the notice of the page stays masked after the read (RAE).
    retain: bool,
    /// Offset of the first byte (LPO).
    offset: u64,
    /// Number of bytes (NUMD).
    bytes: u32,
}

impl Window {
    fn parse(sqe: &Sqe, max_bytes: u32, remote: RemoteForm) -> Result<Self, Status> {
        let LogPageParameters { lid: page, rae: retain, lpo: offset, ot, csi, .. } =
            LogPageParameters::parse(sqe);
        let length = LogPageParameters::parse(sqe).length_bytes();
        // No page supports an index as its offset (OT). Only one page depends on a command set.
        let other_set = page == LogPageId::COMMAND_EFFECTS && csi != CommandSet::NVM.0;
        if length > u64::from(max_bytes) || !offset.is_multiple_of(4) || ot || other_set {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let bytes = length as u32;
        data_pointer(sqe, bytes, remote)?;
        Ok(Self { page, retain, offset, bytes })
    }

    /// Returns the requested bytes of `page`. Bytes beyond the page's end are zero.
    fn cut(&self, page: &[u8]) -> Result<Vec<u8>, Status> {
        let offset = usize::try_from(self.offset).ok();
        let rest = offset.and_then(|offset| page.get(offset..));
        let rest = rest.ok_or(Status::INVALID_FIELD.with_dnr())?;
        let mut bytes = vec![0; self.bytes as usize];
        let length = rest.len().min(bytes.len());
        bytes[..length].copy_from_slice(&rest[..length]);
        Ok(bytes)
    }
}

/// Returns the log pages that a controller supports.
fn supported(discovery: bool) -> &'static [LogPageId] {
    match discovery {
        true => &[
            LogPageId::SUPPORTED_LOG_PAGES,
            LogPageId::ERROR_INFORMATION,
            LogPageId::FEATURE_EFFECTS,
            LogPageId::DISCOVERY,
        ],
        false => &[
            LogPageId::SUPPORTED_LOG_PAGES,
            LogPageId::ERROR_INFORMATION,
            LogPageId::SMART_HEALTH,
            LogPageId::FIRMWARE_SLOT,
            LogPageId::CHANGED_NAMESPACES,
            LogPageId::COMMAND_EFFECTS,
            LogPageId::ANA,
            LogPageId::FEATURE_EFFECTS,
            LogPageId::RESERVATION_NOTIFICATION,
        ],
    }
}

impl Registry {
    /// Executes Get Log Page. Returns as many bytes as the host requested.
    pub(super) fn log_page(&mut self, id: ControllerId, sqe: &Sqe) -> Result<Vec<u8>, Status> {
        let controller = &self.controllers[&id];
        let max_bytes = self.table_of(controller.subsystem).max_transfer_bytes();
        let window = Window::parse(sqe, max_bytes, controller.remote)?;
        if !supported(controller.is_discovery()).contains(&window.page) {
            return Err(Status::INVALID_LOG_PAGE.with_dnr());
        }
        if window.page == LogPageId::DISCOVERY {
            let page = DiscoveryPage::new(self, controller);
            let bytes = page.read(window.offset, window.bytes)?;
            self.log_was_read(id, Notice::DiscoveryLog, window);
            return Ok(bytes);
        }
        let page = self.page(controller, window.page, sqe)?;
        let bytes = window.cut(&page)?;
        if window.page == LogPageId::CHANGED_NAMESPACES {
            self.log_was_read(id, Notice::NamespaceAttribute, window);
        }
        if window.page == LogPageId::ANA {
            self.log_was_read(id, Notice::AccessChange, window);
        }
        if window.page == LogPageId::RESERVATION_NOTIFICATION && !window.retain {
            self.notification_was_read(id);
        }
        Ok(bytes)
    }

    /// Returns a whole log page. The page must not be the discovery log page.
    fn page(&self, controller: &Controller, page: LogPageId, sqe: &Sqe) -> Result<Vec<u8>, Status> {
        let config = controller.subsystem.and_then(|id| self.subsystem(id));
        Ok(match page {
            LogPageId::SUPPORTED_LOG_PAGES => supported_page(controller.is_discovery()),
            LogPageId::ERROR_INFORMATION => controller.errors.emit(controller.remote),
            LogPageId::SMART_HEALTH => {
                // The controller has no SMART counters for single namespaces (LPA bit 0 is clear).
                if !matches!(NamespaceId(sqe.nsid.get()), NamespaceId(0) | NamespaceId::ALL) {
                    return Err(Status::INVALID_FIELD.with_dnr());
                }
                let counters = controller.subsystem.map(|id| self.counters(id));
                counters.unwrap_or_default().emit(controller.errors.count())
            }
            LogPageId::FIRMWARE_SLOT => firmware_page(config.map_or("", |config| &config.firmware)),
            LogPageId::CHANGED_NAMESPACES => controller.changed.emit(),
            LogPageId::COMMAND_EFFECTS => effects_page(),
            LogPageId::ANA => {
                let specific = LogPageParameters::parse(sqe).lsp;
                self.ana_page(controller, specific & AnaLogHeader::LSP_GROUPS_ONLY != 0)
            }
            LogPageId::RESERVATION_NOTIFICATION => controller.notifications.emit(),
            LogPageId::FEATURE_EFFECTS => features_page(controller.is_discovery()),
            _ => return Err(Status::INVALID_LOG_PAGE.with_dnr()),
        })
    }

    /// Unmasks the notice of the page that the host has read, unless the host set RAE.
    fn log_was_read(&mut self, id: ControllerId, notice: Notice, window: Window) {
        if let Some(controller) = self.controllers.get_mut(&id).filter(|_| !window.retain) {
            controller.events.log_was_read(notice);
            if notice == Notice::NamespaceAttribute && controller.changed.was_read() {
                controller.events.raise(notice);
                self.with_pending_events.insert(id);
            }
        }
    }
}

impl SmartCounters {
    /// Returns the SMART log page ("SMART / Health Information").
    fn emit(&self, failed_commands: u64) -> Vec<u8> {
        /// A data unit is 1000 times 512 bytes.
        const DATA_UNIT_BYTES: u128 = 512_000;
        const MINUTE_MS: u128 = 60_000;
        const HOUR_MS: u128 = 60 * MINUTE_MS;
        let page = SmartLog {
            available_spare: 100,
            data_units_read: self.read_bytes.div_ceil(DATA_UNIT_BYTES).into(),
            data_units_written: self.written_bytes.div_ceil(DATA_UNIT_BYTES).into(),
            host_read_commands: self.read_commands.into(),
            host_write_commands: self.write_commands.into(),
            controller_busy_time: (self.busy_ms / MINUTE_MS).into(),
            power_on_hours: (self.uptime_ms / HOUR_MS).into(),
            media_errors: self.media_errors.into(),
            error_log_entries: u128::from(failed_commands).into(),
            ..SmartLog::zeroed()
        };
        page.as_bytes().to_vec()
    }
}

/// Returns the page "Supported Log Pages".
fn supported_page(discovery: bool) -> Vec<u8> {
    let mut page = SupportedLogPages::zeroed();
    for id in supported(discovery) {
        page.lids[usize::from(id.0)].set(SupportedLogPages::LSUPP);
    }
    page.as_bytes().to_vec()
}

/// Returns the page "Feature Identifiers Supported and Effects": one dword for each identifier.
fn features_page(discovery: bool) -> Vec<u8> {
    /// FSUPP: the controller supports the feature.
    const SUPPORTED: u32 = 1;
    /// FSP bit 1: the scope is the controller.
    const CONTROLLER_SCOPE: u32 = 1 << 21;
    /// FSP bit 0: the scope is the namespace.
    const NAMESPACE_SCOPE: u32 = 1 << 20;
    let mut page = vec![0; 256 * 4];
    for feature in features::supported(discovery) {
        let scope = match feature {
            FeatureId::RESERVATION_NOTIFICATION_MASK | FeatureId::RESERVATION_PERSISTENCE => {
                NAMESPACE_SCOPE
            }
            _ => CONTROLLER_SCOPE,
        };
        let entry = SUPPORTED | scope;
        page[usize::from(feature.0) * 4..][..4].copy_from_slice(&entry.to_le_bytes());
    }
    page
}

/// Returns the page "Firmware Slot Information". The only slot is active.
fn firmware_page(firmware: &str) -> Vec<u8> {
    let mut page = FirmwareSlotLog { afi: 1, ..FirmwareSlotLog::zeroed() };
    page.frs[0] = ascii_field(firmware);
    page.as_bytes().to_vec()
}

/// Returns the page "Commands Supported and Effects" of the NVM command set.
fn effects_page() -> Vec<u8> {
    let admin = [
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
        AdminOpcode::KEEP_ALIVE,
        AdminOpcode::CROSS_CONTROLLER_RESET,
    ];
    let nvm = [
        (NvmOpcode::FLUSH, CommandEffects::SUPPORTED),
        (NvmOpcode::WRITE, CommandEffects::SUPPORTED_WRITES),
        (NvmOpcode::READ, CommandEffects::SUPPORTED),
        (NvmOpcode::COMPARE, CommandEffects::SUPPORTED),
        (NvmOpcode::WRITE_ZEROES, CommandEffects::SUPPORTED_WRITES),
        (NvmOpcode::DATASET_MANAGEMENT, CommandEffects::SUPPORTED_WRITES),
        (NvmOpcode::VERIFY, CommandEffects::SUPPORTED),
        (NvmOpcode::COPY, CommandEffects::SUPPORTED_WRITES),
        (NvmOpcode::RESERVATION_REGISTER, CommandEffects::SUPPORTED),
        (NvmOpcode::RESERVATION_REPORT, CommandEffects::SUPPORTED),
        (NvmOpcode::RESERVATION_ACQUIRE, CommandEffects::SUPPORTED),
        (NvmOpcode::RESERVATION_RELEASE, CommandEffects::SUPPORTED),
    ];
    let mut page = CommandEffectsLog::zeroed();
    for opcode in admin {
        page.acs[usize::from(opcode.0)].set(CommandEffects::SUPPORTED.0);
    }
    for (opcode, effects) in nvm {
        page.iocs[usize::from(opcode.0)].set(effects.0);
    }
    page.as_bytes().to_vec()
}
