//! The part of the reactor's state that an engine borrows during a call, the time that a call may
//! wait, and the sizes of receives.

use std::io;
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::file_op::FileOp;
use crate::ids::TaskId;
use crate::task::Tasks;
use farblock_mem::BufferPool;

/// Size of the pool buffers for `recv`, in bytes.
pub(crate) const RECV_BYTES: usize = 64 << 10;
/// The largest receive of `recv_at_most`, in bytes. Such a buffer fits in the processor's
/// second-level cache, which makes it fast to copy payloads from the buffer.
pub(crate) const LARGE_RECV_BYTES: usize = 256 << 10;

/// Returns the size in bytes of a receive with this limit. The limit 0 means [`RECV_BYTES`].
pub(crate) fn recv_bytes(limit: u32) -> usize {
    if limit == 0 { RECV_BYTES } else { (limit as usize).min(LARGE_RECV_BYTES) }
}

/// The pause of a listener after an error, for example when the process has no free descriptor.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The part of the reactor's state that an engine may use during a call.
pub(crate) struct Context<'a> {
    pub(crate) tasks: &'a mut Tasks,
    pub(crate) pool: &'a BufferPool,
}

impl Context<'_> {
    pub(crate) fn deliver(&mut self, task: TaskId, event: Event) {
        self.tasks.deliver(task, event, self.pool);
    }

    /// Delivers the result of a file operation that never started.
    pub(crate) fn deliver_file(
        &mut self,
        task: TaskId,
        user_data: u64,
        op: FileOp,
        result: io::Result<()>,
    ) {
        let buffer = op.into_buffer();
        self.deliver(task, Event::File { user_data, buffer, result });
    }
}

/// The time for which one turn of the event loop may wait for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The turn must not wait.
    No,
    /// The turn must not wait, because the loop is busy-polling: another turn follows soon.
    Look,
    /// The turn may wait until this time. `None`: no limit.
    Until(Option<Instant>),
}
