//! An agent: shares drives as a target, or generates load as hosts, for the fleet's controller.
//!
//! ```text
//!  new peer --Hello, right token--> idle --Load, Alone--> loading --done, Cancel--> idle
//!     |                              |  --Verify--> verifying --EndVerify--> idle
//!     +-- else: refused, over        +-- end of input: everything ends
//! ```
//!
//! One thread reads requests, and another executes them. So the controller can cancel a load while
//! the load runs.

use crate::clock::Clock;
use crate::descriptors;
use crate::limits::{
    CONTROLLER_SILENCE_TIME, FIRST_LINE_BYTES, GUESTS, LINE_BYTES, WRONG_TOKEN_TIME,
};
use crate::lines::{self, Reader};
use crate::load::{self, Clients};
use crate::memory::{self, Memory};
use crate::message::{self, Ask, Say, VERSION};
use crate::peer::Secret;
use crate::storage::{Allowed, Sharing, Storage};
use crate::verify::{self, Verify};
use crate::vm::Offered;
use farblock_bench::cpu::{CpuSource, ThisProcess};
use farblock_bench::{Cancel, Machine};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Serves one controller until it disconnects. If there is a `secret`, the controller must send it.
/// The controller may make the agent share only the `allowed` drives, and use at most this much
/// `memory`.
///
/// Calls `greeted` when the agent has admitted the controller, so that the caller can remove the
/// time limit for peers without a token.
///
/// # Errors
/// A stream fails, or a message is invalid.
pub fn serve<R: Read + Send>(
    input: R,
    mut output: impl Write,
    secret: Option<&Secret>,
    allowed: Allowed,
    memory: Memory,
    greeted: impl FnOnce(),
) -> io::Result<()> {
    let mut reader = Reader::new(input, FIRST_LINE_BYTES);
    let Some(first) = reader.next::<Ask>()? else { return Ok(()) };
    if let Some(why) = refusal(&first, secret) {
        // Wait, so that guessing tokens takes long.
        thread::sleep(WRONG_TOKEN_TIME);
        return lines::write(&mut output, &Say::Refused { why });
    }
    greeted();
    descriptors::raise();
    reader.trust(LINE_BYTES);
    lines::write(&mut output, &Say::Hello { version: VERSION, machine: Machine::this() })?;
    let (sender, asks) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            loop {
                let next = reader.next();
                let is_last = !matches!(next, Ok(Some(_)));
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        Agent::new(asks, output, allowed, memory).run()
    })
}

fn refusal(first: &Ask, secret: Option<&Secret>) -> Option<String> {
    let Ask::Hello { version, token } = first else {
        return Some("the first message must be a greeting".to_owned());
    };
    let is_known = match secret {
        Some(secret) => token.as_deref().is_some_and(|token| secret.is(token)),
        None => true,
    };
    if !is_known {
        return Some("the token is wrong".to_owned());
    }
    let same = *version == VERSION;
    (!same).then(|| {
        format!(
            "the agent uses protocol version {VERSION}, but the controller {version}: use the same \
             farblock for both"
        )
    })
}

struct Agent<W> {
    clock: Clock,
    asks: Receiver<io::Result<Option<Ask>>>,
    output: W,
    storage: Storage,
    memory: Memory,
    clients: Clients,
    /// The disks that the agent offers to virtual machines.
    offered: Vec<Offered>,
    verify: Option<Verify>,
    /// The result of a verification that the agent stopped because its controller sent no messages.
    ended: Option<String>,
    /// The maximum time without a message from the controller during a verification.
    silence: Duration,
}

impl<W: Write> Agent<W> {
    fn new(
        asks: Receiver<io::Result<Option<Ask>>>,
        output: W,
        allowed: Allowed,
        memory: Memory,
    ) -> Self {
        let (clock, clients) = (Clock::new(), Clients::default());
        let storage = Storage::new(allowed, memory.clone());
        let offered = Vec::new();
        let (verify, ended, silence) = (None, None, CONTROLLER_SILENCE_TIME);
        Agent { clock, asks, output, storage, memory, clients, offered, verify, ended, silence }
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let Some(ask) = self.next()? else { return Ok(()) };
            let say = self.answer(ask).unwrap_or_else(|why| Say::Failed { why });
            lines::write(&mut self.output, &say)?;
        }
    }

    /// Waits for the next request. During a verification, waits only for the time limit, and then
    /// stops the verification.
    fn next(&mut self) -> io::Result<Option<Ask>> {
        if self.verify.is_some() {
            match self.asks.recv_timeout(self.silence) {
                Ok(next) => return next,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    self.verify = None;
                    self.ended = Some(format!(
                        "the controller sent nothing for {} s, so the agent stopped its \
                         verification",
                        self.silence.as_secs_f64()
                    ));
                }
            }
        }
        self.asks.recv().unwrap_or(Ok(None))
    }

    fn verifies(&self) -> String {
        self.ended.clone().unwrap_or_else(|| "the agent verifies nothing".to_owned())
    }

    fn answer(&mut self, ask: Ask) -> Result<Say, String> {
        match ask {
            Ask::Hello { .. } => Err("the controller already sent a greeting".to_owned()),
            Ask::Clock => Ok(Say::Clock { ns: self.clock.now_ns() }),
            Ask::Share(share) => self.storage.share(&share).map(Sharing::said),
            Ask::Unshare => self.storage.unshare().map(|()| Say::Done),
            Ask::Alone { drive, load } => {
                let drive = self.storage.drive(drive)?;
                let _held = self.memory.take(memory::of_load(&load, 1), LOAD)?;
                self.load(&load, |load, cancel, tick| load::on_one(&drive, load, cancel, tick))
            }
            Ask::Meter { start_ns, end_ns, process } => self.meter(start_ns, end_ns, process),
            Ask::Connect { clients } => {
                self.clients.connect(&clients, &self.memory).map(|()| Say::Done)
            }
            Ask::Offer { clients } => self.offer(&clients),
            Ask::Load(wanted) => {
                let bytes = memory::of_load(&wanted, self.clients.count());
                let _held = self.memory.take(bytes, LOAD)?;
                let clients = std::mem::take(&mut self.clients);
                let clock = self.clock;
                let said = self.load(&wanted, |load, cancel, tick| {
                    load::on_all(&clients, load, clock, cancel, tick)
                });
                self.clients = clients;
                said
            }
            Ask::Cancel => Ok(Say::Done),
            Ask::Verify { clients, writers } => {
                self.verify = Some(Verify::start(&clients, writers)?);
                Ok(Say::Done)
            }
            Ask::Look => {
                let verify = self.verify.as_ref().ok_or_else(|| self.verifies())?;
                Ok(Say::Looked(verify.look()))
            }
            Ask::EndVerify => {
                let verify = self.verify.take().ok_or_else(|| self.verifies())?;
                verify.end().map(Say::Looked)
            }
        }
    }

    fn offer(&mut self, clients: &[message::Client]) -> Result<Say, String> {
        self.offered.clear();
        if clients.len() > GUESTS as usize {
            return Err(format!("an agent has disks for at most {GUESTS} virtual machines"));
        }
        let offered = clients.iter().map(|client| {
            let disk = verify::connect(client).map_err(|why| format!("{}: {why}", client.url))?;
            Offered::new(Arc::new(disk), client.queues)
        });
        self.offered = offered.collect::<Result<_, _>>()?;
        Ok(Say::Offered { sockets: self.offered.iter().map(Offered::socket).collect() })
    }

    /// Runs a load on its own thread, reports its speed, and obeys a cancel.
    fn load(
        &mut self,
        load: &message::Load,
        run: impl FnOnce(&message::Load, &Cancel, &load::Tick) -> Result<message::Measured, String>
        + Send,
    ) -> Result<Say, String> {
        let (cancel, tick) = (Cancel::new(), load::Tick::default());
        thread::scope(|scope| {
            let running = scope.spawn(|| run(load, &cancel, &tick));
            while !running.is_finished() {
                thread::park_timeout(TELL_EVERY);
                match self.asks.try_recv() {
                    Err(TryRecvError::Empty) => {}
                    Ok(Ok(Some(Ask::Cancel))) | Err(TryRecvError::Disconnected) => cancel.cancel(),
                    Ok(Ok(Some(_))) => {} // the controller sends no other request meanwhile
                    Ok(Ok(None) | Err(_)) => cancel.cancel(),
                }
                if lines::write(&mut self.output, &Say::Progress { iops: tick.iops() }).is_err() {
                    cancel.cancel();
                }
            }
            match running.join() {
                Ok(measured) => measured.map(Say::Measured),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Sends progress messages at intervals until the given time. Returns an error if the
    /// controller sends a message or disconnects before.
    fn sleep(&mut self, until: Instant) -> Result<(), String> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.asks.recv_timeout(left.min(TELL_EVERY)) {
                Err(RecvTimeoutError::Timeout) if left <= TELL_EVERY => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
                _ => return Err("the measurement was cancelled".to_owned()),
            }
            let word = lines::write(&mut self.output, &Say::Progress { iops: 0.0 });
            word.map_err(|error| error.to_string())?;
        }
    }

    fn meter(&mut self, start_ns: u64, end_ns: u64, process: Option<u32>) -> Result<Say, String> {
        let meter: Box<dyn CpuSource> = match process {
            None => Box::new(ThisProcess),
            Some(process) => other(process)
                .map_err(|error| format!("processor time of process {process}: {error}"))?,
        };
        let at = |ns| self.clock.instant(ns).ok_or("a time is out of range".to_owned());
        let (start, end) = (at(start_ns)?, at(end_ns)?);
        self.sleep(start)?;
        let before = meter.cpu_time();
        self.sleep(end)?;
        let used = meter.cpu_time().saturating_sub(before);
        Ok(Say::Used { ns: u64::try_from(used.as_nanos()).unwrap_or(u64::MAX) })
    }
}

#[cfg(any(target_os = "linux", windows))]
fn other(process: u32) -> io::Result<Box<dyn CpuSource>> {
    Ok(Box::new(farblock_bench::cpu::OtherProcess::new(process)?))
}

#[cfg(not(any(target_os = "linux", windows)))]
fn other(_: u32) -> io::Result<Box<dyn CpuSource>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The words for a load's buffers in an error about memory.
const LOAD: &str = "the load's buffers";
/// The interval of the reports of a load's speed.
const TELL_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn said(asks: &[Ask], secret: Option<&Secret>) -> Vec<Say> {
        let mut input = Vec::new();
        asks.iter().for_each(|ask| lines::write(&mut input, ask).unwrap());
        let mut output = Vec::new();
        let memory = Memory::limited(1 << 20);
        serve(input.as_slice(), &mut output, secret, Allowed::All, memory, || {}).unwrap();
        let mut reader = Reader::new(output.as_slice(), LINE_BYTES);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn hello(token: Option<&str>) -> Ask {
        Ask::Hello { version: VERSION, token: token.map(str::to_owned) }
    }

    #[test]
    fn peers_without_the_token_or_version_are_refused() {
        let secret = Secret::new("0123456789abcdef").unwrap();
        let why = |ask: Ask| match said(&[ask, Ask::Clock], Some(&secret)).as_slice() {
            [Say::Refused { why }] => why.clone(),
            other => panic!("{other:?}"),
        };
        assert!(why(hello(None)).contains("token"));
        assert!(why(hello(Some("0123456789abcdeF"))).contains("token"));
        assert!(why(Ask::Clock).contains("greeting"));
        let other = Ask::Hello { version: 99, token: Some("0123456789abcdef".to_owned()) };
        assert!(why(other).contains("version"));
        let known = said(&[hello(Some("0123456789abcdef")), Ask::Clock], Some(&secret));
        assert!(matches!(known.as_slice(), [Say::Hello { .. }, Say::Clock { .. }]), "{known:?}");
    }

    #[test]
    fn a_failed_request_is_reported_and_the_next_one_answered() {
        let share = crate::message::Share {
            nqn: "nqn.2026-11.org.farblock:fleet".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            more: Vec::new(),
            drives: vec!["mem:nothing".to_owned()],
            sets: 0,
            by_node: false,
            block_size: 512,
            controller_ids: None,
            iscsi: false,
        };
        let asks =
            [hello(None), Ask::Look, Ask::EndVerify, Ask::Share(share), hello(None), Ask::Clock];
        let said = said(&asks, None);
        let failed = said.iter().filter(|say| matches!(say, Say::Failed { .. })).count();
        assert_eq!((failed, said.len()), (4, 6), "{said:?}");
        assert!(matches!(said[5], Say::Clock { .. }));
    }

    /// Makes the agent share a target in memory. Returns a verify request for its client.
    fn verifying(agent: &mut Agent<Vec<u8>>) -> Ask {
        let share = message::Share {
            nqn: "nqn.2026-11.org.farblock:fleet".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            more: Vec::new(),
            drives: vec!["mem:1MiB".to_owned()],
            sets: 0,
            by_node: false,
            block_size: 512,
            controller_ids: None,
            iscsi: false,
        };
        let url = agent.storage.share(&share).unwrap().namespaces.remove(0).url;
        let client = message::Client {
            hostnqn: "nqn.2026-11.org.farblock:host".to_owned(),
            url,
            queues: 1,
            depth: 2,
            part: [0, 1],
            vm: None,
            others: Vec::new(),
        };
        Ask::Verify { clients: vec![client], writers: 1 }
    }

    #[test]
    fn an_agent_stops_writing_when_its_controller_hangs() {
        let (sender, asks) = channel();
        let mut agent = Agent::new(asks, Vec::new(), Allowed::All, Memory::limited(1 << 20));
        agent.silence = Duration::from_millis(200);
        let ask = verifying(&mut agent);
        assert_eq!(agent.answer(ask), Ok(Say::Done));
        sender.send(Ok(Some(Ask::Look))).unwrap();
        let look = agent.next().unwrap().unwrap();
        assert!(matches!(agent.answer(look), Ok(Say::Looked(_))));
        let goes_on = thread::spawn(move || {
            thread::sleep(Duration::from_secs(1));
            sender.send(Ok(Some(Ask::Look))).unwrap();
        });
        let look = agent.next().unwrap().unwrap();
        let why = agent.answer(look).unwrap_err();
        assert!(why.contains("the controller sent nothing for 0.2 s"), "{why}");
        assert!(agent.verify.is_none());
        goes_on.join().unwrap();
        assert_eq!(agent.next().unwrap(), None, "a request after the end of the stream");
    }
}
