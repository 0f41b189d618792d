//! Answers the clients of the control socket.

use super::DaemonShared;
use crate::control::{self, Answer, ControlRequest};
use crate::system::{Listener, Stream};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Pause after the server fails to accept a client, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the socket until the process ends.
pub(super) fn serve(shared: &Arc<DaemonShared>) -> io::Result<()> {
    let listener = Arc::new(control::listen(&shared.folder)?);
    let shared = Arc::clone(shared);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        loop {
            let answered = listener.accept().and_then(|stream| {
                let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
                // One thread per client, because a detach may take long.
                let thread = thread::Builder::new().name("control-client".to_owned());
                thread.spawn(move || answer(&listener, &stream, &shared)).map(drop)
            });
            if let Err(error) = answered {
                tracing::warn!("cannot serve a client of the control socket: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    })?;
    Ok(())
}

fn answer(listener: &Listener, stream: &Stream, shared: &DaemonShared) {
    let answered = stream
        .set_read_timeout(Some(control::WAIT_LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(control::WAIT_LIMIT)))
        .and_then(|()| listener.admit(stream))
        .and_then(|()| control::receive(stream))
        .and_then(|request| {
            #[cfg(target_os = "linux")]
            if matches!(request, ControlRequest::Adopt) {
                return crate::system::send_channel(stream).map(|channel| shared.adopt(channel));
            }
            let answer = match request {
                ControlRequest::Status => Answer::Status(Box::new(shared.status())),
                ControlRequest::Paths => Answer::Status(Box::new(shared.status_without_users())),
                ControlRequest::Measure => {
                    shared.measure();
                    Answer::Status(Box::new(shared.status()))
                }
                ControlRequest::AddPath { url } => shared.add_path(&url),
                #[cfg(target_os = "linux")]
                ControlRequest::Adopt => unreachable!("it was answered"),
                ControlRequest::Authenticate => Answer::Authenticated(shared.authenticate()),
                ControlRequest::Detach { force } => match shared.detach(force) {
                    Ok(()) => Answer::Detached,
                    Err(error) => Answer::Refused(error),
                },
            };
            let ends = matches!(answer, Answer::Detached);
            let sent = control::send(stream, &answer);
            if ends {
                // Exit only after the answer is sent, or the client would not receive it.
                shared.end();
            }
            sent
        });
    if let Err(error) = answered {
        tracing::debug!("cannot answer a client of the control socket: {error}");
    }
}
