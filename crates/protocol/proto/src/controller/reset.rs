//! Cross-Controller Reset (NVMe Base Specification 2.3, "Cross-Controller Reset command"): a host
//! that lost one of its controllers has it ended through another one. When that is done, nothing
//! that it sent to the lost controller is carried out any more, and it may send it anew.
//!
//! Controller identifiers are used again, so that each life of one has a name of its own: CIU and
//! CIRN of Identify Controller.

use super::cipher::Cipher;
use super::registry::{Action, Registry, TeardownReason};
use super::state::Controller;
use crate::ids::ControllerId;
use farblock_wire::origin::{ControllerOrigin, ProcessName};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};

/// One life of a controller: the how-manieth controller of the registry it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance(pub u64);

/// The lives of controllers so far, and their names: a host that knows some of them must not be
/// able to guess others, so each is the life's number enciphered.
#[derive(Debug)]
pub(super) struct Instances {
    cipher: Cipher,
    count: u64,
}

/// What CIU is made from is never the number of a life.
const UNIQUIFIER: u64 = 1 << 63;

impl Default for Instances {
    fn default() -> Self {
        Self { cipher: Cipher::new([0; 16]), count: 0 }
    }
}

impl Instances {
    /// The name of a controller's life.
    pub(super) fn name(&self, controller: &Controller) -> CrossControllerReset {
        let Instance(number) = controller.instance;
        let cirn = self.cipher.encipher(number);
        CrossControllerReset { icid: controller.id.0, ciu: self.uniquifier(number), cirn }
    }

    /// Which life is meant, if it was one of this registry's.
    fn find(&self, name: &CrossControllerReset) -> Option<Instance> {
        let number = self.cipher.decipher(name.cirn);
        let issued = number < self.count && name.ciu == self.uniquifier(number);
        issued.then_some(Instance(number))
    }

    /// CIU: not 0, which means none.
    fn uniquifier(&self, number: u64) -> u8 {
        (self.cipher.encipher(number | UNIQUIFIER) % u64::from(u8::MAX)) as u8 + 1
    }
}

impl Registry {
    /// What the names of this registry's controllers (CIU and CIRN) are made with: 128 random bits
    /// that nobody else knows. Without them anybody can tell what the names are.
    pub fn set_instance_key(&mut self, random: [u8; 16]) {
        self.instances.cipher = Cipher::new(random);
    }

    /// Where this registry is, for hosts that ask what a restart has ended.
    pub fn set_origin(&mut self, origin: ControllerOrigin) {
        self.origin = Some(origin);
    }

    /// Random bits that tell this registry from the one of a restarted process.
    pub fn set_process(&mut self, random: [u8; 16]) {
        self.process = Some(ProcessName(random));
    }

    pub(super) fn next_instance(&mut self) -> Instance {
        let instance = Instance(self.instances.count);
        self.instances.count += 1;
        instance
    }

    /// Ends the controller that the command names, unless it is gone already.
    pub(super) fn cross_controller_reset(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
    ) -> Result<Instance, Status> {
        let name = CrossControllerReset::parse(sqe);
        // Of what another target's controllers did, or those of an earlier run, nothing is known
        // here: better to refuse than to say that they are gone.
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
            // Not the answer to an unknown life: from that the host concludes, at this target after
            // a restart, that the controller is gone, and this one lives.
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
