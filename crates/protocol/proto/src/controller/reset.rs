//! Cross-Controller Reset (NVMe Base Specification 2.3, "Cross-Controller Reset command"). A host
//! that lost the connection to one of its controllers ends this controller through another
//! controller. When the reset is complete, the target executes no more commands of the lost
//! controller, and the host may send them again.
//!
//! The registry reuses controller identifiers, so each controller instance also has a unique name:
//! CIU and CIRN of Identify Controller.

use super::cipher::Cipher;
use super::registry::{Action, Registry, TeardownReason};
use super::state::Controller;
use crate::ids::ControllerId;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use farblock_wire::origin::{ControllerOrigin, ProcessName};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};

/// A controller instance, by its serial number in the registry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance(pub u64);

/// Stands for an ended controller of another target. No instance of this registry has this number.
const ELSEWHERE: Instance = Instance(u64::MAX);

/// Issues the numbers and names of controller instances. The name is the enciphered number of the
/// instance, so a host that knows some names cannot guess others.
#[derive(Debug)]
pub(super) struct Instances {
    cipher: Cipher,
    count: u64,
    /// The controller identifiers of other targets whose controllers have ended.
    ended: Vec<RangeInclusive<u16>>,
}

/// CIRN is the enciphered instance number. CIU is derived from the instance number with this bit
/// set, so that the two are independent. No instance number has this bit itself.
const UNIQUIFIER: u64 = 1 << 63;

impl Default for Instances {
    fn default() -> Self {
        Self { cipher: Cipher::new([0; 16]), count: 0, ended: Vec::new() }
    }
}

impl Instances {
    /// Returns the name of a controller instance.
    pub(super) fn name(&self, controller: &Controller) -> CrossControllerReset {
        let Instance(number) = controller.instance;
        let cirn = self.cipher.encipher(number);
        CrossControllerReset { icid: controller.id.0, ciu: self.uniquifier(number), cirn }
    }

    /// Returns the controller instance with the CIU and CIRN of this request; `None` if this
    /// registry never issued them.
    fn find(&self, name: &CrossControllerReset) -> Option<Instance> {
        let number = self.cipher.decipher(name.cirn);
        let issued = number < self.count && name.ciu == self.uniquifier(number);
        issued.then_some(Instance(number))
    }

    /// Returns the CIU for an instance number. It is never 0, because 0 means that a controller has
    /// no CIU.
    fn uniquifier(&self, number: u64) -> u8 {
        (self.cipher.encipher(number | UNIQUIFIER) % u64::from(u8::MAX)) as u8 + 1
    }
}

impl Registry {
    /// Sets the key that enciphers the names of controller instances (CIU and CIRN). The key must
    /// be 128 secret random bits. Until this is called, any peer can compute the names.
    pub fn set_instance_key(&mut self, random: [u8; 16]) {
        self.instances.cipher = Cipher::new(random);
    }

    /// Sets the origin of this registry. A host that lost a controller uses the origin to detect
    /// that the controller's process has ended.
    pub fn set_origin(&mut self, origin: ControllerOrigin) {
        self.origin = Some(origin);
    }

    /// Sets the random bits that identify the process of this registry.
    pub fn set_process(&mut self, random: [u8; 16]) {
        self.process = Some(ProcessName(random));
    }

    /// Sets the controller identifiers of other targets of the same subsystems whose controllers
    /// execute no more commands. A Cross-Controller Reset of such a controller succeeds at once.
    pub fn set_ended_controllers(&mut self, ended: Vec<RangeInclusive<u16>>) {
        self.instances.ended = ended;
    }

    pub(super) fn next_instance(&mut self) -> Instance {
        let instance = Instance(self.instances.count);
        self.instances.count += 1;
        instance
    }

    /// Ends the controller that the command names. Succeeds if the controller has already ended.
    pub(super) fn cross_controller_reset(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
    ) -> Result<Instance, Status> {
        let name = CrossControllerReset::parse(sqe);
        if self.instances.ended.iter().any(|ids| ids.contains(&name.icid)) {
            return Ok(ELSEWHERE);
        }
        // The name may belong to a controller of another target or of an earlier run. Refuse the
        // command, because the registry does not know whether that controller has ended.
        let instance = self.instances.find(&name).ok_or(Status::INVALID_FIELD.with_dnr())?;
        let source = &self.controllers[&id];
        let impacted = self.controllers.get(&ControllerId(name.icid));
        let Some(impacted) = impacted.filter(|impacted| impacted.instance == instance) else {
            return Ok(instance);
        };
        let same_host = impacted.subsystem == source.subsystem
            && impacted.host_nqn == source.host_nqn
            && impacted.host_id == source.host_id;
        if !same_host {
            // Do not return the status for an unknown instance: the host could conclude that this
            // controller has ended, but it is alive.
            return Err(Status::OPERATION_DENIED.with_dnr());
        }
        if impacted.id == id {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let id = impacted.id;
        if let Some(teardown) = self.remove(id, TeardownReason::CrossControllerReset) {
            self.act(Action::Close(teardown));
        }
        Ok(instance)
    }
}
