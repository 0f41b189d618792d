//! The state of a core that its connections share.

use crate::deadlines::Deadlines;
use crate::in_place::InPlace;
use crate::limits;
use crate::memory::{Account, HolderId};
use crate::notices::NoticeKind;
use crate::route::ConnectionKey;
use crate::shared::TargetShared;
use crate::shares::Shares;
use crate::volumes::Volumes;
use farblock_reactor::{Buffer, Reactor, SharedBuffer, os};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct Context {
    pub(crate) index: usize,
    pub(crate) reactor: Reactor,
    pub(crate) shared: Arc<TargetShared>,
    pub(crate) volumes: Volumes,
    pub(crate) measures_latency: bool,
    /// The time of this tick (one iteration of the core's event loop); `None` until [`Self::now`]
    /// reads the clock.
    now: Cell<Option<Instant>>,
    pub(crate) memory: Account,
    /// The steps of Compare, Verify, Write Zeroes, Copy and deallocation: the connections that wait
    /// to start one, and the bytes of the steps under way.
    pub(crate) in_place: InPlace,
    pub(crate) shares: Shares,
    pub(crate) deadlines: Deadlines,
    /// Buffers of a namespace, from which the current command sends; empty between commands.
    pub(crate) borrowed: Vec<Buffer>,
    /// Connections with work at the end of the tick. Each connection stores whether it is in this
    /// list, so adding a connection twice needs no lookup.
    pub(crate) listed: Vec<ConnectionKey>,
    /// Connections with commands that wait for buffers, or that parse no more commands because they
    /// hold too much memory.
    pub(crate) parked: VecDeque<ConnectionKey>,
    pub(crate) released: bool,
    zeroes: Option<Arc<SharedBuffer>>,
}

impl Context {
    pub(crate) fn new(index: usize, reactor: Reactor, shared: Arc<TargetShared>) -> Self {
        let memory = Account::new(shared.budget.core_bytes());
        Self {
            index,
            reactor,
            shared,
            volumes: Volumes::default(),
            measures_latency: false,
            now: Cell::new(None),
            memory,
            in_place: InPlace::default(),
            shares: Shares::default(),
            deadlines: Deadlines::default(),
            borrowed: Vec::new(),
            listed: Vec::new(),
            parked: VecDeque::new(),
            released: false,
            zeroes: None,
        }
    }

    /// Starts a tick: the next [`Self::now`] reads the clock.
    pub(crate) fn begin_tick(&self) {
        self.now.set(None);
    }

    /// Returns the time of this tick. Reads the clock at most once per tick.
    pub(crate) fn now(&self) -> Instant {
        let now = self.now.get().unwrap_or_else(os::now);
        self.now.set(Some(now));
        now
    }

    /// Logs a notice about a peer. If there were already many notices of this kind, counts the
    /// notice instead of logging it.
    pub(crate) fn notice(&self, kind: NoticeKind, peer: IpAddr, log: impl FnOnce()) {
        if self.shared.notices.say(kind, peer, self.now(), log) {
            // Core 0 logs the counts of suppressed notices from a timer, so wake it to set that
            // timer.
            self.shared.mailboxes()[0].wake();
        }
    }

    /// Schedules the connection's `finish_tick`. `listed` is the connection's own flag for "already
    /// in the list".
    pub(crate) fn list(&mut self, key: ConnectionKey, listed: &mut bool) {
        if !std::mem::replace(listed, true) {
            self.listed.push(key);
        }
    }

    /// Returns references to one shared zero buffer. Together, the references cover `bytes` zero
    /// bytes.
    pub(crate) fn zeroes(&mut self, bytes: usize) -> impl Iterator<Item = Buffer> + use<> {
        let zeroes = self
            .zeroes
            .get_or_insert_with(|| Arc::new(SharedBuffer::new(Buffer::new(limits::ZEROES_BYTES))));
        let zeroes = Arc::clone(zeroes);
        let starts = (0..bytes).step_by(limits::ZEROES_BYTES);
        starts.map(move |start| zeroes.view(0..limits::ZEROES_BYTES.min(bytes - start)))
    }

    /// Releases `bytes` of buffer memory that were charged to the host `holder`.
    pub(crate) fn release_bytes(&mut self, holder: HolderId, bytes: usize) {
        self.memory.release(holder, bytes);
        self.released = true;
    }

    /// Parks the connection: it retries when buffers are released. `parked` is the connection's own
    /// flag for "already parked".
    pub(crate) fn park(&mut self, key: ConnectionKey, parked: &mut bool) {
        if !std::mem::replace(parked, true) {
            self.parked.push_back(key);
        }
    }
}
