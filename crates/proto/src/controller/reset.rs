//! Cross-Controller Reset (NVMe Base Specification 2.3, "Cross-Controller Reset command"): a host
//! that lost one of its controllers has it ended through another one. When that is done, nothing
//! that it sent to the lost controller is carried out any more, and it may send it anew.
//!
//! Controller identifiers are used again, so that each life of one has a name of its own: CIU and
//! CIRN of Identify Controller.

use super::registry::{Action, Registry, TeardownReason};
use super::state::Controller;
use crate::ids::ControllerId;
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};

/// One life of a controller: the how-manieth controller of the registry it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance(pub u64);

/// The lives of controllers so far.
#[derive(Debug, Default)]
pub(super) struct Instances {
    /// A random number: the first CIRN.
    seed: u64,
    count: u64,
}

impl Instances {
    /// The name of a controller's life.
    pub(super) fn name(&self, controller: &Controller) -> CrossControllerReset {
        let Instance(number) = controller.instance;
        let cirn = self.seed.wrapping_add(number);
        CrossControllerReset { icid: controller.id.0, ciu: uniquifier(number), cirn }
    }

    /// Which life is meant, if it was one of this registry's.
    fn find(&self, name: &CrossControllerReset) -> Option<Instance> {
        let number = name.cirn.wrapping_sub(self.seed);
        let issued = number < self.count && name.ciu == uniquifier(number);
        issued.then_some(Instance(number))
    }
}

/// CIU: not 0, which means none.
fn uniquifier(number: u64) -> u8 {
    (number % u64::from(u8::MAX)) as u8 + 1
}

impl Registry {
    /// Makes the random numbers of this registry's controllers (CIRN) start at a random number, so
    /// that they are not taken for those of another run or another target.
    pub fn set_instance_seed(&mut self, random: u64) {
        self.instances.seed = random;
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
        if !same_host || impacted.id == id {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let id = impacted.id;
        if let Some(teardown) = self.remove(id, TeardownReason::CrossControllerReset) {
            self.act(Action::Close(teardown));
        }
        Ok(instance)
    }
}
