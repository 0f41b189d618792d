//! The SPDK socket, which has its own thread.

use super::SpdkRpc;
use super::frame::Framer;
use super::limits::{MAX_CONNECTIONS, MAX_REQUEST_BYTES};
use super::message::{PARSE_ERROR, refusal};
use axum::serve::Listener;
use farblock_admin::{Bounded, Connection};
use farblock_admin_api::bind_socket;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

const READ_BYTES: usize = 8 << 10;
/// The time after which an idle client is disconnected. It is long, because SPDK's clients keep
/// their connections.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// The time for which the server still reads from a client after it has answered with an error.
const PARTING: Duration = Duration::from_secs(1);

/// The thread that serves the socket. Dropping this stops the thread and removes the socket.
pub struct SpdkServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Drop for SpdkServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves SPDK's methods on a Unix socket at `path` that only its owner can open.
///
/// # Errors
/// The reason why the socket cannot be created or served.
pub fn serve_spdk(rpc: SpdkRpc, path: &Path) -> io::Result<SpdkServer> {
    let socket = bind_socket(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                _ = stopped => {}
                result = accept(socket, Arc::new(rpc)) => {
                    if let Err(error) = result {
                        tracing::error!("the SPDK socket has stopped: {error}");
                    }
                }
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("spdk-rpc".to_owned()).spawn(work)?;
    Ok(SpdkServer { stop: Some(stop), thread: Some(thread), path: path.to_owned() })
}

async fn accept(socket: std::os::unix::net::UnixListener, rpc: Arc<SpdkRpc>) -> io::Result<()> {
    let listener = UnixListener::from_std(socket)?;
    // When there are too many connections, a new client replaces one that never completes a
    // request.
    let mut listener = Bounded::new(listener, MAX_CONNECTIONS, IDLE);
    loop {
        let (stream, _) = listener.accept().await;
        let rpc = Arc::clone(&rpc);
        tokio::spawn(async move {
            if let Err(error) = answer(stream, rpc).await {
                tracing::debug!("an SPDK client disconnected: {error}");
            }
        });
    }
}

/// Answers requests in order, until the client disconnects or sends an invalid request.
async fn answer(mut stream: Connection<UnixStream>, rpc: Arc<SpdkRpc>) -> io::Result<()> {
    let mut framer = Framer::new();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        framer.push(&bytes[..count]);
        loop {
            match framer.next() {
                Ok(Some(request)) => {
                    let rpc = Arc::clone(&rpc);
                    let _asked = stream.activity().begin();
                    // Disks may be slow, so run the call on a thread for blocking work.
                    let answered = tokio::task::spawn_blocking(move || rpc.answer(&request)).await;
                    if let Some(answer) = answered.map_err(io::Error::other)? {
                        stream.write_all(&answer).await?;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let refusal = refusal(PARSE_ERROR, "Parse error", &error.to_string());
                    return part(stream, &refusal).await;
                }
            }
        }
    }
}

/// Sends the last answer, which is an error. Then reads and discards input for a moment: if the
/// socket were closed with unread bytes, the client could lose the answer.
async fn part(mut stream: Connection<UnixStream>, refusal: &str) -> io::Result<()> {
    stream.write_all(refusal.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(MAX_REQUEST_BYTES as u64);
    let mut nowhere = tokio::io::sink();
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    tokio::time::timeout(PARTING, read).await.map(drop).or(Ok(()))
}
