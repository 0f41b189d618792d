//! Combines the events of several targets (the nodes) into one stream.
//!
//! Each event contains the name of its node: `{"node": "left", "data": …}`. A `document` event
//! contains the whole document, and a `gone` event the reason why the node does not answer.
//!
//! Each node has its own task, so no node delays another. A node that already has too many readers,
//! or whose old version sends no status, is polled once a second instead.

use crate::attached::LastAttached;
use crate::events::{Happening, SLOWEST, json, written};
use crate::nodes::{self, MAX_BYTES, MAX_NODES, NONSENSE, Node, NodePlace};
use farblock_admin_api::FleetStatus;
use farblock_admin_api::Stats;
use farblock_admin_api::Status;
use farblock_admin_api::{ReadAttached, sockets_in};
use farblock_state::Document;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender as Stream};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// The time without data after which a target counts as unreachable. A target sends its counters
/// every second.
const SILENCE: Duration = Duration::from_millis(1500);
/// The time without complete counters after which a target counts as unreachable, even if it sends
/// other data.
const TOO_SLOW: Duration = Duration::from_secs(10);
/// The pause before the next connect to an unreachable target.
const AGAIN: Duration = Duration::from_millis(400);
/// The pause after an invalid answer. The node repeats such answers until its program is replaced.
const AGAIN_AFTER_NONSENSE: Duration = Duration::from_secs(5);
/// The pause before the next attempt to read a document that a change has locked.
const LATER: Duration = Duration::from_secs(2);
/// The interval of checks whether the page still reads.
const EVERY: Duration = Duration::from_secs(1);
/// The number of polls, one a second, before the next attempt to open the target's event stream.
const ASKED: usize = 30;
/// The number of `stats` events without a `status` event after which a node counts as an older
/// version.
const WITHOUT_STATUS: u32 = 2;
/// The maximum number of chunks that wait for the page.
const PIECES: usize = 16;
/// The number of events of one node to handle before other nodes have their turn.
const AT_ONCE: u32 = 64;
const NAME_MAX: usize = 32;

/// The sources of the page's data, except for targets.
#[derive(Clone, Default)]
pub struct Beside {
    /// The folder with the sockets of running fleets.
    pub fleets: Option<PathBuf>,
    /// Reads the states of the disks that are attached to this machine.
    pub attached: Option<ReadAttached>,
}

/// A stream of the events of these nodes from now on; `None` if there are too many readers.
pub(crate) fn stream(
    nodes: &[Node],
    beside: Beside,
    places: &Arc<Semaphore>,
) -> Option<Channel<Bytes>> {
    let place = Arc::clone(places).try_acquire_owned().ok()?;
    let (stream, body) = Channel::new(PIECES);
    let nodes = nodes.to_vec();
    tokio::spawn(async move {
        let _place = place;
        let (told, heard) = channel(PIECES);
        // All tasks stop when the set is dropped.
        let mut all = JoinSet::new();
        for node in nodes {
            all.spawn(follow(node, told.clone()));
        }
        if let Some(folder) = beside.fleets {
            all.spawn(watch_for_fleets(folder, told.clone()));
        }
        if let Some(read) = beside.attached {
            all.spawn(watch_attached(read, told.clone()));
        }
        drop(told);
        pass_on(heard, stream).await;
    });
    Some(body)
}

/// Forwards the events of each fleet (a running benchmark) that starts while the page is open.
async fn watch_for_fleets(folder: PathBuf, told: Sender<Bytes>) {
    let (mut all, mut followed) = (JoinSet::new(), BTreeSet::new());
    let mut every = interval(LATER);
    loop {
        tokio::select! {
            _ = every.tick() => {
                for path in sockets_in(&folder).into_iter().take(MAX_NODES) {
                    if followed.insert(path.clone()) {
                        all.spawn(follow_fleet(path, told.clone()));
                    }
                }
            }
            Some(gone) = all.join_next() => drop(gone.map(|path| followed.remove(&path))),
        }
    }
}

/// Sends the states of locally attached disks whenever they change.
async fn watch_attached(read: ReadAttached, told: Sender<Bytes>) {
    let (mut every, mut last) = (interval(EVERY), LastAttached::default());
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let read = Arc::clone(&read);
        // `read` queries the processes of the attached disks one after another, and each may be
        // slow.
        let Ok(now) = spawn_blocking(move || read()).await else { return };
        if let Some(event) = last.event(now) {
            let _ = told.send(event.into()).await;
        }
    }
}

/// Forwards the events of a fleet until it ends. Returns the path of its socket.
async fn follow_fleet(path: PathBuf, told: Sender<Bytes>) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let node = Node { name, place: NodePlace::Socket(path.clone()) };
    let stream = EventStream { node, told, is_fleet: true };
    let answer = nodes::within(stream.node.ask("/v1/events")).await;
    // A dead process may have left the socket. Ignore such a socket.
    if let Ok(answer) = answer
        && answer.status() == StatusCode::OK
    {
        let _ = stream.listen(answer, &Notify::new()).await;
        stream.tell("fleet_gone", "null").await;
    }
    path
}

/// Forwards events until the page disconnects or stops reading.
async fn pass_on(mut heard: Receiver<Bytes>, mut stream: Stream<Bytes>) {
    let mut every = interval(EVERY);
    loop {
        let piece = tokio::select! {
            piece = heard.recv() => match piece {
                Some(piece) => piece,
                None => return,
            },
            // Only a send reveals whether the page is still connected.
            _ = every.tick() => Bytes::from_static(b":\n\n"),
        };
        if !matches!(timeout(SLOWEST, stream.send_data(piece)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The source of the events of one node.
struct EventStream {
    node: Node,
    told: Sender<Bytes>,
    is_fleet: bool,
}

async fn follow(node: Node, told: Sender<Bytes>) {
    let stream = EventStream { node, told, is_fleet: false };
    loop {
        if let Err(why) = stream.try_once().await {
            stream.tell("gone", &json(&why)).await;
            sleep(if why == NONSENSE { AGAIN_AFTER_NONSENSE } else { AGAIN }).await;
        }
    }
}

impl EventStream {
    async fn tell(&self, name: &str, data: &str) {
        let data = format!("{{\"node\":{},\"data\":{data}}}", json(&self.node.name));
        // If the page stops reading, the stream ends and this task is dropped.
        let _ = self.told.send(written(name, &data).into()).await;
    }

    /// Reads events until the stream ends. The error is the reason why the node is unreachable.
    async fn try_once(&self) -> Result<(), String> {
        let answer = nodes::within(self.node.ask("/v1/events?status=true")).await?;
        match answer.status() {
            StatusCode::OK => {
                let wanted = Notify::new();
                let is_old = tokio::select! {
                    is_old = self.listen(answer, &wanted) => is_old?,
                    () = self.documents(&wanted) => false,
                };
                if is_old { self.ask().await } else { Ok(()) }
            }
            // An older version has no such URL, and a busy target has too many readers.
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => self.ask().await,
            other => Err(nodes::refusal(other)),
        }
    }

    /// Reads events. Returns true if the node sends only counters.
    async fn listen(&self, answer: Response<Incoming>, wanted: &Notify) -> Result<bool, String> {
        let (mut body, mut events) = (answer.into_body(), Parts::default());
        // `waited` is the time without counters, not counting the time in which the page reads
        // slowly.
        let (mut without_status, mut waited) = (Some(0), Duration::ZERO);
        loop {
            let began = Instant::now();
            let frame = timeout(SILENCE, body.frame()).await;
            waited += began.elapsed();
            let frame = frame.map_err(|_| "the target stopped sending events".to_owned())?;
            let frame = frame
                .ok_or("the target closed the event stream")?
                .map_err(|_| "the target closed the event stream".to_owned())?;
            events.take(frame.data_ref().map_or(&[][..], |data| data))?;
            let mut count = 0_u32;
            while let Some((name, data)) = events.next() {
                // A node with endless events must not delay the other nodes.
                count += 1;
                if count.is_multiple_of(AT_ONCE) {
                    yield_now().await;
                }
                match name.as_str() {
                    "document" => wanted.notify_one(),
                    "status" => without_status = None,
                    "stats" => {
                        without_status = without_status.map(|count| count + 1);
                        waited = Duration::ZERO;
                    }
                    _ => {}
                }
                if self.is_understood(&name, &data)? {
                    self.tell(&name, &data).await;
                }
            }
            if !self.is_fleet && waited > TOO_SLOW {
                let seconds = TOO_SLOW.as_secs();
                return Err(format!("the target has not sent its counters for {seconds} s"));
            }
            if without_status >= Some(WITHOUT_STATUS) {
                return Ok(true);
            }
            yield_now().await;
        }
    }

    /// Reads the document after each change. Retries while the document is locked by a change that
    /// waits for a slow disk.
    async fn documents(&self, wanted: &Notify) {
        loop {
            wanted.notified().await;
            match nodes::within(self.node.get::<Document>("/v1/state")).await {
                Ok(document) => self.tell("document", &json(&document)).await,
                Err(_) => {
                    sleep(LATER).await;
                    wanted.notify_one();
                }
            }
        }
    }

    /// Whether to forward an event. Invalid data would break the page.
    fn is_understood(&self, name: &str, data: &str) -> Result<bool, String> {
        fn is<'a, T: Deserialize<'a>>(data: &'a str) -> bool {
            serde_json::from_str::<T>(data).is_ok()
        }
        #[derive(Deserialize)]
        struct Lost {
            #[allow(dead_code, reason = "only its presence is checked")]
            count: u64,
        }
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        match name {
            // Only the sockets of fleets may send `fleet` events, and they may send no other
            // events.
            _ if self.is_fleet => Ok(name == "fleet" && is::<FleetStatus>(data)),
            "stats" if !is::<Stats>(data) => Err(NONSENSE.to_owned()),
            "status" if !is::<Status>(data) => Err(NONSENSE.to_owned()),
            "stats" | "status" => Ok(true),
            "document" | "gone" | "fleet" | "fleet_gone" | "attached" => Ok(false),
            "lost" => Ok(is::<Lost>(data)),
            other => {
                let is_name = other.len() <= NAME_MAX && other.bytes().all(is_word);
                Ok(is_name && is::<Happening>(data))
            }
        }
    }

    /// Polls the node once a second, [`ASKED`] times.
    async fn ask(&self) -> Result<(), String> {
        let mut every = interval(EVERY);
        for round in 0..ASKED {
            every.tick().await;
            let said = nodes::ask(self.node.clone(), round % 10 == 0).await;
            let (Some(status), Some(stats)) = (said.status, said.stats) else {
                return Err(said.error.unwrap_or_default());
            };
            self.tell("status", &json(&status)).await;
            if let Some(document) = said.document {
                self.tell("document", &json(&document)).await;
            }
            self.tell("stats", &json(&stats)).await;
        }
        Ok(())
    }
}

/// Splits a stream of bytes into events.
#[derive(Default)]
struct Parts {
    text: Vec<u8>,
    /// The offset of the next event in `text`.
    begin: usize,
    /// The offset up to which `text` contains no end of the next event.
    seen: usize,
}

impl Parts {
    fn take(&mut self, more: &[u8]) -> Result<(), String> {
        // Remove the used bytes once per chunk, not once per event: a chunk may contain many
        // events.
        self.text.drain(..self.begin);
        (self.seen, self.begin) = (self.seen - self.begin, 0);
        self.text.extend_from_slice(more);
        match self.text.len() > MAX_BYTES {
            true => Err(NONSENSE.to_owned()),
            false => Ok(()),
        }
    }

    /// The name and the data of the next event. Skips comments.
    fn next(&mut self) -> Option<(String, String)> {
        loop {
            let end = self.text[self.seen..].windows(2).position(|two| two == b"\n\n");
            let Some(end) = end.map(|end| end + self.seen) else {
                self.seen = self.text.len().saturating_sub(1).max(self.begin);
                return None;
            };
            let event = String::from_utf8_lossy(&self.text[self.begin..end]);
            (self.begin, self.seen) = (end + 2, end + 2);
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                return Some((name.to_owned(), data.to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Token;
    use axum::routing::{any, get};
    use axum::{Json, Router};
    use serde_json::{Value, json as object};

    fn status() -> Value {
        object!({
            "listening": [], "pid": 7, "uptime_seconds": 1, "connections": 0, "subsystems": [],
            "controllers": [],
        })
    }

    fn stats() -> Value {
        let io = serde_json::to_value(farblock_admin_api::IoStats::default()).unwrap();
        object!({
            "uptime_ms": 1, "time_ms": 1, "latency_bounds_us": [], "cores": [], "subsystems": [],
            "connections": {
                "open": 0, "accepted": 0, "refused": {}, "faults": {}, "authenticated": 0,
                "not_authenticated": {},
            },
            "hosts": [], "total": io, "other_hosts": io,
        })
    }

    /// The first `count` events from a target whose HTTP answers come from `router`.
    async fn told(router: Router, count: usize) -> Vec<(String, Value)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let token = Token::new("0123456789-0123456789").unwrap();
        let node = Node { name: "a \"b\"".to_owned(), place: NodePlace::Address(address, token) };
        let places = Arc::new(Semaphore::new(1));
        let mut body =
            stream(&[node], Beside::default(), &places).expect("a stream within the limit");
        assert!(stream(&[], Beside::default(), &places).is_none(), "more streams than the limit");
        let (mut parts, mut all) = (Parts::default(), Vec::new());
        while all.len() < count {
            let frame =
                body.frame().await.expect("the stream sends a frame").expect("no read error");
            parts.take(frame.data_ref().expect("data")).unwrap();
            while let Some((name, data)) = parts.next() {
                let data: Value = serde_json::from_str(&data).unwrap();
                assert_eq!(data["node"], "a \"b\"");
                all.push((name, data["data"].clone()));
            }
        }
        all
    }

    fn names(all: &[(String, Value)]) -> Vec<&str> {
        all.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[tokio::test]
    async fn only_valid_events_of_a_target_are_passed_on() {
        let events = [
            written("status", &status().to_string()),
            ":\n\n".to_owned(),
            written("host_connected", "7"),
            written("gone", "\"I say so\""),
            written("fleet", r#"{"plan": "of mine", "phase": "", "hosts": []}"#),
            written("host_ended", r#"{"sentence": "it left"}"#),
            written("stats", &stats().to_string()),
            written("stats", "{}"),
        ];
        let router = Router::new().route("/v1/events", get(async move || events.concat()));
        let all = told(router, 4).await;
        assert_eq!(names(&all), ["status", "host_ended", "stats", "gone"]);
        assert_eq!(
            (&all[0].1["pid"], &all[3].1),
            (&7.into(), &"the answer of the target is invalid".into())
        );
    }

    /// A node that sends bytes but never a complete event counts as unreachable.
    #[tokio::test]
    async fn a_target_without_complete_events_counts_as_unreachable() {
        let drip = async || {
            let (mut stream, body) = Channel::<Bytes>::new(1);
            tokio::spawn(async move {
                while stream.send_data(Bytes::from_static(b"d")).await.is_ok() {
                    sleep(AGAIN).await;
                }
            });
            axum::body::Body::new(body)
        };
        let all = told(Router::new().route("/v1/events", get(drip)), 1).await;
        assert_eq!(
            all[0],
            ("gone".to_owned(), "the target has not sent its counters for 10 s".into())
        );
    }

    /// An `attached` event of a node is not forwarded: it does not describe this machine.
    #[tokio::test]
    async fn disks_attached_on_this_machine_are_reported() {
        let disk =
            farblock_admin_api::AttachedStatus { name: "fb0".to_owned(), ..Default::default() };
        let read: ReadAttached = Arc::new(move || vec![disk.clone()]);
        let beside = Beside { attached: Some(read), ..Beside::default() };
        let mut body = stream(&[], beside, &Arc::new(Semaphore::new(1))).expect("a place");
        let mut parts = Parts::default();
        let (name, data) = loop {
            let frame =
                body.frame().await.expect("the stream sends a frame").expect("no read error");
            parts.take(frame.data_ref().expect("data")).unwrap();
            if let Some(event) = parts.next() {
                break event;
            }
        };
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!((name.as_str(), &data["data"][0]["name"]), ("attached", &"fb0".into()));
        let says = [written("attached", "[]"), written("status", &status().to_string())];
        let router = Router::new().route("/v1/events", get(async move || says.concat()));
        assert_eq!(names(&told(router, 1).await), ["status"]);
    }

    #[test]
    fn events_may_arrive_in_pieces_of_any_size() {
        let text = "event: one\ndata: 1\n\n:\n\nevent: two\ndata: 2\n\n".repeat(50);
        for size in [1, 2, 3, 7, 19, 64, 1000, text.len()] {
            let (mut parts, mut names) = (Parts::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                parts.take(piece).unwrap();
                names.extend(std::iter::from_fn(|| parts.next()).map(|(name, _)| name));
            }
            assert_eq!(names, ["one", "two"].repeat(50), "events in pieces of {size} bytes");
            parts.take(b"").unwrap();
            assert!(parts.text.len() <= 1, "parsed text is kept: {}", parts.text.len());
        }
    }

    #[tokio::test]
    async fn an_older_target_is_polled() {
        let says = |value: Value| get(move || std::future::ready(Json(value.clone())));
        let old =
            Router::new().route("/v1/status", says(status())).route("/v1/stats", says(stats()));
        assert_eq!(names(&told(old.clone(), 4).await), ["status", "stats", "status", "stats"]);
        // The node sends counters but no status.
        let counted = written("stats", &stats().to_string()).repeat(2);
        let older = old.route("/v1/events", get(async move || counted));
        let all = told(older, 4).await;
        assert_eq!(names(&all), ["stats", "stats", "status", "stats"]);
    }

    #[tokio::test]
    async fn a_silent_target_and_a_wrong_token_are_reported() {
        let never = any(async || std::future::pending::<()>().await);
        let all = told(Router::new().fallback_service(never), 1).await;
        assert_eq!(all[0], ("gone".to_owned(), "the target does not answer in time".into()));
        let refuses = any(async || StatusCode::UNAUTHORIZED);
        let all = told(Router::new().fallback_service(refuses), 1).await;
        assert_eq!(all[0], ("gone".to_owned(), "the target refuses the token".into()));
    }
}
