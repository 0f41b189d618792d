//! A fleet that runs, for those who watch targets: its controller tells what it does on a socket of
//! its own, in one folder with those of all others of this user.

use crate::api;
use crate::audit::Peer;
use crate::bounded::{Bounded, busy};
use crate::events::{Besides, Events, Told, json, written};
use crate::server::{Server, ended};
use crate::socket;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Connections to such a socket at once, and the longest that one may be silent.
const CONNECTIONS: usize = 32;
const IDLE: Duration = Duration::from_secs(15);

/// What a fleet does at the moment.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The plan's name.
    pub plan: String,
    /// What is done, in words.
    pub phase: String,
    /// Which part of it: how far it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Each agent with hosts.
    pub hosts: Vec<FleetHost>,
    /// Why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The hosts of one agent.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetHost {
    /// The agent's name.
    pub name: String,
    /// I/Os per second of all of its clients.
    pub iops: f64,
    /// Microseconds: the mean of what is in flight, or the longest while it verifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Whether it has done its part.
    pub is_done: bool,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks that held something else than what was acknowledged.
    pub lost: u64,
    /// Paths that are connected, and that should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<[u64; 2]>,
}

/// Says what a fleet does.
pub type ReadFleet = Arc<dyn Fn() -> FleetStatus + Send + Sync>;

/// Tells what a fleet does, on a Unix socket at `path` that only its owner can open.
///
/// # Errors
/// Why the socket could not be made.
pub fn serve_fleet(path: &Path, read: ReadFleet) -> Result<Server, (String, io::Error)> {
    let listener = socket::bind(path).map_err(|error| (path.display().to_string(), error))?;
    let work = move || async move {
        let events = Events::new();
        let once = Arc::clone(&read);
        let stream = move || {
            let told = OfFleet { read: Arc::clone(&read), last: None };
            let answer: Response = api::stream(events.stream(told));
            std::future::ready(answer)
        };
        let router = Router::new()
            .route("/v1/fleet", get(move || std::future::ready(Json(once()))))
            .route("/v1/events", get(stream))
            .layer(from_fn(busy::<Peer>));
        match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => {
                let listener = Bounded::new(listener, CONNECTIONS, IDLE);
                let service = router.into_make_service_with_connect_info::<Peer>();
                ended(axum::serve(listener, service).await);
            }
            Err(error) => ended(Err(error)),
        }
    };
    Server::at(path).begin("fleet", work)
}

/// Tells it when it is another.
struct OfFleet {
    read: ReadFleet,
    last: Option<FleetStatus>,
}

impl Besides for OfFleet {
    fn told(&mut self, _: bool) -> Told {
        let now = (self.read)();
        let text = match self.last.as_ref() == Some(&now) {
            true => String::new(),
            false => written("fleet", &json(&now)),
        };
        self.last = Some(now);
        Told { text, is_large: false }
    }
}
