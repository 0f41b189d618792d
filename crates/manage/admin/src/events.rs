//! What happens to a target, told as it happens: server-sent events.
//!
//! Events wait in one ring for all readers. A reader that is slower than they come is told how many
//! it has lost; one that takes nothing for a while loses its stream. Nothing grows.

use farblock_target::{Event, Visitor};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::{self, Receiver, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Events that wait for the slowest reader, at most.
const WAITING: usize = 256;
/// Readers at once.
pub(crate) const READERS: usize = 8;
/// Pieces of a stream that wait for its connection, at most.
const PIECES: usize = 4;
/// A reader that takes nothing for so long loses its stream.
const SLOWEST: Duration = Duration::from_secs(30);
/// How often counters are told.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// Something that happened, as `/v1/events` tells it. The event's name says what:
/// `host_connected`, `host_ended`, `host_refused`, `namespace_added`, `namespace_removed`,
/// `namespace_changed`, `subsystem_added`, `subsystem_removed`, `listener_added`,
/// `listener_removed` or `storage_failed`. Two have other data: `stats` has a `Stats`, once a
/// second, and `lost` has the number of events that this reader was too slow for.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Happening {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The same for people.
    pub sentence: String,
    /// The subsystem's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// The namespace's size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether writes to the namespace are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// The host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Where the host is, or the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The controller's identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<u16>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Happening {
    fn with_visitor(self, visitor: &Visitor) -> Self {
        Self {
            host: Some(visitor.host.clone()),
            address: Some(visitor.address.to_canonical().to_string()),
            subsystem: Some(visitor.subsystem.clone()),
            controller: Some(visitor.controller),
            ..self
        }
    }

    fn with_namespace(self, subsystem: &str, nsid: u32) -> Self {
        Self { subsystem: Some(subsystem.to_owned()), nsid: Some(nsid), ..self }
    }

    /// An event and its name.
    fn of(event: &Event) -> (&'static str, Self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let this = Self { time_ms, sentence: event.to_string(), ..Self::default() };
        match event {
            Event::Connected(visitor) => ("host_connected", this.with_visitor(visitor)),
            Event::Ended(visitor, reason) => {
                let reason = Some((*reason).to_owned());
                ("host_ended", Self { reason, ..this.with_visitor(visitor) })
            }
            Event::Refused { host, address, subsystem, reason } => {
                let this = Self {
                    host: Some(host.clone()),
                    address: Some(address.to_canonical().to_string()),
                    subsystem: Some(subsystem.clone()),
                    reason: Some(reason.clone()),
                    ..this
                };
                ("host_refused", this)
            }
            Event::NamespaceAdded(nqn, nsid) => {
                ("namespace_added", this.with_namespace(nqn, *nsid))
            }
            Event::NamespaceRemoved(nqn, nsid) => {
                ("namespace_removed", this.with_namespace(nqn, *nsid))
            }
            Event::NamespaceChanged { subsystem, nsid, bytes, read_only } => {
                let (bytes, read_only) = (Some(*bytes), Some(*read_only));
                let this = this.with_namespace(subsystem, *nsid);
                ("namespace_changed", Self { bytes, read_only, ..this })
            }
            Event::SubsystemAdded(nqn) => {
                ("subsystem_added", Self { subsystem: Some(nqn.clone()), ..this })
            }
            Event::SubsystemRemoved(nqn) => {
                ("subsystem_removed", Self { subsystem: Some(nqn.clone()), ..this })
            }
            Event::ListenerAdded(address) => {
                ("listener_added", Self { address: Some(address.to_string()), ..this })
            }
            Event::ListenerRemoved(address) => {
                ("listener_removed", Self { address: Some(address.to_string()), ..this })
            }
            Event::StorageFailed { nsid, host, what } => {
                let (host, reason) = (Some(host.clone()), Some(what.clone()));
                ("storage_failed", Self { nsid: Some(*nsid), host, reason, ..this })
            }
            _ => ("other", this),
        }
    }
}

/// One event as it is sent. JSON has no line's end in it.
fn written(name: &str, data: &str) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// See the module's text.
#[derive(Clone)]
pub(crate) struct Events {
    sender: broadcast::Sender<Bytes>,
    readers: Arc<Semaphore>,
}

impl Events {
    pub(crate) fn new() -> Self {
        let (sender, _) = broadcast::channel(WAITING);
        Self { sender, readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// The same, with places of its own: readers there are in no way of those here.
    pub(crate) fn elsewhere(&self) -> Self {
        Self { sender: self.sender.clone(), readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// Tells whoever reads. It never waits.
    pub(crate) fn tell(&self, event: &Event) {
        if self.sender.receiver_count() > 0 {
            let (name, happening) = Happening::of(event);
            let data = serde_json::to_string(&happening).expect("our own types are JSON");
            // The last reader may have gone meanwhile.
            let _ = self.sender.send(written(name, &data));
        }
    }

    /// A stream of what happens from now on, and of what `stats` says; none if there are too many.
    pub(crate) fn stream(
        &self,
        stats: Option<impl Fn() -> String + Send + 'static>,
    ) -> Option<Channel<Bytes>> {
        let place = Arc::clone(&self.readers).try_acquire_owned().ok()?;
        let (sender, body) = Channel::new(PIECES);
        tokio::spawn(feed(self.sender.subscribe(), stats, sender, place));
        Some(body)
    }
}

/// Feeds one stream, until its reader has gone or does not read any more.
async fn feed(
    mut events: Receiver<Bytes>,
    stats: Option<impl Fn() -> String>,
    mut stream: Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut every = interval(STATS_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let piece = tokio::select! {
            // What happened first: it does not come again.
            biased;
            event = events.recv() => match event {
                Ok(event) => event,
                Err(RecvError::Lagged(count)) => written("lost", &format!("{{\"count\":{count}}}")),
                Err(RecvError::Closed) => return,
            },
            _ = every.tick() => match &stats {
                Some(stats) => written("stats", &stats()),
                // A comment: whether the reader is still there shows when something is sent.
                None => Bytes::from_static(b":\n\n"),
            },
        };
        if !matches!(timeout(SLOWEST, stream.send_data(piece)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn next(body: &mut Channel<Bytes>) -> String {
        let frame = body.frame().await.expect("it goes on").expect("no errors");
        String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text")
    }

    fn number(text: &str) -> u64 {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_has_lost_and_the_rest_comes() {
        let events = Events::new();
        let mut body = events.stream(None::<fn() -> String>).expect("the first");
        // A comment comes first.
        while next(&mut body).await != ":\n\n" {}
        let total = 10 * WAITING as u64;
        for number in 0..total {
            events.tell(&Event::NamespaceAdded("nqn.2026-11.org.farblock:one".into(), 1));
            events.tell(&Event::SubsystemAdded(number.to_string()));
            if number % 16 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let (mut told, mut lost) = (0, 0);
        while told + lost < 2 * total {
            let text = next(&mut body).await;
            match text.lines().next().expect("a line") {
                "event: lost" => lost += number(&text),
                "event: namespace_added" | "event: subsystem_added" => told += 1,
                _ => assert_eq!(text, ":\n\n"),
            }
        }
        assert!(lost > 0 && told >= WAITING as u64, "{told} told, {lost} lost");
        assert_eq!(told + lost, 2 * total);
    }

    #[tokio::test]
    async fn there_are_a_few_readers_and_one_that_leaves_makes_room() {
        let events = Events::new();
        let stream = || events.stream(Some(|| "{}".to_owned()));
        let mut all: Vec<_> = (0..READERS).map(|_| stream().expect("there is room")).collect();
        assert!(stream().is_none());
        assert_eq!(next(&mut all[0]).await, "event: stats\ndata: {}\n\n");
        all.pop();
        while stream().is_none() {
            events.tell(&Event::SubsystemRemoved("gone".into()));
            tokio::task::yield_now().await;
        }
    }
}
