//! Marks connections as busy while the server answers their requests.

use crate::audit::Line;
use crate::bounded::{Active, Asked};
use crate::problems::{Outcome, trouble};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The maximum size of the body of a request, in bytes.
const BODY_BYTES: usize = 2 << 20;

/// Marks the connection as busy while the server answers a request. Must run after the
/// authorization.
pub(crate) async fn busy<Who: Active>(request: Request, next: Next) -> Response {
    let who = request.extensions().get::<ConnectInfo<Who>>();
    let activity = who.map(|ConnectInfo(who)| who.activity().clone());
    let line = Line::of(&request);
    // The connection is not busy until its request is complete.
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

/// Reads a whole request with its body.
///
/// Refuses a request with two Host headers (RFC 9112, section 3.2), because the authorization
/// checks only one of them.
async fn whole(request: Request) -> Result<Request, Response> {
    if request.headers().get_all(HOST).iter().count() > 1 {
        return Err(refused(StatusCode::BAD_REQUEST, "send exactly one Host header"));
    }
    let (head, body) = request.into_parts();
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Err(error) if error.is::<LengthLimitError>() => {
            let sentence = format!("a request can have at most {} MiB", BODY_BYTES >> 20);
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &sentence))
        }
        Err(_) => Err(refused(StatusCode::BAD_REQUEST, "the request is incomplete")),
    }
}

fn refused(status: StatusCode, sentence: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("refused");
    let mut answer = trouble(status, title, sentence);
    answer.extensions_mut().insert(Outcome(sentence.to_owned()));
    answer
}

/// The body of an answer. It marks the connection as busy until the whole answer is sent.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::Bounded;
    use crate::callers::Visitor;
    use crate::tls_listener::TlsListener;
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use std::io::{self, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;
    use tokio::sync::Notify;
    use tokio::time::sleep;

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

    /// Opens connections that send only a part of a request.
    fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
        let silent = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
            stream.write_all(b"GET /met").unwrap();
            stream
        };
        (0..count).map(silent).collect()
    }

    /// Serves at most two connections while `client` runs. A request for `/slow` notifies `client`,
    /// and then waits for a notification.
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
    fn silent_connections_make_room_for_a_request() {
        while_served(NEVER, |address, _, _| {
            let silent = silent(address, 5);
            is_answered(&ask(address, "/"));
            silent[..4].iter().for_each(is_closed);
        });
    }

    #[test]
    fn incomplete_requests_make_room_for_a_request() {
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

    #[test]
    fn two_host_headers_in_one_request_are_refused() {
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
    fn an_idle_connection_is_closed_after_the_timeout() {
        while_served(Duration::from_millis(50), |address, _, _| {
            silent(address, 2).iter().for_each(is_closed);
        });
    }

    #[test]
    fn a_connection_with_a_pending_answer_stays_open() {
        // The idle limit is longer than a busy machine takes between a connect and its request.
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
