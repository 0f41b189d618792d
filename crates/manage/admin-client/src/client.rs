//! A blocking client of the control socket.

use crate::trust::{Trust, words};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// The maximum size of an answer, in bytes, which is far above the size of the largest document.
const MAX_BYTES: usize = 64 << 20;

/// The time limit for an answer. It is long, because a change waits for operations of slow disks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A client of the interface, on the control socket or on TCP.
#[derive(Clone)]
pub struct Client {
    place: ClientPlace,
    patience: Duration,
}

#[derive(Clone)]
enum ClientPlace {
    Socket(PathBuf),
    /// The address, and the value of the `Authorization` header.
    Tcp(SocketAddr, HeaderValue),
    Https(HttpsServer, HeaderValue),
}

/// An HTTPS server, which must have a trusted certificate.
#[derive(Clone)]
pub struct HttpsServer {
    /// The address of the server: `HOST:PORT`.
    address: String,
    name: ServerName<'static>,
    trust: Trust,
}

impl HttpsServer {
    /// The server at `HOST:PORT`.
    ///
    /// # Errors
    /// One sentence about an invalid address.
    pub fn new(address: &str, trust: &Trust) -> Result<Self, String> {
        let parts = address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let host = parts.map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
        let name = host.and_then(|host| ServerName::try_from(host.to_owned()).ok());
        let name = name.ok_or_else(|| {
            format!(
                "{address:?} is not the address of a management interface: write https://HOST:PORT"
            )
        })?;
        Ok(Self { address: address.to_owned(), name, trust: trust.clone() })
    }

    /// Connects to the server. The error does not name the server.
    ///
    /// # Errors
    /// The connection or the TLS handshake failed.
    pub async fn connect(&self) -> Result<TlsStream<TcpStream>, String> {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.map_err(|error| format!("cannot connect: {}", plain(&error)))?;
        let connector = TlsConnector::from(self.trust.config());
        let secured = connector.connect(self.name.clone(), stream).await;
        secured.map_err(|error| words(&self.name.to_str(), &error))
    }
}

/// The text of a system error, without the error number.
#[must_use]
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// The answer of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// The version of the document, if the answer contains it.
    pub etag: Option<String>,
    /// The body of the answer.
    pub body: String,
}

impl Answer {
    /// Whether the request succeeded.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body parsed as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// The reason why the client got no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The client cannot connect to the socket.
    Connect(PathBuf, io::Error),
    /// The connection failed, or the answer was invalid.
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
                        "{path} belongs to another user: only the user who started a target can \
                         control it"
                    ),
                    _ => write!(f, "cannot open {path}: {error}"),
                }
            }
            Self::Talk(path, sentence) => write!(f, "{}: {sentence}", path.display()),
        }
    }
}

impl std::error::Error for ClientError {}

impl Client {
    /// A client of the target with this control socket.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { place: ClientPlace::Socket(path.into()), patience: ANSWER_TIMEOUT }
    }

    /// Sets the time limit for an answer.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// A client of the interface at `url`. With HTTPS, the client sends the token only to a server
    /// that has a trusted certificate.
    ///
    /// # Errors
    /// One sentence about an invalid URL or token.
    pub fn remote(url: &str, token: &str, trust: Option<&Trust>) -> Result<Self, String> {
        if let Some(address) = url.strip_prefix("https://") {
            let trust = trust.ok_or_else(|| {
                format!(
                    "{url} has a certificate: give --api-ca the certificate of its authority, or a \
                     copy of the certificate itself"
                )
            })?;
            let secure = HttpsServer::new(address.trim_end_matches('/'), trust)?;
            return Ok(Self {
                place: ClientPlace::Https(secure, bearer(token)?),
                patience: ANSWER_TIMEOUT,
            });
        }
        if trust.is_some() {
            return Err(format!("{url} has no certificate: write https://, or omit --api-ca"));
        }
        let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let address = address.map(|rest| rest.replacen("localhost:", "127.0.0.1:", 1));
        let address = address.and_then(|rest| rest.parse::<SocketAddr>().ok());
        let address = address.ok_or_else(|| {
            format!(
                "{url:?} is not the address of a management interface: write \
                 http://127.0.0.1:PORT, or https://HOST:PORT and --api-ca FILE"
            )
        })?;
        if !IpAddr::is_loopback(&address.ip().to_canonical()) {
            return Err(format!(
                "{url} is on another machine, and http:// sends the token unencrypted: use \
                 https:// (serve --https-cert), or create a tunnel (ssh -L {port}:127.0.0.1:{port} \
                 HOST) and use http://127.0.0.1:{port}",
                port = address.port()
            ));
        }
        Ok(Self { place: ClientPlace::Tcp(address, bearer(token)?), patience: ANSWER_TIMEOUT })
    }

    /// The socket path or URL of the target, for errors.
    fn name(&self) -> PathBuf {
        match &self.place {
            ClientPlace::Socket(path) => path.clone(),
            ClientPlace::Tcp(address, _) => format!("http://{address}").into(),
            ClientPlace::Https(secure, _) => format!("https://{}", secure.address).into(),
        }
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The target does not answer. A refusal of the request counts as an answer.
    pub fn ask(
        &self,
        method: &str,
        uri: &str,
        if_match: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, ClientError> {
        self.ask_if(method, uri, if_match.map(|etag| (header::IF_MATCH, etag)), body)
    }

    /// Creates a part of the target's configuration document. The part must not exist yet.
    ///
    /// # Errors
    /// The target does not answer. If the part exists, the answer has status 412.
    pub fn make(&self, uri: &str, body: &Value) -> Result<Answer, ClientError> {
        self.ask_if("PUT", uri, Some((header::IF_NONE_MATCH, "*")), Some(body))
    }

    fn ask_if(
        &self,
        method: &str,
        uri: &str,
        condition: Option<(header::HeaderName, &str)>,
        body: Option<&Value>,
    ) -> Result<Answer, ClientError> {
        let talk = |error: &dyn fmt::Display| self.talk(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| talk(&error))?;
        let text = body.map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).map_err(|error| talk(&error))?)
            .uri(uri)
            .header(header::HOST, self.host());
        if let ClientPlace::Tcp(_, token) | ClientPlace::Https(_, token) = &self.place {
            request = request.header(header::AUTHORIZATION, token);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some((name, value)) = condition {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(text))).map_err(|error| talk(&error))?;
        let answered = runtime
            .block_on(async { tokio::time::timeout(self.patience, self.exchange(request)).await });
        // Do not wait until the connection is closed.
        runtime.shutdown_background();
        answered.unwrap_or_else(|_| Err(talk(&"the target does not answer in time")))
    }

    fn host(&self) -> String {
        match &self.place {
            ClientPlace::Socket(_) => "farblock".to_owned(),
            ClientPlace::Tcp(address, _) => address.to_string(),
            ClientPlace::Https(secure, _) => secure.address.clone(),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, ClientError> {
        let cannot = |error| ClientError::Connect(self.name(), error);
        match &self.place {
            ClientPlace::Socket(path) => {
                let stream =
                    UnixStream::connect(path).await.map_err(|error| match error.kind() {
                        // The backlog of the listener is full.
                        io::ErrorKind::WouldBlock => self.talk(
                            &"the target does not answer, and too many other clients \
                                already wait for it",
                        ),
                        _ => cannot(error),
                    })?;
                self.exchange_over(stream, request).await
            }
            ClientPlace::Tcp(address, _) => {
                self.exchange_over(TcpStream::connect(address).await.map_err(cannot)?, request)
                    .await
            }
            ClientPlace::Https(secure, _) => {
                let stream = secure.connect().await;
                self.exchange_over(stream.map_err(|error| self.talk(&error))?, request).await
            }
        }
    }

    async fn exchange_over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, ClientError> {
        let talk = |error: &dyn fmt::Display| self.talk(error);
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        let response = send(stream, request).await.map_err(|error| match changes {
            true => talk(&format_args!(
                "the connection ended before the answer ({error}), and the target may have made \
                 the change: check with farblock config show"
            )),
            false => {
                talk(&format_args!("the connection ended before the answer ({error}): try again"))
            }
        })?;
        let status: StatusCode = response.status();
        let etag = response.headers().get(header::ETAG);
        let etag = etag.and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let body = whole(response, MAX_BYTES).await.map_err(|error| talk(&error))?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Answer { status: status.as_u16(), etag, body })
    }

    fn talk(&self, error: &dyn fmt::Display) -> ClientError {
        ClientError::Talk(self.name(), error.to_string())
    }
}

/// The value of the `Authorization` header for a token.
fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| "a token consists of printable ASCII characters without spaces".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Sends a request on a new connection. Returns the head of the answer.
///
/// # Errors
/// The connection failed.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// Reads the body of an answer, up to `most` bytes.
///
/// # Errors
/// The connection failed, or the body is longer.
pub async fn whole(answer: Response<Incoming>, most: usize) -> Result<Bytes, String> {
    let body = Limited::new(answer.into_body(), most).collect().await;
    body.map(Collected::to_bytes).map_err(|error| error.to_string())
}
