//! A log of each command of an I/O queue, for troubleshooting. [`QUEUE`]`=trace` in `RUST_LOG`
//! enables it. A queue checks the log level once, when it connects.

use super::{Queue, Session};
use crate::lifecycle::Gate;
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_wire::Status;
use tracing::{Level, enabled, trace};

/// The log target of these messages, as set in `RUST_LOG`.
pub(super) const QUEUE: &str = "farblock_target::queue";

/// Returns whether new queues log their commands.
pub(super) fn is_wanted() -> bool {
    enabled!(target: QUEUE, Level::TRACE)
}

/// An event in the life of a command.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    /// The session has parsed the command's capsule.
    Arrives(&'a dyn Fn() -> String),
    /// The command waits at a gate.
    Waits(Gate),
    /// The gate has woken the command.
    Wakes(Gate),
    /// The session submits an operation to the namespace. The fields are the first block and the
    /// number of blocks.
    Submits(u64, u32),
    /// The namespace executes the command at once, without an asynchronous operation.
    AtOnce,
    /// The session sends the response, after this many bytes of data.
    Answers(Status, u32),
}

impl<T: Transport> Session<T> {
    /// Logs a step of a command, if the queue logs its commands.
    #[inline]
    pub(super) fn trace(&self, slot: SlotId, step: Step<'_>) {
        if let Queue::Io(queue) = &self.queue
            && queue.is_traced
        {
            self.trace_step(slot, step);
        }
    }

    #[cold]
    fn trace_step(&self, slot: SlotId, step: Step<'_>) {
        let Queue::Io(queue) = &self.queue else { return };
        let request = &self.requests[usize::from(slot.0)];
        let (controller, qid) = (queue.controller.0, queue.id.0);
        let (nsid, cid) = (request.sqe.nsid.get(), request.sqe.cid.get());
        let line = match step {
            Step::Arrives(what) => format!("arrived: {}", what()),
            Step::Waits(Gate::Data) if request.asked_for => {
                format!("waits for data: R2T for {} bytes", request.pulled_bytes)
            }
            Step::Waits(Gate::Data) => {
                format!("waits for data: {} bytes in its capsule", request.pulled_bytes)
            }
            Step::Waits(gate) => format!("waits at gate {gate:?}"),
            Step::Wakes(gate) => format!("passed gate {gate:?}"),
            Step::Submits(lba, blocks) => format!("submitted: {blocks} blocks at LBA {lba}"),
            Step::AtOnce => "executed at once".to_owned(),
            Step::Answers(status, 0) => format!("answered: {status}"),
            Step::Answers(status, bytes) => format!("answered: {bytes} bytes, {status}"),
        };
        trace!(target: QUEUE, controller, queue = qid, nsid, cid, slot = slot.0, "{line}");
    }
}
