//! The other end of the control socket, for programs that wait for each answer.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// The most bytes of an answer: far more than the largest document has.
const MAX_BYTES: usize = 64 << 20;

/// The longest that an answer may take: a change waits for operations of slow disks.
const PATIENCE: Duration = Duration::from_secs(120);

/// A control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

/// What a target answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// HTTP's status code.
    pub status: u16,
    /// The document's version, where there is one.
    pub etag: Option<String>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Whether it was done.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The socket cannot be opened.
    Connect(PathBuf, io::Error),
    /// It was opened, and nothing sensible came.
    Talk(PathBuf, String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(path, error) => {
                let path = path.display();
                match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => write!(
                        f,
                        "no target answers at {path}: start one with farblock serve, or name its \
                         socket with --control"
                    ),
                    io::ErrorKind::PermissionDenied => write!(
                        f,
                        "{path} is another user's: a target is steered by whoever started it"
                    ),
                    _ => write!(f, "{path} cannot be opened: {error}"),
                }
            }
            Self::Talk(path, sentence) => write!(f, "{}: {sentence}", path.display()),
        }
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// The target whose control socket is at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When there is none. An answer that says no is one.
    pub fn ask(
        &self,
        method: &str,
        uri: &str,
        if_match: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, ClientError> {
        let talk = |error: &dyn fmt::Display| self.talk(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| talk(&error))?;
        let text = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).map_err(|error| talk(&error))?)
            .uri(uri)
            .header(header::HOST, "farblock");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(etag) = if_match {
            request = request.header(header::IF_MATCH, etag);
        }
        let request = request.body(Full::new(Bytes::from(text))).map_err(|error| talk(&error))?;
        let answered = runtime
            .block_on(async { tokio::time::timeout(PATIENCE, self.exchange(request)).await });
        // What is left of the connection need not be waited for.
        runtime.shutdown_background();
        answered.unwrap_or_else(|_| Err(talk(&"the target does not answer in time")))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, ClientError> {
        let talk = |error: &dyn fmt::Display| self.talk(error);
        let stream = UnixStream::connect(&self.path)
            .await
            .map_err(|error| ClientError::Connect(self.path.clone(), error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| talk(&error))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| talk(&error))?;
        let status: StatusCode = response.status();
        let etag = response.headers().get(header::ETAG);
        let etag = etag.and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        let body = body.map_err(|error| talk(&error))?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status: status.as_u16(), etag, body })
    }

    fn talk(&self, error: &dyn fmt::Display) -> ClientError {
        ClientError::Talk(self.path.clone(), error.to_string())
    }
}
