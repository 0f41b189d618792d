//! An agent, as the controller has it.

use crate::clock::{Clock, Offset};
use crate::error::FleetError;
use crate::limits::{ANSWER_TIME, CLOCK_ROUNDS, END_TIME, LINE_BYTES, TOKEN_LEAST, WORD_TIME};
use crate::lines::{self, Reader};
use crate::message::{Ask, Say, VERSION};
use farblock_bench::Machine;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// A token that controller and agent have.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The first line of a file, without spaces around.
    ///
    /// # Errors
    /// Why it is none, as the end of a sentence; never with a part of it.
    pub fn new(text: &str) -> Result<Secret, String> {
        let token = text.trim();
        if token.len() < TOKEN_LEAST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "a token is one line of at least {TOKEN_LEAST} letters, digits and signs \
                 (openssl rand -hex 16 makes one)"
            ));
        }
        Ok(Secret(token.to_owned()))
    }

    /// Whether this is it. It takes as long wherever they differ.
    pub(crate) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// An agent that was greeted. Dropping it ends a process that was started for it.
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    pub(crate) offset: Offset,
    output: Box<dyn Write + Send>,
    said: Receiver<io::Result<Option<Say>>>,
    process: Option<Process>,
    /// To be closed in the end: the thread that reads has it, too.
    stream: Option<TcpStream>,
}

struct Process {
    child: Child,
    /// The last line on its standard error.
    last: Arc<Mutex<String>>,
}

impl Peer {
    /// Starts a process that speaks over its standard streams.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        clock: Clock,
    ) -> Result<Peer, FleetError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the controller, which ends them.
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
        let (input, output) = (input.expect("it is piped"), output.expect("it is piped"));
        let process = Some(Process { child, last });
        Peer::greet(name, input, Box::new(output), process, None, clock)
    }

    /// Connects to an agent that listens.
    pub(crate) fn meet(
        name: &str,
        address: &str,
        secret: &Secret,
        clock: Clock,
    ) -> Result<Peer, FleetError> {
        let failed = |error: io::Error| {
            FleetError::agent(name, format!("cannot be reached at {address}: {error}"))
        };
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let (input, kept) = (stream.try_clone(), stream.try_clone());
        let (input, kept) = (input.map_err(failed)?, kept.map_err(failed)?);
        let mut peer = Peer::greet(name, input, Box::new(stream), None, Some(secret), clock)?;
        peer.stream = Some(kept);
        Ok(peer)
    }

    fn greet(
        name: &str,
        input: impl Read + Send + 'static,
        output: Box<dyn Write + Send>,
        process: Option<Process>,
        secret: Option<&Secret>,
        clock: Clock,
    ) -> Result<Peer, FleetError> {
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
        let machine = Machine::this(); // until it says what it has
        let offset = Offset::by(0, 0, u64::MAX);
        let (name, stream) = (name.to_owned(), None);
        let mut peer = Peer { name, machine, offset, output, said, process, stream };
        let token = secret.map(|secret| secret.0.clone());
        match peer.ask(&Ask::Hello { version: VERSION, token })? {
            Say::Hello { version: VERSION, machine } => peer.machine = machine,
            Say::Hello { version, .. } => {
                return Err(peer.error(format!("it speaks version {version}, and not {VERSION}")));
            }
            other => return Err(peer.surprise(&other)),
        }
        for _ in 0..CLOCK_ROUNDS {
            let asked = clock.now_ns();
            let Say::Clock { ns } = peer.ask(&Ask::Clock)? else {
                return Err(peer.error("it does not know what time it is"));
            };
            peer.offset = peer.offset.better(Offset::by(asked, ns, clock.now_ns()));
        }
        Ok(peer)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Say, FleetError> {
        self.tell(ask)?;
        self.answer(ANSWER_TIME)
    }

    /// Only asks.
    pub(crate) fn tell(&mut self, ask: &Ask) -> Result<(), FleetError> {
        lines::write(&mut self.output, ask).map_err(|_| self.gone())
    }

    /// The last answer to what was asked; progress is passed over.
    pub(crate) fn answer(&mut self, patience: Duration) -> Result<Say, FleetError> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.heard(left)? {
                Some(Say::Progress { .. }) => {}
                Some(say) => return Ok(say),
                None => {
                    let patience = patience.as_secs();
                    return Err(self.error(format!("it has not answered for {patience} s")));
                }
            }
        }
    }

    /// The next word, if there is one in time. A failure is an error.
    pub(crate) fn heard(&mut self, patience: Duration) -> Result<Option<Say>, FleetError> {
        match self.said.recv_timeout(patience) {
            Ok(Ok(Some(Say::Failed { why } | Say::Refused { why }))) => Err(self.error(why)),
            Ok(Ok(Some(say))) => Ok(Some(say)),
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
            Ok(Err(error)) => Err(self.error(format!("it said what is no answer: {error}"))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Whether it says anything at all, whatever it was about to do.
    pub(crate) fn is_there(&mut self) -> Result<(), FleetError> {
        self.tell(&Ask::Cancel)?;
        match self.said.recv_timeout(WORD_TIME) {
            Ok(Ok(Some(_))) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.error(format!("it has not answered for {} s", WORD_TIME.as_secs())))
            }
            _ => Err(self.gone()),
        }
    }

    pub(crate) fn error(&self, why: impl Into<String>) -> FleetError {
        FleetError::agent(&self.name, why)
    }

    pub(crate) fn surprise(&self, say: &Say) -> FleetError {
        let word = serde_json::to_value(say).expect("our own types are JSON");
        self.error(format!("it answered {}, which was not asked for", word["say"]))
    }

    /// When a time of ours is by its clock.
    pub(crate) fn theirs(&self, ours_ns: u64) -> u64 {
        self.offset.theirs(ours_ns)
    }

    /// The number of the process that was started for it.
    pub(crate) fn process(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// As `kill -9` does.
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
            Some(last) if !last.is_empty() => format!("the agent has ended: {last}"),
            Some(_) => "the agent has ended without a word".to_owned(),
            None => "the agent closed the connection, or is gone".to_owned(),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let Some(process) = &mut self.process else { return };
        // The end of its input is its end.
        self.output = Box::new(io::sink());
        let until = Instant::now() + END_TIME;
        while matches!(process.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }
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
