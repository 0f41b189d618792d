//! Limits the number of connections to a listener, so that enough file descriptors remain for hosts
//! and disks.
//!
//! A connection is busy while the server answers an authorized request ([`Activity::begin`]). The
//! listener closes any other connection after some time, or at once when a new client needs its
//! place. So clients that send nothing or guess tokens cannot lock other clients out. The listener
//! also closes a busy connection after a long time without progress.

use axum::serve::Listener;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The longest time without progress on a busy connection. It is long, because a change may wait
/// for a disk.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// The interval of checks for an idle connection while all connections are busy.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The activity of a connection. Its listener and its request handler share this value.
#[derive(Clone, Debug)]
pub struct Activity(Arc<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    /// The number of requests that the server is answering.
    asked: AtomicUsize,
    /// The time of the last answer, or of the connect.
    idle_since: Mutex<Instant>,
}

impl Activity {
    fn new() -> Activity {
        let idle_since = Mutex::new(Instant::now());
        Activity(Arc::new(ActivityState { asked: AtomicUsize::new(0), idle_since }))
    }

    /// Marks the connection busy until the returned value is dropped.
    #[must_use = "the connection is busy until this is dropped"]
    pub fn begin(&self) -> Asked {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        Asked(self.clone())
    }
}

impl ActivityState {
    fn is_busy(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }

    fn idle_since(&self) -> Instant {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a connection as busy until the answer is sent.
#[derive(Debug)]
pub struct Asked(Activity);

impl Drop for Asked {
    fn drop(&mut self) {
        let state = &self.0.0;
        *state.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        state.asked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The data about a client that its request handlers get. It contains the activity of the
/// connection.
pub(crate) trait Active: Clone + Send + Sync + 'static {
    fn activity(&self) -> &Activity;
}

/// A listener with a limited number of connections.
pub struct Bounded<L> {
    listener: L,
    most: usize,
    idle: Duration,
    places: Vec<QuestionPlace>,
}

/// The listener's handle of a connection. Dropping the handle closes the connection.
struct QuestionPlace {
    state: Weak<ActivityState>,
    end: oneshot::Sender<()>,
}

impl QuestionPlace {
    fn is_taken(&self) -> bool {
        !self.end.is_closed()
    }

    /// The time since which the connection has been idle; `None` while it is busy.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.upgrade()?;
        (!state.is_busy()).then(|| state.idle_since())
    }
}

impl<L> Bounded<L> {
    /// Limits `listener` to `most` connections. Each may be idle for at most `idle`.
    pub fn new(listener: L, most: usize, idle: Duration) -> Bounded<L> {
        Bounded { listener, most, idle, places: Vec::new() }
    }

    /// Waits for a free place. If there is none, closes the connection that has been idle longest.
    async fn room(&mut self) {
        loop {
            self.places.retain(QuestionPlace::is_taken);
            if self.places.len() < self.most {
                return;
            }
            let idle = self.places.iter().enumerate();
            let idle = idle.filter_map(|(at, place)| Some((place.idle_since()?, at))).min();
            match idle {
                Some((_, at)) => drop(self.places.swap_remove(at)),
                None => sleep(LOOK_AGAIN).await,
            }
        }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = self.listener.accept().await;
        self.room().await;
        let activity = Activity::new();
        let (end, ended) = oneshot::channel();
        self.places.push(QuestionPlace { state: Arc::downgrade(&activity.0), end });
        let (idle, moved) = (self.idle, Instant::now());
        let wake = Box::pin(sleep_until(moved + idle));
        (Connection { stream, activity, idle, moved, wake, ended }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A client's connection, with the time limits of its listener.
pub struct Connection<S> {
    stream: S,
    activity: Activity,
    idle: Duration,
    /// The time of the last read or write.
    moved: Instant,
    wake: Pin<Box<Sleep>>,
    ended: oneshot::Receiver<()>,
}

impl<S> Connection<S> {
    /// The underlying stream.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The activity of the connection, for the handler of its requests.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// The time at which the connection will be closed if it stays in its present state.
    fn deadline(&self) -> Instant {
        let state = &self.activity.0;
        match state.is_busy() {
            true => self.moved + LONGEST_SILENCE,
            false => state.idle_since() + self.idle,
        }
    }

    /// Returns an error after the deadline. Wakes `cx` at the deadline.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // The server may poll again after the listener has closed the connection, to write an
        // answer. Do not poll a completed receiver again.
        if self.ended.is_terminated() || Pin::new(&mut self.ended).poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        while self.wake.as_mut().poll(cx).is_ready() {
            let (now, deadline) = (Instant::now(), self.deadline());
            if deadline <= now {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Wake earlier: the connection may become idle meanwhile, and then its deadline is
            // earlier.
            self.wake.as_mut().reset(deadline.min(now + self.idle));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.moved = Instant::now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_end(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.moved = Instant::now();
        }
        written
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

    const NEVER: Duration = Duration::from_secs(3600);

    /// After the listener has closed a connection to make room, the server may still write an
    /// answer to an incomplete request.
    #[tokio::test]
    async fn every_poll_of_a_closed_connection_returns_an_error() {
        use std::future::poll_fn;
        let (end, ended) = oneshot::channel();
        let (stream, _other) = tokio::io::duplex(1);
        let (activity, moved) = (Activity::new(), Instant::now());
        let wake = Box::pin(sleep_until(moved + NEVER));
        let mut one = Connection { stream, activity, idle: NEVER, moved, wake, ended };
        drop::<oneshot::Sender<()>>(end);
        for _ in 0..2 {
            let ends = poll_fn(|cx| std::task::Poll::Ready(one.poll_end(cx))).await;
            assert_eq!(ends.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }
}
