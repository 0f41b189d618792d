//! A listener that has so many connections at most, and no longer than some time each: descriptors
//! are for hosts and disks first.

use axum::serve::Listener;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// The others wait to be accepted.
pub(crate) struct Bounded<L> {
    listener: L,
    slots: Arc<Semaphore>,
    longest: Option<Duration>,
}

impl<L> Bounded<L> {
    pub(crate) fn new(listener: L, connections: usize, longest: Option<Duration>) -> Bounded<L> {
        Bounded { listener, slots: Arc::new(Semaphore::new(connections)), longest }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let slots = Arc::clone(&self.slots);
        let slot = slots.acquire_owned().await.expect("it is never closed");
        let (stream, address) = self.listener.accept().await;
        let end = self.longest.map(|longest| Box::pin(sleep(longest)));
        (Connection { stream, end, _slot: slot }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// One of them.
pub(crate) struct Connection<S> {
    stream: S,
    end: Option<Pin<Box<Sleep>>>,
    _slot: OwnedSemaphorePermit,
}

impl<S> Connection<S> {
    /// What it is under its limits.
    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Fails when its time is over, and wakes who waits then.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().map(|end| end.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What a scrape gets.
    fn scrape(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn who_says_nothing_makes_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            let mut silent = Vec::new();
            for _ in 0..5 {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /met").unwrap();
                silent.push(stream);
            }
            let answer = scrape(address).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            // It was behind them, so they have been closed: three times two of them.
            for mut stream in silent {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let read = stream.read_to_end(&mut Vec::new());
                assert!(!matches!(&read, Err(e) if e.kind() == io::ErrorKind::WouldBlock));
            }
        });
        let bounded = Bounded::new(listener, 2, Some(Duration::from_millis(100)));
        let router = Router::new().route("/metrics", get(|| async { "counters" }));
        runtime.spawn(async move { axum::serve(bounded, router).await });
        runtime.block_on(async {
            while !client.is_finished() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        client.join().unwrap();
    }
}
