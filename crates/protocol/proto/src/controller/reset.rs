//! Cross-Controller Reset (NVMe Base Specification 2.3, "Cross-Controller Reset command"): a host
//! that lost one of its controllers ends this controller through another one. When the reset is
//! done, the target carries out no more commands from the lost controller, and the host may send
//! them again.
//!
//! The registry reuses controller identifiers, so each controller instance has its own name: CIU
//! and CIRN of Identify Controller.

use super::cipher::Cipher;
use super::registry::{Action, Registry, TeardownReason};
use super::state::Controller;
use crate::ids::ControllerId;
use farblock_wire::origin::{ControllerOrigin, ProcessName};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};

/// A controller instance, by its serial number in the registry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance(pub u64);

/// The controller instances so far, and their names. A name is the instance's enciphered number, so
/// that a host that knows some names cannot guess others.
#[derive(Debug)]
pub(super) struct Instances {
    cipher: Cipher,
    count: u64,
}

/// A bit that no instance number has, set in the input of CIU.
const UNIQUIFIER: u64 = 1 << 63;

impl Default for Instances {
    fn default() -> Self {
        Self { cipher: Cipher::new([0; 16]), count: 0 }
    }
}

impl Instances {
    /// The name of a controller instance.
    pub(super) fn name(&self, controller: &Controller) -> CrossControllerReset {
        let Instance(number) = controller.instance;
        let cirn = self.cipher.encipher(number);
        CrossControllerReset { icid: controller.id.0, ciu: self.uniquifier(number), cirn }
    }

    /// The controller instance that CIU and CIRN of this request denote; `None` if this registry
    /// never issued them.
    fn find(&self, name: &CrossControllerReset) -> Option<Instance> {
        let number = self.cipher.decipher(name.cirn);
        let issued = number < self.count && name.ciu == self.uniquifier(number);
        issued.then_some(Instance(number))
    }

    /// CIU of an instance number: never 0, which means none.
    fn uniquifier(&self, number: u64) -> u8 {
        (self.cipher.encipher(number | UNIQUIFIER) % u64::from(u8::MAX)) as u8 + 1
    }
}

impl Registry {
    /// Sets the key of the controllers' names (CIU and CIRN): 128 secret random bits. Without such
    /// a key, any peer can compute the names.
    pub fn set_instance_key(&mut self, random: [u8; 16]) {
        self.instances.cipher = Cipher::new(random);
    }

    /// Sets the location of this registry. By it, hosts that lost a controller detect that its
    /// process has ended.
    pub fn set_origin(&mut self, origin: ControllerOrigin) {
        self.origin = Some(origin);
    }

    /// Sets random bits that distinguish this registry from that of another process.
    pub fn set_process(&mut self, random: [u8; 16]) {
        self.process = Some(ProcessName(random));
    }

    pub(super) fn next_instance(&mut self) -> Instance {
        let instance = Instance(self.instances.count);
        self.instances.count += 1;
        instance
    }

    /// Ends the controller that the command names, unless it has already ended.
    pub(super) fn cross_controller_reset(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
    ) -> Result<Instance, Status> {
        let name = CrossControllerReset::parse(sqe);
        // The name may belong to a controller of another target or of an earlier run. Refuse it:
        // the registry does not know whether such a controller has ended.
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
            // Do not return the status for an unknown instance: the host could conclude that the
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
