//! The progress of a running fleet (a benchmark of many hosts against many targets). The fleet's
//! controller serves it on a socket. The sockets of all fleets of a user are in one folder.

use crate::bounded::Bounded;
use crate::busy::busy;
use crate::callers::Peer;
use crate::events::{Besides, Events, Told, json, stream, written};
use crate::serving::{Server, ended};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use farblock_admin_api::{FleetStatus, bind_socket};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of connections to a socket, and the time after which an idle one is closed.
const CONNECTIONS: usize = 32;
const IDLE: Duration = Duration::from_secs(15);

/// A function that reads the status of a fleet.
pub type ReadFleet = Arc<dyn Fn() -> FleetStatus + Send + Sync>;

/// Serves the status of a fleet on a Unix socket at `path` that only its owner can open.
///
/// # Errors
/// The reason why the socket cannot be created.
pub fn serve_fleet(path: &Path, read: ReadFleet) -> Result<Server, (String, io::Error)> {
    let listener = bind_socket(path).map_err(|error| (path.display().to_string(), error))?;
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

/// The source of `fleet` events. It sends the status when the status has changed.
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
