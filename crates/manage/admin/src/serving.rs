//! A management thread with its own runtime.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A management thread. Dropping this stops the thread and removes the socket.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) ui: Option<SocketAddr>,
    pub(crate) api: Option<SocketAddr>,
}

impl Server {
    /// The address of the metrics, with the actual port. `None` if metrics are not served on TCP.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// The address of the dashboard, with the actual port. `None` if there is no dashboard.
    pub fn ui(&self) -> Option<SocketAddr> {
        self.ui
    }

    /// The address of the interface on TCP, with the actual port. `None` if it is not served on
    /// TCP.
    pub fn api(&self) -> Option<SocketAddr> {
        self.api
    }

    /// A server that has not started. If it has a socket at `path`, dropping this removes the
    /// socket.
    pub(crate) fn at(path: Option<&Path>) -> Server {
        let path = path.map(Path::to_owned);
        Server { stop: None, thread: None, path, metrics: None, ui: None, api: None }
    }

    /// Starts the thread, which executes this work until the server is dropped.
    pub(crate) fn begin<Work: Future<Output = ()>>(
        mut self,
        name: &str,
        work: impl FnOnce() -> Work + Send + 'static,
    ) -> Result<Server, (String, io::Error)> {
        let nothing = |error| ("the management thread".to_owned(), error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(nothing)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = stopped => {}
                    () = work() => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.thread = Some(thread.map_err(nothing)?);
        self.stop = Some(stop);
        Ok(self)
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

/// Logs the reason why a service has ended.
pub(crate) fn ended(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!("a management service has stopped, and serves no more requests: {error}");
    }
}
