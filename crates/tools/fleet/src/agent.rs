//! An agent: shares drives or drives load, as its controller says.
//!
//! ```text
//!  stranger --Hello, right token--> idle --Load, Alone--> loading --done, Cancel--> idle
//!     |                              |  --Verify--> verifying --EndVerify--> idle
//!     +-- else: refused, over        +-- end of input: everything ends
//! ```
//!
//! One thread reads; this one carries out, so that a load can be called off while it runs.

use crate::clock::Clock;
use crate::limits::{FIRST_LINE_BYTES, LINE_BYTES, WRONG_TOKEN_TIME};
use crate::lines::{self, Reader};
use crate::load::{self, Clients};
use crate::message::{self, Ask, Say, VERSION};
use crate::peer::Secret;
use crate::storage::{Allowed, Storage};
use crate::verify::Verify;
use farblock_bench::cpu::{CpuSource, ThisProcess};
use farblock_bench::{Cancel, Machine};
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Serves one controller until it is gone. With a `secret` it has to know that. It may have those
/// drives shared that are `allowed`.
///
/// `greeted` is called when it is let in, to give it the time that a stranger has not.
///
/// # Errors
/// If the streams fail, or bring what is no message.
pub fn serve<R: Read + Send>(
    input: R,
    mut output: impl Write,
    secret: Option<&Secret>,
    allowed: Allowed,
    greeted: impl FnOnce(),
) -> io::Result<()> {
    let mut reader = Reader::new(input, FIRST_LINE_BYTES);
    let Some(first) = reader.next::<Ask>()? else { return Ok(()) };
    if let Some(why) = refusal(&first, secret) {
        // Guessing is to take long.
        thread::sleep(WRONG_TOKEN_TIME);
        return lines::write(&mut output, &Say::Refused { why });
    }
    greeted();
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
        Agent::new(asks, output, allowed).run()
    })
}

fn refusal(first: &Ask, secret: Option<&Secret>) -> Option<String> {
    let Ask::Hello { version, token } = first else {
        return Some("the first message has to be a greeting".to_owned());
    };
    let is_known = match secret {
        Some(secret) => token.as_deref().is_some_and(|token| secret.is(token)),
        None => true,
    };
    if !is_known {
        return Some("the token is wrong".to_owned());
    }
    let same = *version == VERSION;
    (!same).then(|| format!("it speaks version {VERSION}, and the controller {version}"))
}

struct Agent<W> {
    clock: Clock,
    asks: Receiver<io::Result<Option<Ask>>>,
    output: W,
    storage: Storage,
    clients: Clients,
    verify: Option<Verify>,
}

impl<W: Write> Agent<W> {
    fn new(asks: Receiver<io::Result<Option<Ask>>>, output: W, allowed: Allowed) -> Self {
        let (clock, clients) = (Clock::new(), Clients::default());
        let storage = Storage::new(allowed);
        Agent { clock, asks, output, storage, clients, verify: None }
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let Ok(next) = self.asks.recv() else { return Ok(()) };
            let Some(ask) = next? else { return Ok(()) };
            let say = self.answer(ask).unwrap_or_else(|why| Say::Failed { why });
            lines::write(&mut self.output, &say)?;
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<Say, String> {
        match ask {
            Ask::Hello { .. } => Err("it was greeted already".to_owned()),
            Ask::Clock => Ok(Say::Clock { ns: self.clock.now_ns() }),
            Ask::Share(share) => self.storage.share(&share).map(|address| Say::Sharing { address }),
            Ask::Unshare => self.storage.unshare().map(|()| Say::Done),
            Ask::Alone { drive, load } => {
                let drive = self.storage.drive(drive)?;
                self.load(&load, |load, cancel, tick| load::on_one(&drive, load, cancel, tick))
            }
            Ask::Meter { start_ns, end_ns } => self.meter(start_ns, end_ns),
            Ask::Connect { clients } => self.clients.connect(&clients).map(|()| Say::Done),
            Ask::Load(wanted) => {
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
                let verify = self.verify.as_ref().ok_or("it verifies nothing")?;
                Ok(Say::Looked(verify.look()))
            }
            Ask::EndVerify => {
                let verify = self.verify.take().ok_or("it verifies nothing")?;
                verify.end().map(Say::Looked)
            }
        }
    }

    /// Runs a load on a thread of its own, tells how fast it is, and heeds what calls it off.
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
                    Ok(Ok(Some(_))) => {} // nothing else is asked meanwhile
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

    /// Unless the controller says something, or is gone.
    fn sleep(&self, until: Instant) -> Result<(), String> {
        let left = until.saturating_duration_since(Instant::now());
        match self.asks.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err("it was called off".to_owned()),
        }
    }

    fn meter(&self, start_ns: u64, end_ns: u64) -> Result<Say, String> {
        let at = |ns| self.clock.instant(ns).ok_or("a time that never comes".to_owned());
        let (start, end) = (at(start_ns)?, at(end_ns)?);
        self.sleep(start)?;
        let before = ThisProcess.cpu_time();
        self.sleep(end)?;
        let used = ThisProcess.cpu_time().saturating_sub(before);
        Ok(Say::Used { ns: u64::try_from(used.as_nanos()).unwrap_or(u64::MAX) })
    }
}

/// Between two words on how fast a load is.
const TELL_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn said(asks: &[Ask], secret: Option<&Secret>) -> Vec<Say> {
        let mut input = Vec::new();
        asks.iter().for_each(|ask| lines::write(&mut input, ask).unwrap());
        let mut output = Vec::new();
        serve(input.as_slice(), &mut output, secret, Allowed::All, || {}).unwrap();
        let mut reader = Reader::new(output.as_slice(), LINE_BYTES);
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn hello(token: Option<&str>) -> Ask {
        Ask::Hello { version: VERSION, token: token.map(str::to_owned) }
    }

    #[test]
    fn strangers_are_refused() {
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
    fn what_cannot_be_done_is_said_and_the_next_is_answered() {
        let share = crate::message::Share {
            nqn: "nqn.2026-11.org.farblock:fleet".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            drives: vec!["mem:nothing".to_owned()],
            sets: 0,
            block_size: 512,
            iscsi: false,
        };
        let asks =
            [hello(None), Ask::Look, Ask::EndVerify, Ask::Share(share), hello(None), Ask::Clock];
        let said = said(&asks, None);
        let failed = said.iter().filter(|say| matches!(say, Say::Failed { .. })).count();
        assert_eq!((failed, said.len()), (4, 6), "{said:?}");
        assert!(matches!(said[5], Say::Clock { .. }));
    }
}
