//! Detects the end of a connection. The RDMA connection manager reports it on a separate channel. A
//! future on the control loop waits there, so a queue's event loop need not check two channels.

use crate::control::{Local, Mailbox};
use farblock_reactor::{Reactor, TaskId, Waker, WatchId};
use farblock_verbs::{CmEventType, Provider, ProviderChannel, Source, Verbs};
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The state that a queue and the waiting future share.
#[derive(Default)]
pub(super) struct Ends {
    has_left: AtomicBool,
    is_dropped: AtomicBool,
    queue: Mutex<Option<Waker>>,
    keeper: Mutex<Option<Waker>>,
}

impl Ends {
    /// Whether the controller or the device has ended the connection.
    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::SeqCst)
    }

    /// Sets the task to wake when the connection ends. Replaces an earlier task.
    pub(super) fn attend(&self, waker: Waker) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        if self.has_left() {
            waker.wake();
        }
    }

    /// Wakes the queue's task.
    pub(super) fn wake(&self) {
        wake(&self.queue);
    }
}

/// A connection's reference to its [`Ends`]. Dropping this ends the waiting future.
pub(super) struct Kept(pub(super) Arc<Ends>);

impl Deref for Kept {
    type Target = Ends;

    fn deref(&self) -> &Ends {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::SeqCst);
        wake(&self.keeper);
    }
}

fn wake(waker: &Mutex<Option<Waker>>) {
    let waker = waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
    waker.into_iter().for_each(|waker| waker.wake());
}

/// Reports the end of a connection to its [`Ends`]. Returns once the connection is dropped.
pub(super) async fn keep(
    local: Local,
    verbs: Provider,
    channel: Arc<ProviderChannel>,
    ends: Arc<Ends>,
) {
    let mailbox = Mailbox::new(&local);
    let waker = local.reactor().waker(mailbox.task());
    *ends.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    let source = verbs.event_source(&channel);
    let watch = watch(local.reactor(), mailbox.task(), source);
    if watch.is_err() {
        ends.has_left.store(true, Ordering::SeqCst);
    }
    while !ends.is_dropped.load(Ordering::SeqCst) {
        loop {
            match verbs.get_cm_event(&channel) {
                Ok(Some(event)) => match event.event {
                    CmEventType::Established | CmEventType::TimewaitExit => {}
                    CmEventType::Other(_) => {}
                    _ => ends.has_left.store(true, Ordering::SeqCst),
                },
                Ok(None) => break,
                Err(_) => {
                    ends.has_left.store(true, Ordering::SeqCst);
                    break;
                }
            }
        }
        if ends.has_left() {
            wake(&ends.queue);
        }
        mailbox.ready().await;
    }
    watch.ok().flatten().into_iter().for_each(|watch| unwatch(local.reactor(), watch));
}

/// Wakes a task for the events of a source. If this returns a watch, the caller must end it with
/// [`unwatch`].
pub(super) fn watch(
    reactor: &Reactor,
    task: TaskId,
    source: Source<'_>,
) -> io::Result<Option<WatchId>> {
    match source {
        #[cfg(target_os = "linux")]
        Source::Descriptor(descriptor) => {
            reactor.watch(task, descriptor.try_clone_to_owned()?).map(Some)
        }
        Source::Call(call) => {
            let waker = reactor.waker(task);
            call.set(move || waker.wake());
            // Events may have arrived before the watch started.
            reactor.notify(task);
            Ok(None)
        }
    }
}

/// Ends a watch.
pub(super) fn unwatch(reactor: &Reactor, watch: WatchId) {
    #[cfg(unix)]
    reactor.unwatch(watch);
    #[cfg(not(unix))]
    let _ = (reactor, watch);
}
