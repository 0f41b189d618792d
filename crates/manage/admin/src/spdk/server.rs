//! The socket, on a thread of its own.

use super::SpdkRpc;
use super::frame::Framer;
use super::limits::{MAX_CONNECTIONS, MAX_REQUEST_BYTES};
use super::message::{PARSE_ERROR, refusal};
use crate::bounded::{Bounded, Connection};
use crate::socket;
use axum::serve::Listener;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

/// Bytes that are read at once.
const READ_BYTES: usize = 8 << 10;
/// How long a client may ask for nothing: SPDK's keep their connections.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// How long a client is listened to that has been sent away.
const PARTING: Duration = Duration::from_secs(1);

/// The thread that answers. Dropping it ends it, and removes its socket.
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

/// Offers SPDK's methods on a Unix socket at `path` that only its owner can open.
///
/// # Errors
/// Why it cannot.
pub fn serve_spdk(rpc: SpdkRpc, path: &Path) -> io::Result<SpdkServer> {
    let socket = socket::bind(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                _ = stopped => {}
                result = accept(socket, Arc::new(rpc)) => {
                    if let Err(error) = result {
                        tracing::error!("SPDK's clients are answered no more: {error}");
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
    // A client that never ends its message makes room for the next one.
    let mut listener = Bounded::new(listener, MAX_CONNECTIONS, IDLE);
    loop {
        let (stream, _) = listener.accept().await;
        let rpc = Arc::clone(&rpc);
        tokio::spawn(async move {
            if let Err(error) = answer(stream, rpc).await {
                tracing::debug!("a client of SPDK's methods is gone: {error}");
            }
        });
    }
}

/// Answers one request after the other, until the client has closed or sent what is none.
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
                    // A disk may take its time.
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

/// Says why this ends. What the client has sent besides is read and thrown away for a moment: a
/// socket that is closed over unread bytes takes the answer along.
async fn part(mut stream: Connection<UnixStream>, refusal: &str) -> io::Result<()> {
    stream.write_all(refusal.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(MAX_REQUEST_BYTES as u64);
    let mut nowhere = tokio::io::sink();
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    tokio::time::timeout(PARTING, read).await.map(drop).or(Ok(()))
}
