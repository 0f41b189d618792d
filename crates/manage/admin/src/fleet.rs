//! Progress of a running fleet: its controller reports it on a socket, in a folder with the sockets
//! of this user's other fleets.

use crate::bounded::Bounded;
use crate::busy::busy;
use crate::callers::Peer;
use crate::events::{Besides, Events, Told, json, stream, written};
use crate::serving::{Server, ended};
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

/// Maximum number of connections to a socket, and their idle limit.
const CONNECTIONS: usize = 32;
const IDLE: Duration = Duration::from_secs(15);

/// A fleet's current status.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The plan's name.
    pub plan: String,
    /// The current phase, in words.
    pub phase: String,
    /// Progress within the phase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Each agent that has hosts.
    pub hosts: Vec<FleetHost>,
    /// The reason for a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The hosts of one agent.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct FleetHost {
    /// The agent's name.
    pub name: String,
    /// IOPS of all its clients.
    pub iops: f64,
    /// Microseconds: the mean latency of I/O in flight, or the longest during a verify.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Whether it finished the phase.
    pub is_done: bool,
    /// Number of failed operations.
    pub failed: u64,
    /// Blocks that did not hold the acknowledged data.
    pub lost: u64,
    /// Paths that are connected, and that should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<[u64; 2]>,
}

/// Reads a fleet's status.
pub type ReadFleet = Arc<dyn Fn() -> FleetStatus + Send + Sync>;

/// Serves a fleet's status on a Unix socket at `path` that only its owner can open.
///
/// # Errors
/// Why the socket could not be created.
pub fn serve_fleet(path: &Path, read: ReadFleet) -> Result<Server, (String, io::Error)> {
    let listener = socket::bind(path).map_err(|error| (path.display().to_string(), error))?;
    let work = move || async move {
        let events = Events::new();
        let once = Arc::clone(&read);
        let stream = move || {
            let told = OfFleet { read: Arc::clone(&read), last: None };
            let answer: Response = stream(events.stream(told));
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
    Server::at(Some(path)).begin("fleet", work)
}

/// Sends the status when it changes.
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
