//! The events of a target, as a stream of server-sent events.
//!
//! All readers share one ring of events. A slow reader gets the number of events that it missed.
//! The server closes the stream of a client that reads nothing for a while. So memory is bounded.

use crate::problems::trouble;
use crate::steering::Steering;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use farblock_admin_api::Status;
use farblock_target::{Event, Visitor};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast::{
    self, Receiver,
    error::{RecvError, TryRecvError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// The maximum number of events that wait for the slowest reader.
const WAITING: usize = 256;
/// The maximum number of readers.
const READERS: usize = 8;
/// The maximum number of chunks that wait to be sent on one stream.
const PIECES: usize = 4;
/// The time after which the server closes the stream of a client that reads nothing.
pub(crate) const SLOWEST: Duration = Duration::from_secs(30);
/// The interval at which a stream gets the counters, and at which it checks whether status and
/// document have changed.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// The delay of such a check after an event. One check then covers several events.
const TOLD_SOON: Duration = Duration::from_millis(200);
/// A status above this size, in bytes, is sent only as often as the counters.
const LARGE: usize = 256 << 10;

/// An event of `/v1/events`. The name of the event is `host_connected`, `host_ended`,
/// `host_refused`, `namespace_added`, `namespace_removed`, `namespace_changed`, `subsystem_added`,
/// `subsystem_removed`, `listener_added`, `listener_removed` or `storage_failed`. Other events have
/// other data. `stats` has a `Stats`, once a second. `lost` has the number of events that this
/// client missed because it read too slowly. With `?status=true`, the stream starts with `status`,
/// which has a `Status`, and `document`, which has the `version` of `/v1/state` (its ETag). Both
/// are sent again after each change, but not if only counters have changed.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Happening {
    /// The time of the event, in milliseconds since 1970.
    pub time_ms: u64,
    /// The event, described in one sentence.
    pub sentence: String,
    /// The NQN of the subsystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// The ID of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// The size of the namespace, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether the namespace refuses writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// The NQN of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The address of the host or the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The ID of the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<u16>,
    /// The reason for the event.
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

    /// Converts a target's event to its name and its data on the stream.
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
                let said = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
                let this = Self {
                    host: said(host),
                    address: Some(address.to_canonical().to_string()),
                    subsystem: said(subsystem),
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

/// Formats one event. JSON contains no line breaks, so the data is one line.
pub(crate) fn written(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

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

    /// A second source of these events, with its own limit on the number of readers.
    pub(crate) fn elsewhere(&self) -> Self {
        Self { sender: self.sender.clone(), readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// Sends an event to all readers. Never waits.
    pub(crate) fn tell(&self, event: &Event) {
        if self.sender.receiver_count() > 0 {
            let (name, happening) = Happening::of(event);
            // Sending fails if the last reader has disconnected meanwhile, which does no harm.
            let _ = self.sender.send(written(name, &json(&happening)).into());
        }
    }

    /// A stream of the events from now on, and of the data of `besides`. `None` if there are too
    /// many readers.
    pub(crate) fn stream(&self, besides: impl Besides) -> Option<Channel<Bytes>> {
        let place = Arc::clone(&self.readers).try_acquire_owned().ok()?;
        let (sender, body) = Channel::new(PIECES);
        tokio::spawn(feed(self.sender.subscribe(), besides, sender, place));
        Some(body)
    }
}

/// Answers with a stream of events, or with an error if there are too many readers.
pub(crate) fn stream(body: Option<Channel<Bytes>>) -> Response {
    let Some(body) = body else {
        let detail = format!("{READERS} programs already read events: stop one of them");
        return trouble(StatusCode::SERVICE_UNAVAILABLE, "too many readers", &detail);
    };
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (head, Body::new(body)).into_response()
}

/// A source of periodic data for a stream, in addition to events.
pub(crate) trait Besides: Send + 'static {
    /// The data to send. The stream calls this once a second (`is_second`), and shortly after
    /// events.
    fn told(&mut self, is_second: bool) -> Told;
}

/// The periodic data of a stream.
pub(crate) struct Told {
    pub(crate) text: String,
    /// Whether the data is too large to send again after each event.
    pub(crate) is_large: bool,
}

/// The periodic data of a running target.
pub(crate) struct OfTarget {
    steering: Arc<Steering>,
    stats: bool,
    status: bool,
    last_status: Option<Status>,
    last_version: String,
}

impl OfTarget {
    /// Creates a source of the counters if `stats` is set, and of the status and the document's
    /// version if `status` is set.
    pub(crate) fn new(steering: Arc<Steering>, stats: bool, status: bool) -> Self {
        Self { steering, stats, status, last_status: None, last_version: String::new() }
    }
}

impl Besides for OfTarget {
    fn told(&mut self, is_second: bool) -> Told {
        let (mut text, mut is_large) = (String::new(), false);
        if self.status {
            let now = self.steering.status();
            let still = now.without_counters();
            if self.last_status.as_ref() != Some(&still) {
                text += &written("status", &json(&now));
                self.last_status = Some(still);
            }
            is_large = text.len() > LARGE;
            let version = self.steering.version();
            if self.last_version != version {
                let data = json(&serde_json::json!({ "version": version }));
                text += &written("document", &data);
                self.last_version = version;
            }
        }
        if self.stats && is_second {
            text += &written("stats", &json(&self.steering.stats()));
        }
        Told { text, is_large }
    }
}

pub(crate) fn json(data: &impl Serialize) -> String {
    serde_json::to_string(data).expect("our types serialize to JSON")
}

/// Sends events to one stream, until its client disconnects or stops reading.
async fn feed(
    mut events: Receiver<Bytes>,
    mut besides: impl Besides,
    mut stream: Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut every = interval(TOLD_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut soon: Option<Instant> = None;
    let mut not_before = Instant::now();
    loop {
        let at = soon.unwrap_or_else(Instant::now);
        let piece = tokio::select! {
            // Check the timers first. They fire rarely, and many events must not delay them.
            biased;
            _ = every.tick() => match besides.told(true) {
                // Sends an empty comment, because only a send reveals whether the client is still
                // connected.
                Told { text, .. } if text.is_empty() => Bytes::from_static(b":\n\n"),
                told => Bytes::from(told.text),
            },
            () = sleep_until(at), if soon.is_some() => {
                soon = None;
                let told = besides.told(false);
                not_before = Instant::now() + if told.is_large { TOLD_EVERY } else { TOLD_SOON };
                Bytes::from(told.text)
            }
            event = events.recv() => {
                let Some(piece) = gathered(event, &mut events) else { return };
                soon = soon.or(Some(not_before.max(Instant::now() + TOLD_SOON)));
                piece
            }
        };
        if piece.is_empty() {
            continue;
        }
        if !matches!(timeout(SLOWEST, stream.send_data(piece)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Combines this event and the events queued behind it into one chunk. `None` if the sender is
/// closed.
fn gathered(first: Result<Bytes, RecvError>, events: &mut Receiver<Bytes>) -> Option<Bytes> {
    let mut piece = Vec::new();
    let mut next = first;
    for left in (0..WAITING).rev() {
        match next {
            Ok(event) => piece.extend_from_slice(&event),
            Err(RecvError::Lagged(count)) => {
                piece.extend(written("lost", &format!("{{\"count\":{count}}}")).into_bytes());
            }
            Err(RecvError::Closed) => return None,
        }
        if left == 0 {
            break;
        }
        next = match events.try_recv() {
            Ok(event) => Ok(event),
            Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        };
    }
    Some(piece.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    /// A source that sends this text each second.
    struct Says(&'static str);

    impl Besides for Says {
        fn told(&mut self, is_second: bool) -> Told {
            Told {
                text: if is_second { self.0.to_owned() } else { String::new() },
                is_large: false,
            }
        }
    }

    /// The events of the next chunk, or its comment.
    async fn next(body: &mut Channel<Bytes>) -> Vec<String> {
        let frame = body.frame().await.expect("the stream sends a frame").expect("no read error");
        let text = String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text");
        assert!(text.ends_with("\n\n"), "{text}");
        text.split_terminator("\n\n").map(str::to_owned).collect()
    }

    fn number(text: &str) -> u64 {
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_number_of_lost_events() {
        let events = Events::new();
        let mut body = events.stream(Says("")).expect("a stream for the first reader");
        // The stream starts with a comment.
        while next(&mut body).await != [":"] {}
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
            for text in next(&mut body).await {
                match text.lines().next().expect("a line") {
                    "event: lost" => lost += number(&text),
                    "event: namespace_added" | "event: subsystem_added" => told += 1,
                    _ => assert_eq!(text, ":"),
                }
            }
        }
        assert!(lost > 0 && told >= WAITING as u64, "{told} events received, {lost} lost");
        assert_eq!(told + lost, 2 * total);
    }

    #[tokio::test]
    async fn the_number_of_event_readers_is_limited() {
        let events = Events::new();
        let stream = || events.stream(Says("event: stats\ndata: {}\n\n"));
        let mut all: Vec<_> =
            (0..READERS).map(|_| stream().expect("a stream within the limit")).collect();
        assert!(stream().is_none());
        assert_eq!(next(&mut all[0]).await, ["event: stats\ndata: {}"]);
        all.pop();
        while stream().is_none() {
            events.tell(&Event::SubsystemRemoved("gone".into()));
            tokio::task::yield_now().await;
        }
    }

    /// The number of calls once a second, and the number of calls after events.
    struct Counts(u32, u32);

    impl Besides for Counts {
        fn told(&mut self, is_second: bool) -> Told {
            if is_second {
                self.0 += 1
            } else {
                self.1 += 1
            }
            Told { text: written("told", &format!("[{}, {}]", self.0, self.1)), is_large: false }
        }
    }

    #[tokio::test]
    async fn counters_are_sent_at_intervals_among_many_events() {
        let events = Events::new();
        let mut body = events.stream(Counts(0, 0)).expect("a stream for the first reader");
        let teller = events.clone();
        tokio::spawn(async move {
            loop {
                teller.tell(&Event::SubsystemAdded("one".into()));
                tokio::task::yield_now().await;
            }
        });
        let (mut told, mut counts) = (0, [0, 0]);
        while counts[0] < 3 || counts[1] < 3 {
            for text in next(&mut body).await {
                match text.strip_prefix("event: told\ndata: ") {
                    Some(text) => counts = serde_json::from_str(text).expect("two counts"),
                    None => told += 1,
                }
            }
        }
        assert!(told > 100 * counts[1], "{told} events, {counts:?}");
    }
}
