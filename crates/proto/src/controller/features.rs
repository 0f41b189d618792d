//! Features (NVMe Base Specification 2.0, "Get Features command", "Set Features command"; NVM
//! Command Set Specification 1.0, "Feature Specific Information").
//!
//! Nothing is saved over a reset, and no feature has a value for each namespace: the namespace
//! identifier is ignored, as nvme-cli sends one for every feature.

use super::admin::AdminOutcome;
use super::config::SubsystemConfig;
use super::events::Notice;
use super::io::data_pointer;
use super::registry::Registry;
use super::state::Controller;
use crate::ids::ControllerId;
use crate::time::Instant;
use alloc::vec::Vec;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

/// Feature identifiers.
mod fid {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER_MANAGEMENT: u8 = 0x02;
    pub(super) const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub(super) const NUMBER_OF_QUEUES: u8 = 0x07;
    pub(super) const WRITE_ATOMICITY: u8 = 0x0a;
    pub(super) const ASYNC_EVENTS: u8 = 0x0b;
    pub(super) const TIMESTAMP: u8 = 0x0e;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_IDENTIFIER: u8 = 0x81;
}

/// Every feature, for the log page that lists them: whether it can be set, and whether discovery
/// controllers have it.
const FEATURES: [(u8, bool, bool); 11] = [
    (fid::ARBITRATION, true, false),
    (fid::POWER_MANAGEMENT, true, false),
    (fid::TEMPERATURE_THRESHOLD, true, false),
    (fid::ERROR_RECOVERY, true, false),
    (fid::VOLATILE_WRITE_CACHE, false, false),
    (fid::NUMBER_OF_QUEUES, true, false),
    (fid::WRITE_ATOMICITY, true, false),
    (fid::ASYNC_EVENTS, true, true),
    (fid::TIMESTAMP, true, false),
    (fid::KEEP_ALIVE, true, true),
    (fid::HOST_IDENTIFIER, false, true),
];

/// Bytes of the Timestamp feature's data.
const TIMESTAMP_BYTES: u32 = 8;
/// Bytes of an extended Host Identifier.
const HOST_IDENTIFIER_BYTES: u32 = 16;
/// Arbitration without a limit to the burst.
const DEFAULT_ARBITRATION: u32 = 0b111;
/// Capability bits of Get Features with Select 3h: changeable. Nothing is saveable (bit 0) or
/// namespace specific (bit 1).
const CHANGEABLE: u64 = 1 << 2;
/// SMART warnings of Asynchronous Event Configuration: can be enabled, though we never warn.
const SMART_WARNINGS: u32 = 0xff;

/// Which value Get Features asks for (SEL).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Select {
    Current,
    /// The default, which is also what is saved as nothing can be saved.
    Default,
    Capabilities,
}

impl Select {
    fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match (sqe.cdw10.get() >> 8) & 0b111 {
            0 => Ok(Self::Current),
            1 | 2 => Ok(Self::Default),
            3 => Ok(Self::Capabilities),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// A feature's value.
enum Value {
    Dword(u32),
    Data(Vec<u8>),
}

/// The values that a controller remembers, other than those that have a place of their own.
#[derive(Debug)]
pub(crate) struct FeatureValues {
    arbitration: u32,
    error_recovery: u32,
    write_atomicity: u32,
    over_temperature: u16,
    under_temperature: u16,
    granted_queues: Option<u16>,
    timestamp: Timestamp,
}

impl FeatureValues {
    /// What a controller starts with.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            arbitration: DEFAULT_ARBITRATION,
            error_recovery: 0,
            write_atomicity: 0,
            over_temperature: u16::MAX,
            under_temperature: 0,
            granted_queues: None,
            timestamp: Timestamp { milliseconds: 0, since: now, set_by_host: false },
        }
    }

    /// I/O queues granted by Number of Queues; `None` if the host did not ask yet.
    pub(crate) fn granted_queues(&self) -> Option<u16> {
        self.granted_queues
    }

    /// The threshold that command dword 11 selects: only the composite temperature has any.
    fn temperature(&mut self, cdw11: u32) -> Result<&mut u16, Status> {
        let (sensor, kind) = ((cdw11 >> 16) & 0xf, (cdw11 >> 20) & 0b11);
        match (sensor, kind) {
            (0, 0) => Ok(&mut self.over_temperature),
            (0, 1) => Ok(&mut self.under_temperature),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// The Timestamp feature: milliseconds that go on counting from where they were set.
#[derive(Debug)]
struct Timestamp {
    milliseconds: u64,
    since: Instant,
    set_by_host: bool,
}

impl Timestamp {
    const MASK: u64 = (1 << 48) - 1;

    fn parse(data: &[u8], now: Instant) -> Result<Self, Status> {
        let data = data.first_chunk::<8>().ok_or(Status::DATA_TRANSFER_ERROR)?;
        let milliseconds = u64::from_le_bytes(*data) & Self::MASK;
        Ok(Self { milliseconds, since: now, set_by_host: true })
    }

    fn emit(&self, now: Instant) -> Vec<u8> {
        let passed = now.saturating_duration_since(self.since).as_millis() as u64;
        let milliseconds = self.milliseconds.wrapping_add(passed) & Self::MASK;
        // Byte 6: timestamp origin in bits 3:1.
        let attributes = u64::from(self.set_by_host) << 1;
        (milliseconds | attributes << 48).to_le_bytes().to_vec()
    }
}

/// How many bytes a Set Features command brings.
pub(super) fn set_data_bytes(sqe: &Sqe) -> u32 {
    match identifier(sqe) {
        fid::TIMESTAMP => TIMESTAMP_BYTES,
        _ => 0,
    }
}

/// The features that a controller has, and whether each can be set.
pub(super) fn supported(discovery: bool) -> impl Iterator<Item = (u8, bool)> {
    let features = FEATURES.into_iter().filter(move |&(_, _, shared)| shared || !discovery);
    features.map(|(feature, changeable, _)| (feature, changeable))
}

fn identifier(sqe: &Sqe) -> u8 {
    sqe.cdw10.get() as u8
}

/// Whether a supported feature can be set.
fn is_changeable(feature: u8, discovery: bool) -> Result<bool, Status> {
    let found = supported(discovery).find(|&(known, _)| known == feature);
    found.map(|(_, changeable)| changeable).ok_or(Status::INVALID_FIELD.with_dnr())
}

/// The bits of Asynchronous Event Configuration that can be set.
fn event_mask(controller: &Controller) -> u32 {
    match controller.is_discovery() {
        true => Notice::DiscoveryLog.enable_bit(),
        false => Notice::NamespaceAttribute.enable_bit() | SMART_WARNINGS,
    }
}

impl Registry {
    /// Get Features.
    pub(super) fn feature(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        now: Instant,
    ) -> Result<AdminOutcome, Status> {
        let controller = self.controllers.get_mut(&id).expect("the caller has found it");
        let feature = identifier(sqe);
        let changeable = is_changeable(feature, controller.is_discovery())?;
        let subsystem = controller.subsystem;
        let queues = subsystem.and_then(|id| self.subsystem(id)).map_or(0, |c| c.max_io_queues);
        let controller = self.controllers.get_mut(&id).expect("the caller has found it");
        let value = match Select::parse(sqe)? {
            Select::Capabilities => {
                return Ok(AdminOutcome::success(if changeable { CHANGEABLE } else { 0 }));
            }
            Select::Current => current(controller, sqe, queues, now)?,
            Select::Default => default(controller, sqe, queues, now)?,
        };
        match value {
            Value::Dword(value) => Ok(AdminOutcome::success(u64::from(value))),
            Value::Data(bytes) => {
                data_pointer(sqe, bytes.len() as u32)?;
                Ok(AdminOutcome::push(bytes))
            }
        }
    }

    /// Set Features. Returns the result for the completion.
    pub(super) fn set_feature(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        data: &[u8],
        now: Instant,
    ) -> Result<u64, Status> {
        const SAVE: u32 = 1 << 31;
        let controller = self.controllers.get_mut(&id).expect("the caller has found it");
        let feature = identifier(sqe);
        let changeable = is_changeable(feature, controller.is_discovery())?;
        if sqe.cdw10.get() & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr());
        }
        match feature {
            // Over fabrics it comes with Connect, and is then fixed.
            fid::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            _ if !changeable => return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr()),
            fid::NUMBER_OF_QUEUES => return self.grant_queues(id, sqe.cdw11.get()),
            _ => {}
        }
        if set_data_bytes(sqe) != 0 {
            data_pointer(sqe, set_data_bytes(sqe))?;
        }
        set(controller, sqe, data, now)?;
        Ok(0)
    }

    /// Number of Queues: as many as asked for, up to the subsystem's limit ("Number of Queues").
    fn grant_queues(&mut self, id: ControllerId, cdw11: u32) -> Result<u64, Status> {
        /// The value that is not allowed, as it would be 65,536 queues.
        const RESERVED: u16 = u16::MAX;
        let subsystem = self.controllers[&id].subsystem;
        let most = subsystem.and_then(|id| self.subsystem(id)).map_or(0, |c| c.max_io_queues);
        let controller = self.controllers.get_mut(&id).expect("the caller has found it");
        let (submission_z, completion_z) = (cdw11 as u16, (cdw11 >> 16) as u16);
        if submission_z == RESERVED || completion_z == RESERVED {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if controller.io_queues().next().is_some() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        // A fabrics queue is a pair, so that the smaller number of either is what can be used.
        let granted = (submission_z.min(completion_z) + 1).min(most);
        controller.features.granted_queues = Some(granted);
        Ok(u64::from(queue_counts(granted)))
    }
}

/// The result of Number of Queues: 0's based counts of submission and completion queues.
fn queue_counts(queues: u16) -> u32 {
    let queues_z = u32::from(queues.saturating_sub(1));
    queues_z | queues_z << 16
}

fn current(
    controller: &mut Controller,
    sqe: &Sqe,
    max_queues: u16,
    now: Instant,
) -> Result<Value, Status> {
    let cdw11 = sqe.cdw11.get();
    let features = &mut controller.features;
    Ok(Value::Dword(match identifier(sqe) {
        fid::ARBITRATION => features.arbitration,
        fid::TEMPERATURE_THRESHOLD => {
            u32::from(*features.temperature(cdw11)?) | cdw11 & 0x003f_0000
        }
        fid::ERROR_RECOVERY => features.error_recovery,
        fid::NUMBER_OF_QUEUES => queue_counts(features.granted_queues.unwrap_or(max_queues)),
        fid::WRITE_ATOMICITY => features.write_atomicity,
        fid::ASYNC_EVENTS => controller.events.configuration(),
        fid::KEEP_ALIVE => controller.keep_alive.timeout_ms(),
        fid::TIMESTAMP => return Ok(Value::Data(features.timestamp.emit(now))),
        // The same for every controller, and so their own default.
        _ => return default(controller, sqe, max_queues, now),
    }))
}

fn default(
    controller: &Controller,
    sqe: &Sqe,
    max_queues: u16,
    now: Instant,
) -> Result<Value, Status> {
    /// Volatile Write Cache Enable.
    const WCE: u32 = 1;
    /// Extended Host Identifier.
    const EXHID: u32 = 1;
    let cdw11 = sqe.cdw11.get();
    let mut initial = FeatureValues::new(now);
    Ok(Value::Dword(match identifier(sqe) {
        fid::ARBITRATION => initial.arbitration,
        fid::TEMPERATURE_THRESHOLD => u32::from(*initial.temperature(cdw11)?) | cdw11 & 0x003f_0000,
        fid::VOLATILE_WRITE_CACHE => WCE,
        fid::NUMBER_OF_QUEUES => queue_counts(max_queues),
        fid::TIMESTAMP => return Ok(Value::Data(initial.timestamp.emit(now))),
        fid::HOST_IDENTIFIER if cdw11 & EXHID == 0 => {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        fid::HOST_IDENTIFIER => return Ok(Value::Data(controller.host_id.to_vec())),
        _ => 0,
    }))
}

/// Sets a feature that can be set, other than Number of Queues.
fn set(controller: &mut Controller, sqe: &Sqe, data: &[u8], now: Instant) -> Result<(), Status> {
    /// Deallocated or Unwritten Logical Block Error Enable: we have no such error.
    const DULBE: u32 = 1 << 16;
    const POWER_STATE: u32 = 0b1_1111;
    let invalid = Err(Status::INVALID_FIELD.with_dnr());
    let cdw11 = sqe.cdw11.get();
    let mask = event_mask(controller);
    let features = &mut controller.features;
    match identifier(sqe) {
        fid::ARBITRATION => features.arbitration = cdw11,
        // There is only power state 0.
        fid::POWER_MANAGEMENT if cdw11 & POWER_STATE != 0 => return invalid,
        fid::POWER_MANAGEMENT => {}
        fid::TEMPERATURE_THRESHOLD => *features.temperature(cdw11)? = cdw11 as u16,
        fid::ERROR_RECOVERY if cdw11 & DULBE != 0 => return invalid,
        fid::ERROR_RECOVERY => features.error_recovery = cdw11 & 0xffff,
        fid::WRITE_ATOMICITY => features.write_atomicity = cdw11 & 1,
        fid::ASYNC_EVENTS if cdw11 & !mask != 0 => return invalid,
        fid::ASYNC_EVENTS => controller.events.configure(cdw11),
        fid::TIMESTAMP => features.timestamp = Timestamp::parse(data, now)?,
        fid::KEEP_ALIVE => controller.keep_alive.set(cdw11, now),
        _ => return invalid,
    }
    Ok(())
}
