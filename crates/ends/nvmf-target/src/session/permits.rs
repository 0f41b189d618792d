//! Checks the [permits](crate::permit) of a queue's namespaces right before it submits operations.

use super::{IoQueue, Queue, Session, Work};
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use farblock_wire::Status;

impl<T: Transport> Session<T> {
    /// Checks whether the target may submit the operations of a command now. For namespaces that no
    /// group of targets shares, this costs one branch.
    #[inline]
    pub(super) fn check_permit(&mut self, slot: SlotId) -> Result<(), Status> {
        let is_led = matches!(&self.queue, Queue::Io(queue) if queue.backings.is_led());
        if is_led { self.check_permits(slot) } else { Ok(()) }
    }

    fn check_permits(&self, slot: SlotId) -> Result<(), Status> {
        let request = &self.requests[usize::from(slot.0)];
        let (Work::Io(command), Queue::Io(queue)) = (&request.work, &self.queue) else {
            return Ok(());
        };
        let nsid = NamespaceId(request.sqe.nsid.get());
        let copying = request.progress.copying.iter();
        let sources = copying.flat_map(|copying| copying.sources());
        match command {
            IoCommand::Flush { namespace: NamespaceId::ALL } => {
                queue.table.iter().try_for_each(|(nsid, _)| permitted(queue, nsid))
            }
            // If the targets of the group do not share reservations, refuse the command: each
            // target would know only its own reservations.
            IoCommand::Reserve { .. } => {
                match is_led(queue, nsid) && !queue.table.shares_reservations(nsid) {
                    true => Err(Status::INVALID_OPCODE.with_dnr()),
                    false => Ok(()),
                }
            }
            _ => sources.chain([nsid]).try_for_each(|nsid| permitted(queue, nsid)),
        }
    }
}

fn is_led(queue: &IoQueue, nsid: NamespaceId) -> bool {
    queue.backings.find(nsid).is_some_and(|backing| backing.permit.is_some())
}

/// Checks a namespace's permit. Without a valid permit, returns the status of the failed command. A
/// multipath host then sends the command on another path, or waits until a path is usable.
fn permitted(queue: &IoQueue, nsid: NamespaceId) -> Result<(), Status> {
    let permit = queue.backings.find(nsid).and_then(|backing| backing.permit.as_ref());
    match permit.is_none_or(|permit| permit.is_valid()) {
        true => Ok(()),
        false => Err(Status::ANA_INACCESSIBLE),
    }
}
