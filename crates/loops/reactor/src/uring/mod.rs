//! The io_uring engine. It receives completions, and makes one system call per turn (pass) of the
//! loop.
//!
//! The ring belongs to the reactor's thread (`SINGLE_ISSUER`). The kernel posts completions only
//! when that thread enters the kernel for them (`DEFER_TASKRUN`). Queuing an operation needs no
//! system call: a turn submits all queued operations and waits in one `io_uring_enter`. If a loop
//! busy-polls instead of waiting and has few streams, it calls their sockets directly ([`direct`]).
//!
//! **Ownership while the kernel works.** The slot of a completion ([`keys`]) owns the buffers,
//! batches, gather lists and addresses. The engine frees a slot, and closes its socket or file,
//! only after its last completion. So no operation can use a descriptor that the system has reused
//! for another file. When the reactor is dropped, it first cancels all operations and collects
//! their completions ([`Uring::shut_down`]). If the kernel then still uses memory of an operation,
//! the reactor leaks this memory.

mod direct;
mod files;
mod keys;
mod net;
mod provided;
mod ring;
mod watches;

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd};
use rustix::event::{EventfdFlags, eventfd};

use crate::context::{Context, Wait};
use crate::slab::{Key, Slab};
use crate::waker::{Alarm, WakerShared};
use farblock_mem::Buffer;

use files::{FileSlot, Operation};
use keys::{CompletionKind, NO_SLOT, pack};
use net::{Listener, Message, Stream};
use provided::{Group, ProvidedBuffers};
use ring::{Completion, Ring};
use watches::Watch;

/// The longest time for which dropping a reactor waits until the kernel has released its memory.
const SHUT_DOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which dropping a reactor repeats the cancellation.
const SHUT_DOWN_STEP: Duration = Duration::from_millis(20);

pub(crate) struct Uring {
    /// Declared first: the ring must be dropped, and so closed, before the memory below.
    ring: Ring,
    provided: ProvidedBuffers,
    large_provided: ProvidedBuffers,
    streams: Slab<Stream>,
    listeners: Slab<Listener>,
    files: Slab<FileSlot>,
    operations: Slab<Operation>,
    watches: Slab<Watch>,
    /// Gather lists for reuse.
    #[expect(clippy::vec_box, reason = "the kernel has their addresses while they are in use")]
    messages: Vec<Box<Message>>,
    /// The buffer for the next direct receive. Because of it, an attempt that finds no data need
    /// not take a buffer from the pool and return it.
    spare: Option<Buffer>,
    /// Like `spare`, for large receives.
    large_spare: Option<Buffer>,
    /// Streams with a send that the engine has recorded but not submitted ([`direct`]).
    /// `unreceived` lists the streams with a receive in that state.
    unsent: Vec<Key>,
    unreceived: Vec<Key>,
    /// Listeners that pause after an error, and when the pause ends.
    paused: Vec<(Instant, Key)>,
    alarm: Arc<OwnedFd>,
    /// The memory for the value that the kernel reads from the alarm's eventfd.
    alarm_count: Box<u64>,
    /// Whether a read of the alarm's eventfd is in flight.
    alarm_armed: bool,
    /// The completions of the current turn. Empty between turns.
    completions: Vec<Completion>,
}

/// Wakes a sleeping loop by a write to an eventfd. While the loop sleeps, it has a read of this
/// eventfd in flight.
struct EventAlarm(Arc<OwnedFd>);

impl Alarm for EventAlarm {
    fn ring(&self) {
        // This write fails only if the eventfd's 64-bit counter overflows.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Uring {
    pub(crate) fn new(shared: &Arc<WakerShared>) -> io::Result<Uring> {
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let ring = Ring::new()?;
        // If a step from here on fails, unregister the buffers of the earlier steps from the ring
        // before returning: the return frees their memory.
        let provided = ProvidedBuffers::new(&ring.submitter(), Group::Small)?;
        let large_provided = match ProvidedBuffers::new(&ring.submitter(), Group::Large) {
            Ok(large_provided) => large_provided,
            Err(error) => {
                let _ = ring.submitter().unregister_buf_ring(Group::Small.id());
                return Err(error);
            }
        };
        shared.set_alarm(Box::new(EventAlarm(Arc::clone(&alarm))));
        Ok(Uring {
            ring,
            provided,
            large_provided,
            streams: Slab::new(),
            listeners: Slab::new(),
            files: Slab::new(),
            operations: Slab::new(),
            watches: Slab::new(),
            messages: Vec::new(),
            spare: None,
            large_spare: None,
            unsent: Vec::new(),
            unreceived: Vec::new(),
            paused: Vec::new(),
            alarm,
            alarm_count: Box::new(0),
            alarm_armed: false,
            completions: Vec::new(),
        })
    }

    pub(crate) fn turn(&mut self, cx: &mut Context<'_>, wait: Wait) -> io::Result<()> {
        self.resume_listeners();
        if matches!(wait, Wait::Until(_)) && !self.alarm_armed {
            self.arm_alarm();
        }
        if wait == Wait::Look {
            self.send_directly(cx);
        } else {
            self.submit_streams(cx);
        }
        self.ring.enter(wait)?;
        self.reap(cx);
        if wait == Wait::Look {
            self.look(cx);
        }
        Ok(())
    }

    /// Delivers the completions that are available now. The next turn delivers later ones.
    fn reap(&mut self, cx: &mut Context<'_>) {
        let mut completions = mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        for completion in completions.drain(..) {
            self.complete(cx, completion);
        }
        self.completions = completions;
    }

    fn complete(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match completion.kind {
            CompletionKind::Recv => self.complete_recv(cx, completion),
            CompletionKind::Send => self.complete_send(cx, completion),
            CompletionKind::Connect => self.complete_connect(cx, completion),
            CompletionKind::Accept => self.complete_accept(cx, completion),
            CompletionKind::File => self.complete_file(cx, completion),
            CompletionKind::Watch => self.complete_watch(cx, completion),
            CompletionKind::Alarm => self.alarm_armed = false,
            CompletionKind::Cancel => {}
            CompletionKind::Probe => unreachable!("the probe runs before the engine exists"),
        }
    }

    fn arm_alarm(&mut self) {
        let pointer = (&raw mut *self.alarm_count).cast::<u8>();
        let read = opcode::Read::new(Fd(self.alarm.as_raw_fd()), pointer, size_of::<u64>() as u32);
        self.alarm_armed = true;
        // SAFETY: the count is boxed, no other code writes it, and it is freed after the last
        // completion.
        unsafe { self.ring.push(read.build().user_data(pack(CompletionKind::Alarm, NO_SLOT))) };
    }

    fn cancel(&mut self, kind: CompletionKind, key: Key) {
        let entry: Entry = opcode::AsyncCancel::new(pack(kind, key)).build();
        // SAFETY: a cancellation refers to no memory.
        unsafe { self.ring.push(entry.user_data(pack(CompletionKind::Cancel, NO_SLOT))) };
    }

    pub(crate) fn has_work(&mut self) -> bool {
        self.ring.has_work() || !self.unsent.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.paused.iter().map(|&(until, _)| until).min()
    }

    /// Cancels all operations and collects completions until the kernel no longer uses memory of
    /// this engine. If the kernel does not release memory in time (for example because a disk does
    /// not answer), leaks it.
    pub(crate) fn shut_down(&mut self, cx: &mut Context<'_>) {
        self.submit_streams(cx);
        let give_up = Instant::now() + SHUT_DOWN_TIMEOUT;
        while self.ring.in_flight() > 0 {
            let submitted = self.ring.enter(Wait::No);
            // The cancellation fails if no operation is in flight, or one cannot be cancelled. In
            // both cases, the loop below waits until all have completed.
            let _ = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            let step = Wait::Until(Some(Instant::now() + SHUT_DOWN_STEP));
            let reaped = submitted.and_then(|()| self.turn(cx, step));
            if reaped.is_err() || Instant::now() > give_up {
                tracing::error!(
                    in_flight = self.ring.in_flight(),
                    "leaking the memory of operations in flight"
                );
                return self.leak();
            }
        }
        for group in [Group::Small, Group::Large] {
            let _ = self.ring.submitter().unregister_buf_ring(group.id());
        }
    }

    fn leak(&mut self) {
        mem::forget(mem::replace(&mut self.streams, Slab::new()));
        mem::forget(mem::replace(&mut self.listeners, Slab::new()));
        mem::forget(mem::replace(&mut self.files, Slab::new()));
        mem::forget(mem::replace(&mut self.operations, Slab::new()));
        mem::forget(mem::take(&mut self.alarm_count));
        self.provided.leak();
        self.large_provided.leak();
    }

    pub(crate) fn add_file(&mut self, file: Arc<File>) -> io::Result<Key> {
        Ok(self.files.insert(FileSlot::new(file)))
    }
}
