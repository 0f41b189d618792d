//! Features (NVMe Base Specification 2.0, "Get Features command", "Set Features command"; NVM
//! Command Set Specification 1.0, "Feature Specific Information").
//!
//! A controller reset restores the defaults of all features except the keep-alive timer, the host
//! identifier and the reservation features. The reservation features have a value for each
//! namespace. All other features ignore the namespace identifier, because nvme-cli sends an
//! identifier with every feature.

use super::admin::AdminOutcome;
use super::events::Notice;
use super::io::data_pointer;
use super::registry::Registry;
use super::reservations::KeyedCommand;
use super::state::Controller;
use crate::ids::{ControllerId, NamespaceId};
use crate::time::Instant;
use alloc::vec::Vec;
use farblock_wire::features::{
    AsyncEventConfig, CAPABILITY_CHANGEABLE, CAPABILITY_NAMESPACE, FeatureGet, FeatureId,
    FeatureSelect, FeatureSet, HOST_IDENTIFIER_EXTENDED, HostBehavior, NumberOfQueues, Timestamp,
    VOLATILE_WRITE_CACHE_ENABLE,
};
use farblock_wire::reservation::{NotificationType, PERSISTENCE_PTPL};
use farblock_wire::{IntoBytes, Sqe, Status};

/// Each supported feature, whether hosts can set it, and whether discovery controllers support it.
const FEATURES: [(FeatureId, bool, bool); 14] = [
    (FeatureId::ARBITRATION, true, false),
    (FeatureId::POWER_MANAGEMENT, true, false),
    (FeatureId::TEMPERATURE_THRESHOLD, true, false),
    (FeatureId::ERROR_RECOVERY, true, false),
    (FeatureId::VOLATILE_WRITE_CACHE, true, false),
    (FeatureId::NUMBER_OF_QUEUES, true, false),
    (FeatureId::WRITE_ATOMICITY, true, false),
    (FeatureId::ASYNC_EVENT_CONFIGURATION, true, true),
    (FeatureId::TIMESTAMP, true, false),
    (FeatureId::KEEP_ALIVE_TIMER, true, true),
    (FeatureId::HOST_BEHAVIOR_SUPPORT, true, false),
    (FeatureId::HOST_IDENTIFIER, false, true),
    (FeatureId::RESERVATION_NOTIFICATION_MASK, true, false),
    (FeatureId::RESERVATION_PERSISTENCE, true, false),
];

/// The default of the feature Arbitration: no limit on the burst.
const DEFAULT_ARBITRATION: u32 = 0b111;
/// SMART warnings in Asynchronous Event Configuration. Hosts can enable these events, but
/// farblock's controllers never send them.
const SMART_WARNINGS: u32 = AsyncEventConfig(0).with_critical_warnings(0xff).0;
/// The bits of dword 11 of Temperature Threshold that select the threshold and the sensor.
const TEMPERATURE_SELECTION: u32 = 0b11_1111 << 16;

/// A feature's value.
enum Value {
    Dword(u32),
    Data(Vec<u8>),
}

/// The feature values of a controller. Some values are elsewhere, for example the keep-alive
/// timeout and the event configuration.
#[derive(Debug)]
pub(crate) struct FeatureValues {
    arbitration: u32,
    error_recovery: u32,
    write_atomicity: u32,
    volatile_write_cache: u32,
    over_temperature: u16,
    under_temperature: u16,
    granted_queues: Option<u16>,
    behavior: HostBehavior,
    clock: Clock,
}

impl FeatureValues {
    /// The initial values of a new controller.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            arbitration: DEFAULT_ARBITRATION,
            error_recovery: 0,
            write_atomicity: 0,
            volatile_write_cache: VOLATILE_WRITE_CACHE_ENABLE,
            over_temperature: u16::MAX,
            under_temperature: 0,
            granted_queues: None,
            behavior: HostBehavior::zeroed(),
            clock: Clock { milliseconds: 0, since: now, set_by_host: false },
        }
    }

    /// The number of I/O queues that Number of Queues granted; `None` before the first request.
    pub(crate) fn granted_queues(&self) -> Option<u16> {
        self.granted_queues
    }

    /// Returns the temperature threshold that command dword 11 selects, with the selection bits.
    fn temperature_value(&mut self, cdw11: u32) -> Result<u32, Status> {
        let threshold = u32::from(*self.temperature(cdw11)?);
        Ok(threshold | cdw11 & TEMPERATURE_SELECTION)
    }

    /// Returns the threshold that command dword 11 selects. Only the composite temperature has
    /// thresholds.
    fn temperature(&mut self, cdw11: u32) -> Result<&mut u16, Status> {
        let (sensor, kind) = ((cdw11 >> 16) & 0xf, (cdw11 >> 20) & 0b11);
        match (sensor, kind) {
            (0, 0) => Ok(&mut self.over_temperature),
            (0, 1) => Ok(&mut self.under_temperature),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// The Timestamp feature: counts milliseconds from the value that the host set.
#[derive(Debug)]
struct Clock {
    milliseconds: u64,
    since: Instant,
    set_by_host: bool,
}

impl Clock {
    fn parse(data: &[u8], now: Instant) -> Result<Self, Status> {
        let timestamp = Timestamp::parse(data).ok_or(Status::DATA_TRANSFER_ERROR)?;
        Ok(Self { milliseconds: timestamp.unix_ms(), since: now, set_by_host: true })
    }

    fn emit(&self, now: Instant) -> Vec<u8> {
        /// Timestamp origin 001b (Set Features), in bits 3:1.
        const SET_BY_HOST: u8 = 0b001 << 1;
        let passed = now.saturating_duration_since(self.since).as_millis() as u64;
        let attributes = if self.set_by_host { SET_BY_HOST } else { 0 };
        let timestamp = Timestamp::new(self.milliseconds.wrapping_add(passed), attributes);
        timestamp.as_bytes().to_vec()
    }
}

/// Returns the number of data bytes of a Set Features command.
pub(super) fn set_data_bytes(sqe: &Sqe) -> u32 {
    match FeatureSet::parse(sqe).fid {
        FeatureId::TIMESTAMP => Timestamp::LEN as u32,
        FeatureId::HOST_BEHAVIOR_SUPPORT => HostBehavior::LEN as u32,
        _ => 0,
    }
}

/// Returns the features that a controller supports.
pub(super) fn supported(discovery: bool) -> impl Iterator<Item = FeatureId> {
    let features = FEATURES.into_iter().filter(move |&(_, _, shared)| shared || !discovery);
    features.map(|(feature, ..)| feature)
}

/// Whether hosts can set a feature. Returns an error if the controller does not support the
/// feature.
fn is_changeable(feature: FeatureId, discovery: bool) -> Result<bool, Status> {
    let found =
        FEATURES.into_iter().find(|&(known, _, shared)| known == feature && (shared || !discovery));
    found.map(|(_, changeable, _)| changeable).ok_or(Status::INVALID_FIELD.with_dnr())
}

/// Whether a feature is a reservation feature, which has a value for each namespace.
fn is_of_reservations(feature: FeatureId) -> bool {
    matches!(feature, FeatureId::RESERVATION_NOTIFICATION_MASK | FeatureId::RESERVATION_PERSISTENCE)
}

/// The bits of Asynchronous Event Configuration that hosts can set.
fn event_mask(controller: &Controller) -> u32 {
    match controller.is_discovery() {
        true => Notice::DiscoveryLog.enable_bit(),
        false => {
            let notices =
                Notice::NamespaceAttribute.enable_bit() | Notice::AccessChange.enable_bit();
            notices | SMART_WARNINGS
        }
    }
}

impl Registry {
    /// Executes Get Features.
    pub(super) fn feature(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        now: Instant,
    ) -> Result<AdminOutcome, Status> {
        let get = FeatureGet::parse(sqe);
        let queues = self.max_io_queues(id);
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        let changeable = is_changeable(get.fid, controller.is_discovery())?;
        if is_of_reservations(get.fid) {
            return self.reservation_feature(id, NamespaceId(sqe.nsid.get()), get);
        }
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        let value = match get.select {
            FeatureSelect::SUPPORTED if changeable => Value::Dword(CAPABILITY_CHANGEABLE),
            FeatureSelect::SUPPORTED => Value::Dword(0),
            FeatureSelect::CURRENT => current(controller, get, queues, now)?,
            // Controllers save no values, so the saved value is the default.
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => initial(controller, get, queues, now)?,
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        match value {
            Value::Dword(value) => Ok(AdminOutcome::success(u64::from(value))),
            Value::Data(bytes) => {
                data_pointer(sqe, bytes.len() as u32, controller.remote)?;
                Ok(AdminOutcome::push(bytes))
            }
        }
    }

    /// Executes Set Features.
    pub(super) fn set_feature(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        data: &[u8],
        now: Instant,
    ) -> Result<AdminOutcome, Status> {
        let set = FeatureSet::parse(sqe);
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        let changeable = is_changeable(set.fid, controller.is_discovery())?;
        match set.fid {
            _ if set.save => return Err(Status::FEATURE_NOT_SAVEABLE.with_dnr()),
            // In fabrics, Connect sets the host identifier, and hosts cannot change it.
            FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            _ if !changeable => return Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr()),
            FeatureId::NUMBER_OF_QUEUES => {
                return self.grant_queues(id, NumberOfQueues(set.cdw11)).map(AdminOutcome::success);
            }
            _ if is_of_reservations(set.fid) => {
                return self.set_reservation_feature(id, NamespaceId(sqe.nsid.get()), set);
            }
            _ => {}
        }
        if set_data_bytes(sqe) != 0 {
            data_pointer(sqe, set_data_bytes(sqe), controller.remote)?;
        }
        change(controller, set, data, now)?;
        Ok(AdminOutcome::success(0))
    }

    /// Executes Get Features for the reservation features.
    fn reservation_feature(
        &self,
        id: ControllerId,
        namespace: NamespaceId,
        get: FeatureGet,
    ) -> Result<AdminOutcome, Status> {
        const NAMESPACE_SPECIFIC: u32 = CAPABILITY_CHANGEABLE | CAPABILITY_NAMESPACE;
        let subsystem = self.controllers[&id].subsystem;
        let subsystem = subsystem.ok_or(Status::INVALID_FIELD.with_dnr())?;
        let table = self.table_seen_by(&self.controllers[&id]);
        // The broadcast identifier stands for all namespaces, which may have different values.
        table.find(namespace).ok_or(match namespace {
            NamespaceId::ALL => Status::INVALID_FIELD.with_dnr(),
            _ => Status::INVALID_NAMESPACE.with_dnr(),
        })?;
        self.check_reach(&self.controllers[&id], namespace)?;
        let (mask, persist) = self.reservation_features(subsystem, namespace);
        let value = match get.select {
            FeatureSelect::SUPPORTED => NAMESPACE_SPECIFIC,
            FeatureSelect::CURRENT if get.fid == FeatureId::RESERVATION_PERSISTENCE => persist,
            FeatureSelect::CURRENT => mask,
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => 0,
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        Ok(AdminOutcome::success(value.into()))
    }

    /// Executes Set Features for the reservation features.
    fn set_reservation_feature(
        &mut self,
        id: ControllerId,
        namespace: NamespaceId,
        set: FeatureSet,
    ) -> Result<AdminOutcome, Status> {
        let invalid = Status::INVALID_FIELD.with_dnr();
        let subsystem = self.controllers[&id].subsystem.ok_or(invalid)?;
        self.check_sight(&self.controllers[&id], namespace)?;
        self.check_reach(&self.controllers[&id], namespace)?;
        if set.fid == FeatureId::RESERVATION_NOTIFICATION_MASK {
            if set.cdw11 & !NotificationType::MASK != 0 {
                return Err(invalid);
            }
            let seen = self.table_seen_by(&self.controllers[&id]);
            for (nsid, _) in seen.iter() {
                if namespace == nsid || namespace == NamespaceId::ALL {
                    self.mask_notifications(subsystem, nsid, set.cdw11)?;
                }
            }
            return Ok(AdminOutcome::success(0));
        }
        if set.cdw11 & !PERSISTENCE_PTPL != 0 || namespace == NamespaceId::ALL {
            return Err(invalid);
        }
        let request = KeyedCommand::Persist { persist: set.cdw11 != 0 };
        Ok(AdminOutcome::Reserve { namespace, request })
    }

    /// Grants the number of I/O queues that the host requests ("Number of Queues"), up to the
    /// subsystem's limit.
    fn grant_queues(&mut self, id: ControllerId, asked: NumberOfQueues) -> Result<u64, Status> {
        /// The reserved value, which would mean 65,536 queues.
        const RESERVED: u16 = u16::MAX;
        let most = self.max_io_queues(id);
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        if asked.nsq_z() == RESERVED || asked.ncq_z() == RESERVED {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if controller.io_queues().next().is_some() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let granted = u16::try_from(asked.pair_count()).unwrap_or(most).min(most);
        controller.features.granted_queues = Some(granted);
        Ok(u64::from(NumberOfQueues::pairs(granted).0))
    }

    /// Returns the largest number of I/O queues of a controller.
    fn max_io_queues(&self, id: ControllerId) -> u16 {
        let subsystem = self.controllers[&id].subsystem.and_then(|id| self.subsystem(id));
        // Discovery controllers have no I/O queues and do not report this number.
        subsystem.map_or(1, |config| config.max_io_queues)
    }
}

/// Returns the current value of a feature.
fn current(
    controller: &mut Controller,
    get: FeatureGet,
    max_queues: u16,
    now: Instant,
) -> Result<Value, Status> {
    let features = &mut controller.features;
    Ok(Value::Dword(match get.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => features.temperature_value(get.cdw11)?,
        FeatureId::ERROR_RECOVERY => features.error_recovery,
        FeatureId::VOLATILE_WRITE_CACHE => features.volatile_write_cache,
        FeatureId::NUMBER_OF_QUEUES => {
            NumberOfQueues::pairs(features.granted_queues.unwrap_or(max_queues)).0
        }
        FeatureId::WRITE_ATOMICITY => features.write_atomicity,
        FeatureId::ASYNC_EVENT_CONFIGURATION => controller.events.configuration(),
        FeatureId::KEEP_ALIVE_TIMER => controller.keep_alive.timeout_ms(),
        FeatureId::TIMESTAMP => return Ok(Value::Data(features.clock.emit(now))),
        FeatureId::HOST_BEHAVIOR_SUPPORT => {
            return Ok(Value::Data(features.behavior.as_bytes().to_vec()));
        }
        // All other features are constant: their value is always the default.
        _ => return initial(controller, get, max_queues, now),
    }))
}

/// Returns the default value of a feature.
fn initial(
    controller: &Controller,
    get: FeatureGet,
    max_queues: u16,
    now: Instant,
) -> Result<Value, Status> {
    let mut features = FeatureValues::new(now);
    Ok(Value::Dword(match get.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => features.temperature_value(get.cdw11)?,
        FeatureId::VOLATILE_WRITE_CACHE => features.volatile_write_cache,
        FeatureId::NUMBER_OF_QUEUES => NumberOfQueues::pairs(max_queues).0,
        FeatureId::TIMESTAMP => return Ok(Value::Data(features.clock.emit(now))),
        FeatureId::HOST_BEHAVIOR_SUPPORT => {
            return Ok(Value::Data(features.behavior.as_bytes().to_vec()));
        }
        FeatureId::HOST_IDENTIFIER if get.cdw11 & HOST_IDENTIFIER_EXTENDED == 0 => {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        FeatureId::HOST_IDENTIFIER => return Ok(Value::Data(controller.host_id.to_vec())),
        _ => 0,
    }))
}

/// Sets a changeable feature other than Number of Queues.
fn change(
    controller: &mut Controller,
    set: FeatureSet,
    data: &[u8],
    now: Instant,
) -> Result<(), Status> {
    /// Deallocated or Unwritten Logical Block Error Enable, which farblock does not support.
    const DULBE: u32 = 1 << 16;
    const TIME_LIMIT: u32 = 0xffff;
    const POWER_STATE: u32 = 0b1_1111;
    const DISABLE_NORMAL: u32 = 1;
    let invalid = Err(Status::INVALID_FIELD.with_dnr());
    let value = set.cdw11;
    let mask = event_mask(controller);
    let features = &mut controller.features;
    match set.fid {
        FeatureId::ARBITRATION => features.arbitration = value,
        // The controller has only power state 0, so hosts cannot select another one.
        FeatureId::POWER_MANAGEMENT if value & POWER_STATE != 0 => return invalid,
        FeatureId::POWER_MANAGEMENT => {}
        FeatureId::TEMPERATURE_THRESHOLD => *features.temperature(value)? = value as u16,
        FeatureId::ERROR_RECOVERY if value & DULBE != 0 => return invalid,
        FeatureId::ERROR_RECOVERY => features.error_recovery = value & TIME_LIMIT,
        FeatureId::VOLATILE_WRITE_CACHE if value & !VOLATILE_WRITE_CACHE_ENABLE != 0 => {
            return invalid;
        }
        // Disabling the cache makes later writes durable. Earlier writes still need a Flush.
        FeatureId::VOLATILE_WRITE_CACHE => {
            features.volatile_write_cache = value;
            controller.keep_alive.traffic().set_write_through(value == 0);
        }
        FeatureId::WRITE_ATOMICITY => features.write_atomicity = value & DISABLE_NORMAL,
        FeatureId::ASYNC_EVENT_CONFIGURATION if value & !mask != 0 => return invalid,
        FeatureId::ASYNC_EVENT_CONFIGURATION => controller.events.configure(value),
        FeatureId::TIMESTAMP => features.clock = Clock::parse(data, now)?,
        FeatureId::HOST_BEHAVIOR_SUPPORT => {
            features.behavior = host_behavior(data)?;
            let across = features.behavior.cdfe.get() & HostBehavior::CDFE_FORMAT_2 != 0;
            controller.keep_alive.traffic().set_copies_across(across);
        }
        FeatureId::KEEP_ALIVE_TIMER => controller.keep_alive.set(value, now),
        _ => return invalid,
    }
    Ok(())
}

/// Checks the Host Behavior Support data and returns the features that the host supports. It
/// ignores the other bits, which belong to features that farblock's controllers do not support.
fn host_behavior(data: &[u8]) -> Result<HostBehavior, Status> {
    const ENABLED: u8 = 1;
    let behavior = HostBehavior::parse(data).ok_or(Status::DATA_TRANSFER_ERROR)?;
    let HostBehavior { acre, etdas, lbafee, hdisns, cdfe, .. } = behavior;
    let reserved = [acre, etdas, lbafee, hdisns].iter().any(|&field| field > ENABLED);
    let foreign = lbafee != 0 || cdfe.get() & !HostBehavior::CDFE_FORMAT_2 != 0;
    if reserved || foreign {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    Ok(behavior)
}
