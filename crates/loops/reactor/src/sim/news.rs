//! The pending events of simulated engines (event loops).

use std::collections::BTreeSet;

use super::WorldState;

/// The events that one engine has not handled yet.
#[derive(Default)]
pub(super) struct News {
    /// Streams that may make progress, in the order of their creation.
    streams: BTreeSet<u64>,
    /// The thread that waits for events of the engine.
    thread: Option<usize>,
}

impl WorldState {
    /// Ends the wait of the engine's thread.
    pub(crate) fn wake_engine(&mut self, engine: u64) {
        if let Some(thread) = self.engines.get(&engine).and_then(|news| news.thread) {
            self.marks.wake(thread);
        }
    }

    /// Marks a stream of an engine, because the stream may make progress.
    pub(crate) fn wake_stream(&mut self, (engine, live): (u64, u64)) {
        let news = self.engines.entry(engine).or_default();
        news.streams.insert(live);
        news.thread.into_iter().for_each(|thread| self.marks.wake(thread));
    }

    /// Records the thread that waits for events of an engine.
    pub(super) fn serve(&mut self, engine: u64, thread: usize) {
        let news = self.engines.entry(engine).or_default();
        news.thread = Some(thread);
        if !news.streams.is_empty() {
            self.marks.wake(thread);
        }
    }

    /// Removes and returns the engine's first marked stream whose number is at least `live`.
    pub(crate) fn take_stream(&mut self, engine: u64, live: u64) -> Option<u64> {
        let streams = &mut self.engines.get_mut(&engine)?.streams;
        let next = streams.range(live..).next().copied()?;
        streams.remove(&next);
        Some(next)
    }

    /// Drops the events of an engine that was dropped.
    pub(crate) fn forget_engine(&mut self, engine: u64) {
        self.media.forget(engine);
        self.engines.remove(&engine);
    }
}
