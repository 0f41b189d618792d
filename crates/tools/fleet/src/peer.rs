//! An agent, as the controller of the fleet sees it.

use crate::clock::{Clock, Offset};
use crate::error::FleetError;
use crate::limits::{
    CLOCK_ROUNDS, FleetTimeouts, IDLE_ASK_TIME, IDLE_TIME, LINE_BYTES, TOKEN_LEAST,
};
use crate::lines::{self, Reader};
use crate::message::{Ask, Say, VERSION};
use crate::waited::Waited;
use farblock_bench::{Cancel, Machine};
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// The interval of checks for a cancel.
const CANCEL_EVERY: Duration = Duration::from_millis(100);

/// The settings that all agents of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) clock: Clock,
    pub(crate) patience: FleetTimeouts,
    /// Cancels the run.
    pub(crate) cancel: Cancel,
}

/// A token that a controller and an agent share.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Creates a token from the first line of a file, without surrounding spaces.
    ///
    /// # Errors
    /// The reason why the token is invalid, as the end of a sentence. The text never contains a
    /// part of the token.
    pub fn new(text: &str) -> Result<Secret, String> {
        let token = text.trim();
        if token.len() < TOKEN_LEAST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "a token is one line of at least {TOKEN_LEAST} printable ASCII characters without \
                 spaces (openssl rand -hex 16 creates one)"
            ));
        }
        Ok(Secret(token.to_owned()))
    }

    /// Whether the given token is equal. The comparison takes constant time.
    pub(crate) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// An agent that has answered. If the controller started its process, dropping this waits for the
/// process to exit, and kills it after [`FleetTimeouts::end`].
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    pub(crate) offset: Offset,
    /// The lines for the writing thread. `None` tells the thread to stop.
    asks: Option<Sender<Vec<u8>>>,
    terms: Terms,
    /// The time since the last message of the agent, or since the last request.
    silent: Waited,
    said: Receiver<io::Result<Option<Say>>>,
    process: Option<Process>,
    /// The connection. It is shut down at the end, since the reading thread holds it, too.
    stream: Option<TcpStream>,
}

struct Process {
    child: Child,
    /// The last line of the agent's standard error.
    last: Arc<Mutex<String>>,
}

impl Peer {
    /// The address of the agent; `None` if this process started the agent.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        Some(self.stream.as_ref()?.peer_addr().ok()?.ip())
    }

    /// Starts a process as an agent, which communicates over its standard streams.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        terms: &Terms,
    ) -> Result<Peer, FleetError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The controller handles Ctrl-C and stops its agents, so they must not get the signal.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let failed =
            |error: io::Error| FleetError::agent(name, format!("cannot be started: {error}"));
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = (child.stdout.take(), child.stdin.take());
        let (errors, last) = (child.stderr.take(), Arc::new(Mutex::new(String::new())));
        let kept = Arc::clone(&last);
        thread::spawn(move || {
            let lines = errors.into_iter().flat_map(|errors| BufReader::new(errors).lines());
            for line in lines.map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        });
        let (input, output) = (
            input.expect("the child's stream is a pipe"),
            output.expect("the child's stream is a pipe"),
        );
        let process = Some(Process { child, last });
        let mut peer = Peer::new(name, input, output, terms);
        peer.process = process;
        peer.greet(None)
    }

    /// Connects to an agent that listens.
    pub(crate) fn meet(
        name: &str,
        address: &str,
        secret: &Secret,
        terms: &Terms,
    ) -> Result<Peer, FleetError> {
        let failed = |error: io::Error| {
            FleetError::agent(name, format!("cannot be reached at {address}: {error}"))
        };
        let stream = connect(address, terms.patience.answer).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        notice_its_end(&stream).map_err(failed)?;
        let (input, kept) = (stream.try_clone(), stream.try_clone());
        let (input, kept) = (input.map_err(failed)?, kept.map_err(failed)?);
        let mut peer = Peer::new(name, input, stream, terms);
        peer.stream = Some(kept);
        peer.greet(Some(secret))
    }

    fn new(
        name: &str,
        input: impl Read + Send + 'static,
        mut output: impl Write + Send + 'static,
        terms: &Terms,
    ) -> Peer {
        let (sender, said) = channel();
        thread::spawn(move || {
            let mut reader = Reader::new(input, LINE_BYTES);
            loop {
                let next = reader.next();
                let is_last = !matches!(next, Ok(Some(_)));
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        // Use a separate thread, because writing to an agent that hangs may block.
        let (asks, lines) = channel::<Vec<u8>>();
        thread::spawn(move || {
            for line in lines {
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    return;
                }
            }
        });
        Peer {
            name: name.to_owned(),
            machine: Machine::this(), // until the agent reports its machine
            offset: Offset::by(0, 0, u64::MAX),
            asks: Some(asks),
            terms: terms.clone(),
            silent: Waited::new(),
            said,
            process: None,
            stream: None,
        }
    }

    fn greet(mut self, secret: Option<&Secret>) -> Result<Peer, FleetError> {
        let token = secret.map(|secret| secret.0.clone());
        match self.ask(&Ask::Hello { version: VERSION, token })? {
            Say::Hello { version: VERSION, machine } => self.machine = machine,
            Say::Hello { version, .. } => {
                return Err(self.error(format!(
                    "the agent uses protocol version {version} instead of {VERSION}: use the same \
                     farblock for both"
                )));
            }
            other => return Err(self.surprise(&other)),
        }
        self.agree_on_time()?;
        Ok(self)
    }

    /// Measures the clock of the agent.
    pub(crate) fn agree_on_time(&mut self) -> Result<(), FleetError> {
        let mut best = Offset::by(0, 0, u64::MAX);
        for _ in 0..CLOCK_ROUNDS {
            let asked = self.terms.clock.now_ns();
            let Say::Clock { ns } = self.ask(&Ask::Clock)? else {
                return Err(self.error("the agent did not report its time"));
            };
            best = best.better(Offset::by(asked, ns, self.terms.clock.now_ns()));
        }
        self.offset = best;
        Ok(())
    }

    /// Sends a request, and waits for the final answer.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Say, FleetError> {
        self.tell(ask)?;
        self.answer(self.terms.patience.answer)
    }

    /// Sends a request, without waiting for the answer.
    pub(crate) fn tell(&mut self, ask: &Ask) -> Result<(), FleetError> {
        self.silent = Waited::new();
        let sent = self.asks.as_ref().map(|asks| asks.send(lines::line(ask)));
        if sent.is_some_and(|sent| sent.is_ok()) { Ok(()) } else { Err(self.gone()) }
    }

    /// Waits for the final answer to a request. Skips progress messages.
    pub(crate) fn answer(&mut self, patience: Duration) -> Result<Say, FleetError> {
        let mut waited = Waited::new();
        loop {
            let left = patience.saturating_sub(waited.so_far());
            match self.heard(left.min(CANCEL_EVERY))? {
                Some(Say::Progress { .. }) => {}
                Some(say) => return Ok(say),
                None if self.terms.cancel.is_cancelled() => return Err(FleetError::Cancelled),
                None if left > CANCEL_EVERY => {}
                None => return Err(self.silent(patience)),
            }
        }
    }

    /// Waits for the next message. `None` if no message arrives in time. If the agent reports a
    /// failure, returns it as an error.
    pub(crate) fn heard(&mut self, patience: Duration) -> Result<Option<Say>, FleetError> {
        let said = self.said.recv_timeout(patience);
        if said.is_ok() {
            self.silent = Waited::new();
        }
        match said {
            Ok(Ok(Some(Say::Failed { why } | Say::Refused { why }))) => Err(self.error(why)),
            Ok(Ok(Some(say))) => Ok(Some(say)),
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(self.error(format!("its answer is invalid: {error}")))
            }
            Ok(Err(_)) => Err(self.gone()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Returns an error if the agent should send messages, and has sent none for too long.
    pub(crate) fn check_silence(&mut self) -> Result<(), FleetError> {
        match self.silent.so_far() > self.terms.patience.silence {
            true => Err(self.silent(self.terms.patience.silence)),
            false => Ok(()),
        }
    }

    fn silent(&self, time: Duration) -> FleetError {
        let seconds = time.as_secs_f64();
        self.error(format!(
            "it has not answered for {seconds} s: it hangs, or its network is interrupted"
        ))
    }

    /// Checks that the agent answers, even while it works.
    pub(crate) fn is_there(&mut self) -> Result<(), FleetError> {
        // Drop earlier messages, which do not prove that the agent is alive.
        while self.said.try_recv().is_ok() {}
        self.tell(&Ask::Cancel)?;
        let mut waited = Waited::new();
        loop {
            match self.said.recv_timeout(CANCEL_EVERY) {
                Ok(Ok(Some(_))) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if waited.so_far() < self.terms.patience.word => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.silent(self.terms.patience.word)),
                _ => return Err(self.gone()),
            }
        }
    }

    pub(crate) fn error(&self, why: impl Into<String>) -> FleetError {
        FleetError::agent(&self.name, why)
    }

    pub(crate) fn surprise(&self, say: &Say) -> FleetError {
        let word = serde_json::to_value(say).expect("our own types are JSON");
        self.error(format!("it answered {}, which the controller did not request", word["say"]))
    }

    /// Converts a time of the controller's clock to the agent's clock.
    pub(crate) fn theirs(&self, ours_ns: u64) -> u64 {
        self.offset.theirs(ours_ns)
    }

    /// The ID of the agent's process, if this process started it.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Kills the process of the agent, like `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    fn gone(&self) -> FleetError {
        let last = self.process.as_ref().map(|process| {
            let last = process.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.strip_prefix("error: ").unwrap_or(&last).to_owned()
        });
        self.error(match last {
            Some(last) if !last.is_empty() => format!("the agent has exited: {last}"),
            Some(_) => "the agent has exited without a message".to_owned(),
            None => "the agent closed the connection, or has exited".to_owned(),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let Some(process) = &mut self.process else { return };
        // The process exits when its input ends.
        self.asks = None;
        let until = Instant::now() + self.terms.patience.end;
        while matches!(process.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }
}

/// Connects to the first address of a name that answers in time.
fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Makes a connection fail when the machine of the peer disappears.
pub(crate) fn notice_its_end(stream: &TcpStream) -> io::Result<()> {
    let asks = socket2::TcpKeepalive::new().with_time(IDLE_TIME).with_interval(IDLE_ASK_TIME);
    socket2::SockRef::from(stream).set_tcp_keepalive(&asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_shown() {
        let secret = Secret::new(" 0123456789abcdef\n").unwrap();
        assert!(secret.is("0123456789abcdef") && !secret.is("0123456789abcde"));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        for bad in ["", "short", "0123456789abcde f", "0123456789abcdé0"] {
            let why = Secret::new(bad).unwrap_err();
            assert!(bad.is_empty() || !why.contains(bad), "{why}");
        }
    }
}
