//! A TCP listener that uses TLS if there is a certificate.
//!
//! Each connection performs its own handshake, so a slow handshake does not delay other clients. A
//! connection counts towards the server's limits from before its handshake. A client that uses
//! plain HTTP gets an error that tells it to use HTTPS.

use crate::problems::PROBLEM;
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

const HANDSHAKE: u8 = 0x16;

/// The answer to a client that uses plain HTTP.
const NO_TLS: &str = r#"{"title": "this is HTTPS", "status": 400,
"detail": "this address is HTTPS and refuses plain HTTP: write https://"}
"#;

pub(crate) struct TlsListener {
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
}

impl TlsListener {
    /// Creates a listener, which uses TLS if `tls` is given.
    pub(crate) fn new(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> TlsListener {
        TlsListener { listener, acceptor: tls.map(TlsAcceptor::from) }
    }
}

impl Listener for TlsListener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let stream = match &self.acceptor {
            Some(acceptor) => Stream::New(stream, acceptor.clone()),
            None => Stream::Plain(stream),
        };
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, in one of these states:
///
/// ```text
/// Plain                                 no TLS here
/// New ──▶ Shaking ──▶ Secure            TLS
///  └────▶ Refused                       plain HTTP where there is TLS
/// ```
pub(crate) enum Stream {
    Plain(TcpStream),
    New(TcpStream, TlsAcceptor),
    Shaking(Box<Accept<TcpStream>>),
    Secure(Box<TlsStream<TcpStream>>),
    /// Plain HTTP: the server has sent an error, and discards the rest of the request. If it closed
    /// the connection with unread data, a reset could reach the client before the error.
    Refused(TcpStream),
    /// The connection has failed.
    Over,
}

impl Stream {
    /// Continues the handshake until data can be read and written.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let next = match self {
                Self::Plain(_) | Self::Secure(_) | Self::Refused(_) => return Poll::Ready(Ok(())),
                Self::Over => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                Self::New(stream, _) => {
                    let mut first = [0];
                    let read = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut first)));
                    read.map(|count| count > 0 && first[0] != HANDSHAKE)
                }
                Self::Shaking(accept) => match ready!(Pin::new(accept).poll(cx)) {
                    Ok(stream) => {
                        *self = Self::Secure(Box::new(stream));
                        continue;
                    }
                    Err(error) => {
                        tracing::debug!("the TLS handshake with a client failed: {error}");
                        Err(error)
                    }
                },
            };
            *self = match (std::mem::replace(self, Self::Over), next) {
                (Self::New(stream, _), Ok(true)) => refuse(stream)?,
                (Self::New(stream, acceptor), Ok(false)) => {
                    Self::Shaking(Box::new(acceptor.accept(stream)))
                }
                (_, failed) => return Poll::Ready(failed.map(drop)),
            };
        }
    }
}

/// Sends [`NO_TLS`]. The text is short and is the first data sent, so it fits into the send buffer.
fn refuse(stream: TcpStream) -> io::Result<Stream> {
    let stream = stream.into_std()?;
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: {PROBLEM}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        NO_TLS.len()
    );
    io::Write::write_all(&mut &stream, (head + NO_TLS).as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    Ok(Stream::Refused(TcpStream::from_std(stream)?))
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Refused(stream) => loop {
                let mut rest = [0; 1024];
                let mut rest = ReadBuf::new(&mut rest);
                ready!(Pin::new(&mut *stream).poll_read(cx, &mut rest))?;
                if rest.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
            },
            _ => unreachable!("the handshake has completed"),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Secure(stream) => Pin::new(stream).poll_write(cx, bytes),
            _ => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}
