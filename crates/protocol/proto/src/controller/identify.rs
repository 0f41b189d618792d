//! Identify (NVMe Base Specification 2.0, "Identify command"; NVM Command Set Specification 1.0,
//! "Identify command").

use super::config::SubsystemConfig;
use super::contents;
use super::events::Notice;
use super::limits;
use super::namespace::{NamespaceInfo, NamespaceTable};
use super::properties::VERSION;
use super::registry::Registry;
use super::state::Controller;
use crate::capsule::RemoteForm;
use crate::ids::{ControllerId, NamespaceId};
use alloc::vec;
use alloc::vec::Vec;
use farblock_wire::identify::{
    Cns, CommandSet, CommandSetVector, ControllerList, ControllerType, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm,
    IdentifyParameters, NamespaceIdDescriptor, NamespaceIdType, NamespaceList, ascii_field,
};
use farblock_wire::nqn::{DISCOVERY_NQN, nqn_field};
use farblock_wire::rdma::MAX_DESCRIPTORS;
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Cqe, IDENTIFY_BYTES, Immutable, IntoBytes, Sqe, Status};

/// Unit of IOCCSZ and IORCSZ, in bytes.
const CAPSULE_UNIT_BYTES: u32 = 16;

/// The fields of an Identify command.
#[derive(Clone, Copy)]
struct IdentifyRequest {
    cns: Cns,
    /// CNTID: the first identifier of a controller list, or the identifier of one controller.
    controller: u16,
    namespace: NamespaceId,
}

impl IdentifyRequest {
    fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let parameters = IdentifyParameters::parse(sqe);
        let names_command_set = matches!(
            parameters.cns,
            Cns::COMMAND_SET_NAMESPACE
                | Cns::COMMAND_SET_CONTROLLER
                | Cns::COMMAND_SET_ACTIVE_NAMESPACES
                | Cns::COMMAND_SET_ALLOCATED_NAMESPACES
        );
        if names_command_set && parameters.csi != CommandSet::NVM {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let namespace = NamespaceId(sqe.nsid.get());
        Ok(Self { cns: parameters.cns, controller: parameters.cntid, namespace })
    }

    /// Returns the namespace identifier if it is within 1 to [`limits::MAX_NAMESPACE_ID`].
    fn valid_namespace(&self) -> Result<NamespaceId, Status> {
        match self.namespace.0 {
            1..=limits::MAX_NAMESPACE_ID => Ok(self.namespace),
            _ => Err(Status::INVALID_NAMESPACE.with_dnr()),
        }
    }

    fn active_namespace<'t>(&self, table: &'t NamespaceTable) -> Result<&'t NamespaceInfo, Status> {
        table.find(self.namespace).ok_or(Status::INVALID_NAMESPACE.with_dnr())
    }
}

impl Registry {
    /// Executes Identify. Returns 4096 bytes for the host.
    pub(super) fn identify(&self, id: ControllerId, sqe: &Sqe) -> Result<Vec<u8>, Status> {
        let request = IdentifyRequest::parse(sqe)?;
        let controller = &self.controllers[&id];
        let Some(config) = controller.subsystem.and_then(|id| self.subsystem(id)) else {
            return match request.cns {
                Cns::CONTROLLER => Ok(page(&discovery_controller(controller))),
                _ => Err(Status::INVALID_FIELD.with_dnr()),
            };
        };
        let table = self.table_seen_by(controller);
        Ok(match request.cns {
            Cns::CONTROLLER => {
                let name = self.instances.name(controller);
                let mut identify = io_controller(controller, config, &name);
                if let Some(origin) = &self.origin {
                    origin.emit(&mut identify.vs);
                    if let Some(process) = &self.process {
                        process.emit(&mut identify.vs);
                        config.controller_ids_of(&self.controller_ids).emit(&mut identify.vs);
                    }
                }
                page(&identify)
            }
            Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
                let info = table.find(request.valid_namespace()?);
                let rescap = self.rescap(controller, request.namespace);
                page(&info.map_or_else(IdentifyNamespace::zeroed, |info| {
                    let mut identify = IdentifyNamespace { rescap, ..namespace(info) };
                    contents::report(config, request.namespace, &mut identify);
                    self.as_reached(controller, identify)
                }))
            }
            Cns::INDEPENDENT_NAMESPACE => {
                let rescap = self.rescap(controller, request.namespace);
                let info = request.active_namespace(&table)?;
                page(&IdentifyNamespaceIndependent { rescap, ..independent_namespace(info) })
            }
            Cns::NAMESPACE_ID_DESCRIPTORS => descriptors(request.active_namespace(&table)?),
            Cns::ACTIVE_NAMESPACES
            | Cns::COMMAND_SET_ACTIVE_NAMESPACES
            | Cns::ALLOCATED_NAMESPACES
            | Cns::COMMAND_SET_ALLOCATED_NAMESPACES => namespaces_after(request.namespace, &table)?,
            // Namespaces have no protection information, so all fields are zero.
            Cns::COMMAND_SET_NAMESPACE => {
                request.active_namespace(&table)?;
                page(&IdentifyNamespaceNvm::zeroed())
            }
            Cns::COMMAND_SET_CONTROLLER => page(&command_set_limits()),
            Cns::ATTACHED_CONTROLLERS if table.find(request.valid_namespace()?).is_none() => {
                page(&ControllerList::zeroed())
            }
            Cns::ATTACHED_CONTROLLERS => {
                let sees = |host: &str| config.sees(host, request.namespace);
                self.controllers_from(request.controller, controller, sees)
            }
            Cns::CONTROLLERS => self.controllers_from(request.controller, controller, |_| true),
            Cns::COMMAND_SETS => command_sets(request.controller, controller)?,
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        })
    }

    /// Returns the reservation capabilities (RESCAP) of a namespace.
    fn rescap(&self, controller: &Controller, namespace: NamespaceId) -> u8 {
        type Id = IdentifyNamespace;
        let persists = controller.subsystem.is_some_and(|id| self.can_persist(id, namespace));
        let persist = if persists { Id::RESCAP_PERSIST } else { 0 };
        Id::RESCAP_ALL_TYPES | Id::RESCAP_IGNORE_KEY_1_3 | persist
    }

    /// Returns a controller list. It contains the subsystem's controllers whose identifiers are at
    /// least `first` and for whose host NQN `is_meant` returns true.
    fn controllers_from(
        &self,
        first: u16,
        controller: &Controller,
        is_meant: impl Fn(&str) -> bool,
    ) -> Vec<u8> {
        let rest = self.controllers.range(ControllerId(first)..).map(|(_, other)| other);
        let siblings = rest.filter(|other| other.subsystem == controller.subsystem);
        let siblings = siblings.filter(|other| is_meant(&other.host_nqn));
        page(&ControllerList::from_ids(siblings.map(|other| other.id.0)))
    }
}

/// Returns the structure as bytes, for the response.
fn page<T: IntoBytes + Immutable>(structure: &T) -> Vec<u8> {
    structure.as_bytes().to_vec()
}

/// Returns the limits of commands that name blocks but do not transfer data.
fn command_set_limits() -> IdentifyControllerNvm {
    /// The limit as the base-two logarithm of a number of pages.
    const IN_PLACE: u8 = (limits::IN_PLACE_BYTES / limits::PAGE_BYTES).ilog2() as u8;
    IdentifyControllerNvm {
        vsl: IN_PLACE,
        wzsl: IN_PLACE,
        dmrl: limits::DATASET_RANGES as u8,
        dmrsl: limits::DATASET_BLOCKS.into(),
        dmsl: u64::from(limits::DATASET_BLOCKS).into(),
        ..IdentifyControllerNvm::zeroed()
    }
}

/// Returns a namespace list: the namespaces whose identifiers are above `after`.
fn namespaces_after(after: NamespaceId, table: &NamespaceTable) -> Result<Vec<u8>, Status> {
    if after.0 >= 0xffff_fffe {
        return Err(Status::INVALID_NAMESPACE.with_dnr());
    }
    let ids = table.iter().map(|(id, _)| id).filter(|&id| id > after);
    Ok(page(&NamespaceList::from_nsids(ids.map(|id| id.0))))
}

/// Returns the supported combinations of command sets. The controller identifier `of` must denote
/// this controller.
fn command_sets(of: u16, controller: &Controller) -> Result<Vec<u8>, Status> {
    /// This controller identifier denotes the controller that processes the command.
    const THIS: u16 = 0xffff;
    if of != THIS && of != controller.id.0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let mut vector = CommandSetVector::zeroed();
    vector.combinations[0].set(1 << CommandSet::NVM.0);
    Ok(page(&vector))
}

/// Returns the Namespace Identification Descriptors for all identifiers of the namespace.
fn descriptors(info: &NamespaceInfo) -> Vec<u8> {
    let identifiers: [(NamespaceIdType, &[u8]); 3] = [
        (NamespaceIdType::EUI64, &info.eui64),
        (NamespaceIdType::NGUID, &info.nguid),
        (NamespaceIdType::UUID, &info.uuid),
    ];
    let exists = |id: &[u8]| id.iter().any(|&byte| byte != 0);
    let mut page = vec![0; IDENTIFY_BYTES];
    let mut at = 0;
    for (kind, id) in identifiers.into_iter().filter(|(_, id)| exists(id)) {
        at = NamespaceIdDescriptor::append(&mut page, at, kind, id);
    }
    let command_set = [CommandSet::NVM.0];
    NamespaceIdDescriptor::append(&mut page, at, NamespaceIdType::COMMAND_SET, &command_set);
    page
}

/// Returns the fields that are common to I/O and discovery controllers.
fn any_controller(controller: &Controller, subnqn: &str) -> IdentifyController {
    type Id = IdentifyController;
    let (remote, msdbd) = match controller.remote {
        RemoteForm::Transport => (Id::SGLS_TRANSPORT, 1),
        RemoteForm::Keyed => (Id::SGLS_KEYED, MAX_DESCRIPTORS),
    };
    Id {
        cntlid: controller.id.0.into(),
        ver: VERSION.0.into(),
        ctratt: (Id::CTRATT_HOST_ID_128 | Id::CTRATT_TRAFFIC_KEEP_ALIVE).into(),
        aerl_z: limits::ASYNC_EVENT_REQUESTS as u8 - 1,
        elpe_z: limits::ERROR_LOG_ENTRIES - 1,
        kas: (limits::KEEP_ALIVE_GRANULARITY_MS as u16 / 100).into(),
        sgls: (Id::SGLS_SUPPORTED | Id::SGLS_OFFSET | remote).into(),
        subnqn: nqn_field(subnqn),
        iorcsz: (Cqe::LEN as u32 / CAPSULE_UNIT_BYTES).into(),
        msdbd,
        ..Id::zeroed()
    }
}

fn io_controller(
    controller: &Controller,
    config: &SubsystemConfig,
    life: &CrossControllerReset,
) -> IdentifyController {
    type Id = IdentifyController;
    const COMMANDS: u16 = Id::ONCS_COMPARE
        | Id::ONCS_DATASET_MANAGEMENT
        | Id::ONCS_WRITE_ZEROES
        | Id::ONCS_FEATURE_SAVE_SELECT
        | Id::ONCS_RESERVATIONS
        | Id::ONCS_TIMESTAMP
        | Id::ONCS_VERIFY
        | Id::ONCS_COPY;
    const ANA_STATES: u8 = Id::ANACAP_OPTIMIZED
        | Id::ANACAP_NON_OPTIMIZED
        | Id::ANACAP_INACCESSIBLE
        | Id::ANACAP_PERSISTENT_LOSS
        | Id::ANACAP_CHANGE;
    let in_capsule_bytes = match controller.remote {
        RemoteForm::Transport => config.in_capsule_bytes,
        RemoteForm::Keyed => config.in_capsule_bytes.min(crate::limits::KEYED_IN_CAPSULE_BYTES),
    };
    Id {
        sn: ascii_field(&config.serial),
        mn: ascii_field(&config.model),
        fr: ascii_field(&config.firmware),
        cmic: Id::CMIC_MULTI_PORT | Id::CMIC_MULTI_CONTROLLER | Id::CMIC_ANA,
        ciu: life.ciu,
        cirn: life.cirn.into(),
        ccrl: limits::CROSS_CONTROLLER_RESETS,
        mdts: mdts(config),
        oaes: (Notice::NamespaceAttribute.enable_bit() | Notice::AccessChange.enable_bit()).into(),
        cntrltype: ControllerType::IO.0,
        acl_z: limits::ABORT_COMMANDS - 1,
        frmw: Id::FRMW_SLOT1_READ_ONLY | Id::FRMW_ONE_SLOT,
        lpa: Id::LPA_COMMAND_EFFECTS | Id::LPA_EXTENDED_DATA,
        // The required and the maximum entry sizes are 64 and 16 bytes.
        sqes: 0x66,
        cqes: 0x44,
        anatt: limits::ANA_TRANSITION_SECONDS,
        anacap: ANA_STATES,
        anagrpmax: limits::MAX_ANA_GROUPS.into(),
        nanagrpid: limits::MAX_ANA_GROUPS.into(),
        maxcmd: config.max_queue_depth.into(),
        nn: limits::MAX_NAMESPACE_ID.into(),
        oncs: COMMANDS.into(),
        fuses: Id::FUSES_COMPARE_WRITE.into(),
        acwu_z: (limits::FUSED_BLOCKS as u16 - 1).into(),
        ocfs: (Id::OCFS_FORMAT_0 | Id::OCFS_FORMAT_2).into(),
        // The operator may add a namespace with a cache at any time, but hosts read this field only
        // when they connect. So farblock always reports a cache: an unneeded flush is better than a
        // missing flush. CNS 08h reports whether a namespace has a cache.
        vwc: Id::VWC_PRESENT | Id::VWC_FLUSH_ALL_SUPPORTED,
        mnan: limits::MAX_NAMESPACE_ID.into(),
        ioccsz: ((Sqe::LEN as u32 + in_capsule_bytes) / CAPSULE_UNIT_BYTES).into(),
        ofcs: Id::OFCS_DISCONNECT.into(),
        ..any_controller(controller, &config.nqn)
    }
}

fn discovery_controller(controller: &Controller) -> IdentifyController {
    const CAPSULE_BYTES: u32 = Sqe::LEN as u32 + crate::limits::ADMIN_IN_CAPSULE_BYTES;
    const MAX_PAGES: u32 = crate::limits::MAX_TRANSFER_BYTES / limits::PAGE_BYTES;
    IdentifyController {
        sn: ascii_field(""),
        mn: ascii_field("farblock discovery"),
        fr: ascii_field(env!("CARGO_PKG_VERSION")),
        mdts: MAX_PAGES.ilog2() as u8,
        oaes: Notice::DiscoveryLog.enable_bit().into(),
        cntrltype: ControllerType::DISCOVERY.0,
        lpa: IdentifyController::LPA_EXTENDED_DATA,
        maxcmd: limits::ADMIN_QUEUE_ENTRIES.into(),
        ioccsz: (CAPSULE_BYTES / CAPSULE_UNIT_BYTES).into(),
        ..any_controller(controller, DISCOVERY_NQN)
    }
}

/// Returns MDTS: the lower of the subsystem's limit and the lowest limit of its namespaces.
fn mdts(config: &SubsystemConfig) -> u8 {
    let limited = config.namespaces.values().filter(|info| info.max_blocks != 0);
    let smallest = limited.map(|info| u64::from(info.max_blocks) * u64::from(info.block_size));
    let bytes = smallest.chain([u64::from(config.max_transfer_bytes)]).min().unwrap_or(0);
    // In MDTS, 0 means no limit, so MDTS cannot express fewer than two pages.
    let bytes = bytes.max(u64::from(limits::MIN_TRANSFER_BYTES));
    (bytes / u64::from(limits::PAGE_BYTES)).ilog2() as u8
}

/// Returns the namespace attributes (NSATTR).
fn attributes(info: &NamespaceInfo) -> u8 {
    if info.read_only { IdentifyNamespace::NSATTR_WRITE_PROTECTED } else { 0 }
}

fn namespace(info: &NamespaceInfo) -> IdentifyNamespace {
    type Id = IdentifyNamespace;
    const DEALLOCATE: u8 = Id::DLFEAT_READ_ZEROES | Id::DLFEAT_WRITE_ZEROES_DEALLOCATE;
    let preferred = u16::try_from(info.preferred_blocks).unwrap_or(0);
    let preferred_z = preferred.saturating_sub(1);
    let mut this = Id {
        nsze: info.blocks.into(),
        ncap: info.blocks.into(),
        nuse: info.blocks.into(),
        nsfeat: if preferred == 0 { 0 } else { Id::NSFEAT_OPTIMAL_IO },
        nmic: Id::NMIC_SHARED,
        dlfeat: if info.deallocate { DEALLOCATE } else { 0 },
        noiob: u16::try_from(info.optimal_blocks).unwrap_or(0).into(),
        npwg_z: preferred_z.into(),
        npwa_z: preferred_z.into(),
        npdg_z: preferred_z.into(),
        npda_z: preferred_z.into(),
        nows_z: preferred_z.into(),
        mssrl: info.copy_range_blocks().into(),
        mcl: info.copy_blocks().into(),
        msrc_z: (limits::COPY_RANGES - 1) as u8,
        anagrpid: info.ana_group.into(),
        nsattr: attributes(info),
        nguid: info.nguid,
        eui64: info.eui64,
        ..Id::zeroed()
    };
    this.lbaf[0].lbads = info.block_shift() as u8;
    this
}

fn independent_namespace(info: &NamespaceInfo) -> IdentifyNamespaceIndependent {
    type Id = IdentifyNamespaceIndependent;
    /// NSFEAT: the namespace has no volatile write cache (VWCNP of Base 2.1, reserved in earlier
    /// versions).
    const NO_CACHE: u8 = 1 << 5;
    Id {
        nsfeat: if info.volatile_cache { 0 } else { NO_CACHE },
        nmic: IdentifyNamespace::NMIC_SHARED,
        anagrpid: info.ana_group.into(),
        nsattr: attributes(info),
        nstat: Id::NSTAT_READY,
        ..Id::zeroed()
    }
}
