//! The management thread: tokio lives here and nowhere else.

use crate::api;
use crate::bounded::Bounded;
use crate::socket;
use crate::steering::Steering;
use axum::Router;
use axum::routing::get;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Connections to the control socket at once: they are its owner's.
const CONTROL_CONNECTIONS: usize = 64;
/// Connections for the counters at once, and the longest that one may last: anybody may come.
const METRICS_CONNECTIONS: usize = 16;
const LONGEST_SCRAPE: Duration = Duration::from_secs(30);

/// A management thread. Dropping it ends it, and removes its socket.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
    metrics: Option<SocketAddr>,
}

impl Server {
    /// Where the counters are offered, with the port that was taken.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Offers a target's steering on a Unix socket at `control`, and its counters at `metrics`.
///
/// # Errors
/// What could not be bound, and why.
pub fn serve(
    steering: Arc<Steering>,
    control: Option<&Path>,
    metrics: Option<SocketAddr>,
) -> Result<Server, (String, io::Error)> {
    let socket = match control {
        None => None,
        Some(path) => {
            let bound = socket::bind(path).map_err(|error| (path.display().to_string(), error))?;
            Some(bound)
        }
    };
    let named = |error| (metrics.map_or_else(String::new, |it| it.to_string()), error);
    let counters = metrics.map(std::net::TcpListener::bind).transpose().map_err(named)?;
    if let Some(counters) = &counters {
        counters.set_nonblocking(true).map_err(named)?;
    }
    let address = counters.as_ref().map(std::net::TcpListener::local_addr).transpose();
    let address = address.map_err(named)?;
    let nothing = |error| ("the management thread".to_owned(), error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(nothing)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                _ = stopped => {}
                () = answer(socket, Arc::clone(&steering)) => {}
                () = count(counters, steering) => {}
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("control".to_owned()).spawn(work);
    Ok(Server {
        stop: Some(stop),
        thread: Some(thread.map_err(nothing)?),
        path: control.map(Path::to_owned),
        metrics: address,
    })
}

async fn answer(socket: Option<std::os::unix::net::UnixListener>, steering: Arc<Steering>) {
    let listener = socket.map(tokio::net::UnixListener::from_std).transpose();
    match listener {
        Ok(Some(listener)) => {
            let listener = Bounded::new(listener, CONTROL_CONNECTIONS, None);
            ended(axum::serve(listener, api::router(steering)).await);
        }
        Ok(None) => std::future::pending().await,
        Err(error) => ended(Err(error)),
    }
}

async fn count(socket: Option<std::net::TcpListener>, steering: Arc<Steering>) {
    let router = Router::new().route("/metrics", get(api::metrics)).with_state(steering);
    let listener = socket.map(tokio::net::TcpListener::from_std).transpose();
    match listener {
        Ok(Some(listener)) => {
            let listener = Bounded::new(listener, METRICS_CONNECTIONS, Some(LONGEST_SCRAPE));
            ended(axum::serve(listener, router).await);
        }
        Ok(None) => std::future::pending().await,
        Err(error) => ended(Err(error)),
    }
}

fn ended(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!("nobody can steer this target any more: {error}");
    }
}
