//! Limits a listener's connections, so that enough file descriptors remain for hosts and disks.
//!
//! A connection is busy while an authorized request is being answered ([`busy`]). Any other
//! connection closes after a while, and at once when a new client needs its place. So silent
//! clients and clients that guess tokens lock no client out. A busy connection without progress
//! also closes eventually.

use crate::api;
use crate::audit::{Line, Outcome};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::Listener;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// The longest time without progress on a busy connection: a change may wait for a disk.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// Maximum size of a request's body.
const BODY_BYTES: usize = 2 << 20;
/// Polling interval while all connections are busy.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection's activity, shared by its listener and its request handler.
#[derive(Clone, Debug)]
pub struct Activity(Arc<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    /// Number of requests being answered.
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

/// A request, until its answer is sent.
#[derive(Debug)]
pub struct Asked(Activity);

impl Drop for Asked {
    fn drop(&mut self) {
        let state = &self.0.0;
        *state.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        state.asked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The client of a connection.
pub(crate) trait Active: Clone + Send + Sync + 'static {
    fn activity(&self) -> &Activity;
}

/// Marks the connection busy while a request is answered. Must run after authorization.
pub(crate) async fn busy<Who: Active>(request: Request, next: Next) -> Response {
    let who = request.extensions().get::<ConnectInfo<Who>>();
    let activity = who.map(|ConnectInfo(who)| who.activity().clone());
    let line = Line::of(&request);
    // A connection whose request is incomplete is not busy yet.
    let request = match whole(request).await {
        Ok(request) => request,
        Err(refusal) => {
            line.write(&refusal);
            return refusal;
        }
    };
    let Some(asked) = activity.map(|it| it.begin()) else {
        return next.run(request).await;
    };
    next.run(request).await.map(|body| Body::new(Answering { body, _asked: asked }))
}

/// Reads the whole request with its body.
///
/// Refuses a request with two Host headers (RFC 9112, section 3.2): the authorization may have
/// checked the other one.
async fn whole(request: Request) -> Result<Request, Response> {
    if request.headers().get_all(HOST).iter().count() > 1 {
        return Err(refused(StatusCode::BAD_REQUEST, "write one Host header"));
    }
    let (head, body) = request.into_parts();
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Err(error) if error.is::<LengthLimitError>() => {
            let sentence = format!("a request has at most {} MiB: ask for less", BODY_BYTES >> 20);
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &sentence))
        }
        Err(_) => Err(refused(StatusCode::BAD_REQUEST, "the request has no end")),
    }
}

fn refused(status: StatusCode, sentence: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("refused");
    let mut answer = api::trouble(status, title, sentence);
    answer.extensions_mut().insert(Outcome(sentence.to_owned()));
    answer
}

/// An answer being sent.
struct Answering {
    body: Body,
    _asked: Asked,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A listener with a limit on its connections.
pub struct Bounded<L> {
    listener: L,
    most: usize,
    idle: Duration,
    places: Vec<QuestionPlace>,
}

/// A connection, as seen by its listener. Dropping it closes the connection.
struct QuestionPlace {
    state: Weak<ActivityState>,
    end: oneshot::Sender<()>,
}

impl QuestionPlace {
    fn is_taken(&self) -> bool {
        !self.end.is_closed()
    }

    /// The time since which the connection is idle; `None` while busy.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.upgrade()?;
        (!state.is_busy()).then(|| state.idle_since())
    }
}

impl<L> Bounded<L> {
    /// Limits `listener` to `most` connections, each idle for at most `idle`.
    pub fn new(listener: L, most: usize, idle: Duration) -> Bounded<L> {
        Bounded { listener, most, idle, places: Vec::new() }
    }

    /// Waits for a free place; closes the connection that has been idle for the longest time.
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

/// A connection of the listener.
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
    /// The stream below the limits.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Its activity, for the handler of its requests.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// The time at which the connection closes in its current state.
    fn deadline(&self) -> Instant {
        let state = &self.activity.0;
        match state.is_busy() {
            true => self.moved + LONGEST_SILENCE,
            false => state.idle_since() + self.idle,
        }
    }

    /// Fails after the deadline. Registers `cx` to be woken then.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // The server may still write an answer after the end. A receiver that was ready must not be
        // polled again.
        if self.ended.is_terminated() || Pin::new(&mut self.ended).poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        while self.wake.as_mut().poll(cx).is_ready() {
            let (now, deadline) = (Instant::now(), self.deadline());
            if deadline <= now {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // It may become idle earlier.
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
    use crate::tls_listener::TlsListener;
    use crate::ui::Visitor;
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::sync::Notify;

    const WAIT_LIMIT: Duration = Duration::from_secs(60);
    const NEVER: Duration = Duration::from_secs(3600);

    fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }

    fn is_answered(mut stream: &TcpStream) {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn is_closed(mut stream: &TcpStream) {
        let read = stream.read_to_end(&mut Vec::new());
        assert!(!matches!(&read, Err(e) if e.kind() == io::ErrorKind::WouldBlock), "{read:?}");
    }

    /// Connections that send part of a request.
    fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
        let silent = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
            stream.write_all(b"GET /met").unwrap();
            stream
        };
        (0..count).map(silent).collect()
    }

    /// Serves at most two connections while `client` runs. `/slow` reports that it was called, and
    /// waits for a notification.
    fn while_served(
        idle: Duration,
        client: impl FnOnce(SocketAddr, Receiver<()>, Arc<Notify>) + Send + 'static,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (comes, has_come): (Sender<()>, _) = channel();
        let go_on = Arc::new(Notify::new());
        let word = Arc::clone(&go_on);
        let slow = async move || {
            comes.send(()).unwrap();
            word.notified().await;
            "at last"
        };
        let client = std::thread::spawn(move || client(address, has_come, go_on));
        let router = Router::new().route("/slow", get(slow)).route("/", get(async || "here"));
        let router = router.layer(from_fn(busy::<Visitor>));
        let router = router.into_make_service_with_connect_info::<Visitor>();
        let bounded = Bounded::new(TlsListener::new(listener, None), 2, idle);
        runtime.spawn(async move { axum::serve(bounded, router).await });
        runtime.block_on(async {
            while !client.is_finished() {
                sleep(Duration::from_millis(10)).await;
            }
        });
        client.join().unwrap();
    }

    #[test]
    fn who_says_nothing_is_in_nobodys_way() {
        while_served(NEVER, |address, _, _| {
            let silent = silent(address, 5);
            is_answered(&ask(address, "/"));
            silent[..4].iter().for_each(is_closed);
        });
    }

    #[test]
    fn who_never_ends_a_question_is_in_nobodys_way() {
        while_served(NEVER, |address, _, _| {
            let slow = |_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
                let head = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
                stream.write_all(head.as_bytes()).unwrap();
                stream
            };
            let slow: Vec<_> = (0..5).map(slow).collect();
            is_answered(&ask(address, "/"));
            slow[..4].iter().for_each(is_closed);
        });
    }

    /// The server may still answer half a request after its connection was closed to make room.
    #[tokio::test]
    async fn a_connection_reports_its_end_each_time() {
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

    #[test]
    fn two_hosts_in_one_request_are_refused() {
        while_served(NEVER, |address, _, _| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
            let head = "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        });
    }

    #[test]
    fn who_says_nothing_for_long_is_closed() {
        while_served(Duration::from_millis(50), |address, _, _| {
            silent(address, 2).iter().for_each(is_closed);
        });
    }

    #[test]
    fn who_is_being_answered_stays() {
        // Longer than a busy machine takes between a connect and its request.
        while_served(Duration::from_secs(3), |address, has_come, go_on| {
            let slow = ask(address, "/slow");
            has_come.recv_timeout(WAIT_LIMIT).unwrap();
            let silent = silent(address, 4);
            is_answered(&ask(address, "/"));
            silent.iter().for_each(is_closed);
            go_on.notify_one();
            is_answered(&slow);
        });
    }
}
