//! Shared helpers of the controller tests: a registry with one subsystem, and a host that sends it
//! submission queue entries.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]

use core::time::Duration;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    Action, AdminOutcome, ConnectRequest, Connected, Instance, NamespaceInfo, PortId, Refusal,
    Registry, SubsystemConfig, SubsystemId,
};
use farblock_proto::ids::{ControllerId, NamespaceId};
use farblock_proto::time::Instant;
use farblock_wire::fabrics::{
    CNTLID_DYNAMIC, ConnectCommand, ConnectData, PropertyGetCommand, PropertySetCommand,
    PropertySize,
};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::property::{Cc, Csts, offset};
use farblock_wire::sgl::SglDescriptor;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

pub const SUBSYSTEM_NQN: &str = "nqn.2026-01.test.farblock:disks";
pub const HOST_NQN: &str = "nqn.2026-01.test.farblock:host";
pub const OTHER_HOST_NQN: &str = "nqn.2026-01.test.farblock:other";
pub const HOST_ID: [u8; 16] = [7; 16];
pub const LOCAL_ADDRESS: &str = "192.0.2.1";

pub fn at_ms(milliseconds: u64) -> Instant {
    Instant::default().saturating_add(Duration::from_millis(milliseconds))
}

pub fn at(seconds: u64) -> Instant {
    at_ms(seconds * 1000)
}

/// A subsystem with namespaces 1 (512-byte blocks, volatile cache), 2 (4096-byte blocks, read only)
/// and 7 (defaults).
pub fn config() -> SubsystemConfig {
    let mut config = SubsystemConfig::new(SUBSYSTEM_NQN, "SERIAL0001");
    config.allowed_hosts.push(HOST_NQN.into());
    config.max_io_queues = 4;
    let first = NamespaceInfo {
        volatile_cache: true,
        deallocate: true,
        optimal_blocks: 256,
        preferred_blocks: 8,
        uuid: [0x11; 16],
        nguid: [0x22; 16],
        eui64: [0x33; 8],
        ..NamespaceInfo::new(512, 20_000)
    };
    let second = NamespaceInfo { read_only: true, ..NamespaceInfo::new(4096, 1_000) };
    let third = NamespaceInfo::new(4096, 5_000);
    config.namespaces =
        [(NamespaceId(1), first), (NamespaceId(2), second), (NamespaceId(7), third)].into();
    config
}

pub fn registry() -> (Registry, SubsystemId) {
    let mut registry = Registry::new();
    let id = registry.add_subsystem(config()).expect("a valid configuration");
    drain(&mut registry);
    (registry, id)
}

/// Takes all actions that the registry requests.
pub fn drain(registry: &mut Registry) -> Vec<Action> {
    std::iter::from_fn(|| registry.poll_action()).collect()
}

/// A Connect command and its data, which tests modify before they send it.
#[derive(Clone)]
pub struct Connect {
    pub command: ConnectCommand,
    pub data: ConnectData,
    pub port: Option<PortId>,
    pub remote: RemoteForm,
}

impl Connect {
    pub fn admin(nqn: &str) -> Self {
        Self {
            command: ConnectCommand::new(1, 0, 31, 5000),
            data: ConnectData::new(HOST_ID, CNTLID_DYNAMIC, nqn, HOST_NQN),
            port: None,
            remote: RemoteForm::Transport,
        }
    }

    pub fn io(controller: ControllerId, qid: u16) -> Self {
        Self {
            command: ConnectCommand::new(1, qid, 127, 0),
            data: ConnectData::new(HOST_ID, controller.0, SUBSYSTEM_NQN, HOST_NQN),
            port: None,
            remote: RemoteForm::Transport,
        }
    }

    pub fn send(&self, registry: &mut Registry, now: Instant) -> Result<Connected, Refusal> {
        let request = ConnectRequest {
            command: &self.command,
            data: &self.data,
            local_address: LOCAL_ADDRESS,
            port: self.port,
            remote: self.remote,
        };
        registry.connect(&request, now)
    }
}

/// The CC with which a Linux host enables a controller.
pub fn enabling() -> Cc {
    Cc::default().with_en(true).with_iosqes(Cc::IOSQES_64).with_iocqes(Cc::IOCQES_16)
}

pub struct Host {
    pub id: ControllerId,
    pub instance: Instance,
}

impl Host {
    /// Returns the host of the controller that this Connect created.
    pub fn of(connected: &Connected) -> Self {
        Self { id: connected.controller, instance: connected.instance }
    }

    /// Connects the admin queue. The controller is not enabled yet.
    pub fn connect(registry: &mut Registry, nqn: &str) -> Self {
        let connected = Connect::admin(nqn).send(registry, at(0)).expect("an allowed host");
        Self::of(&connected)
    }

    /// Returns the host of an enabled controller of the subsystem.
    pub fn ready(registry: &mut Registry) -> Self {
        let host = Self::connect(registry, SUBSYSTEM_NQN);
        host.write_cc(registry, enabling(), at(0));
        assert!(host.csts(registry).rdy());
        host
    }

    pub fn discovery(registry: &mut Registry) -> Self {
        let host = Self::connect(registry, DISCOVERY_NQN);
        host.write_cc(registry, enabling(), at(0));
        assert!(host.csts(registry).rdy());
        host
    }

    pub fn io_queue(&self, registry: &mut Registry, qid: u16) -> Result<Connected, Refusal> {
        Connect::io(self.id, qid).send(registry, at(0))
    }

    pub fn admin(&self, registry: &mut Registry, sqe: &Sqe, now: Instant) -> AdminOutcome {
        registry.admin(self.id, sqe, &[], now)
    }

    /// Sends a command without data. Returns the command's result or its error status.
    pub fn result(&self, registry: &mut Registry, sqe: &Sqe) -> Result<u64, Status> {
        match self.admin(registry, sqe, at(0)) {
            AdminOutcome::Respond { status, result } if status.is_success() => Ok(result),
            AdminOutcome::Respond { status, .. } => Err(status),
            other => panic!("not a plain answer: {other:?}"),
        }
    }

    /// Sends a command that fetches `bytes` bytes. Returns the bytes or the error status.
    pub fn fetch(
        &self,
        registry: &mut Registry,
        mut sqe: Sqe,
        bytes: u32,
    ) -> Result<Vec<u8>, Status> {
        sqe.dptr = SglDescriptor::transport(bytes);
        match self.admin(registry, &sqe, at(0)) {
            AdminOutcome::Push { bytes: pushed, result } => {
                assert_eq!((pushed.len(), result), (bytes as usize, 0));
                Ok(pushed)
            }
            AdminOutcome::Respond { status, .. } => {
                assert!(!status.is_success(), "only a failed command returns no data");
                Err(status)
            }
            other => panic!("not data: {other:?}"),
        }
    }

    pub fn write_cc(&self, registry: &mut Registry, cc: Cc, now: Instant) {
        let command = PropertySetCommand::new(2, offset::CC, PropertySize::Four, u64::from(cc.0));
        let outcome = self.admin(registry, &command.to_sqe(), now);
        assert_eq!(outcome, AdminOutcome::Respond { status: Status::SUCCESS, result: 0 });
    }

    pub fn property(
        &self,
        registry: &mut Registry,
        ofst: u32,
        size: PropertySize,
    ) -> Result<u64, Status> {
        self.result(registry, &PropertyGetCommand::new(3, ofst, size).to_sqe())
    }

    pub fn csts(&self, registry: &mut Registry) -> Csts {
        let value = self.property(registry, offset::CSTS, PropertySize::Four);
        Csts(value.expect("CSTS") as u32)
    }

    pub fn set_feature(
        &self,
        registry: &mut Registry,
        feature: u8,
        cdw11: u32,
    ) -> Result<u64, Status> {
        let mut sqe = command(AdminOpcode::SET_FEATURES, 0);
        sqe.cdw10 = u32::from(feature).into();
        sqe.cdw11 = cdw11.into();
        self.result(registry, &sqe)
    }

    pub fn feature(
        &self,
        registry: &mut Registry,
        feature: u8,
        select: u32,
        cdw11: u32,
    ) -> Result<u64, Status> {
        self.result(registry, &get_features(feature, select, cdw11))
    }
}

pub fn command(opcode: AdminOpcode, nsid: u32) -> Sqe {
    Sqe::new(opcode.0, 9, nsid)
}

pub fn get_features(feature: u8, select: u32, cdw11: u32) -> Sqe {
    let mut sqe = command(AdminOpcode::GET_FEATURES, 0);
    sqe.cdw10 = (u32::from(feature) | select << 8).into();
    sqe.cdw11 = cdw11.into();
    sqe
}

pub fn log_page(page: u8, offset: u64, bytes: u32) -> Sqe {
    let dwords_z = (bytes / 4).wrapping_sub(1);
    let mut sqe = command(AdminOpcode::GET_LOG_PAGE, 0xffff_ffff);
    sqe.cdw10 = (u32::from(page) | dwords_z << 16).into();
    sqe.cdw11 = (dwords_z >> 16).into();
    sqe.cdw12 = (offset as u32).into();
    sqe.cdw13 = ((offset >> 32) as u32).into();
    sqe
}

/// A refusal with this status and Do Not Retry.
pub fn refused<T>(status: Status) -> Result<T, Status> {
    Err(status.with_dnr())
}
