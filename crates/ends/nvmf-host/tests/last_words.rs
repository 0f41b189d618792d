//! The last message to a controller when the host closes a connection because of invalid input. It
//! is a terminate PDU, with or without TLS, or a TLS alert. The host sends the message even if the
//! queue's event loop no longer runs: after a failed operation, the user may not poll again.

mod peer;

use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Namespace, Op};
use farblock_host::{Controller, Options, TcpOptions};
use farblock_reactor::{Buffer, EngineKind};
use farblock_secure::{Hash, TlsKey};
use farblock_tls::{ServerKeys, Tls, TlsError};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::tcp::{FatalErrorStatus, LAST_PDU};
use peer::connection::Pdu;
use peer::{Capsule, Connection, Handled, Peer, SUBSYSTEM, Script, engines, options};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// A time limit that is long enough for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A TLS proxy between the host and a scripted target without TLS.
struct Terminator {
    address: SocketAddr,
    /// For each ended connection, the reason that the host reported.
    ends: mpsc::Receiver<TlsError>,
}

/// The state that the threads of a connection share.
struct Both {
    tls: Mutex<Box<dyn Tls>>,
    /// Whether to damage the next record to the host.
    spoils: Arc<AtomicBool>,
    ends: mpsc::Sender<TlsError>,
}

impl Terminator {
    fn new(target: SocketAddr, key: &TlsKey, host: &str, spoils: &Arc<AtomicBool>) -> Terminator {
        let mut keys = ServerKeys::default();
        keys.add(key.clone(), host);
        let (keys, spoils) = (Arc::new(keys), Arc::clone(spoils));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound socket");
        let (sender, ends) = mpsc::channel();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let tls = Mutex::new(farblock_tls::server(Arc::clone(&keys)).expect("OpenSSL"));
                let (spoils, ends) = (Arc::clone(&spoils), sender.clone());
                let both = Both { tls, spoils, ends };
                std::thread::spawn(move || both.carry(socket.expect("a connection"), target));
            }
        });
        Terminator { address, ends }
    }
}

impl Both {
    /// Forwards data until either side disconnects.
    fn carry(self, mut host: TcpStream, target: SocketAddr) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        while !self.tls().handshake().map_err(io::Error::other)? {
            self.say(&mut host, &[])?;
            let count = host.read(&mut buffer)?;
            self.tls().feed(&buffer[..count]);
        }
        self.say(&mut host, &[])?;
        let mut target = TcpStream::connect(target)?;
        let both = Arc::new(self);
        let (down, from, to) = (Arc::clone(&both), target.try_clone()?, host.try_clone()?);
        std::thread::spawn(move || down.carry_down(from, to));
        // First forward the data that arrived with the end of the handshake.
        let mut count = 0;
        loop {
            let mut plain = vec![0; both.tls().openable_bytes(count)];
            let (filled, ended) = both.tls().open(&buffer[..count], &mut plain);
            target.write_all(&plain[..filled])?;
            if let Some(end) = ended {
                let _ = both.ends.send(end);
            }
            count = host.read(&mut buffer)?;
            if count == 0 {
                return target.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn carry_down(&self, mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match from.read(&mut buffer)? {
                0 => return to.shutdown(std::net::Shutdown::Both),
                count => self.say(&mut to, &buffer[..count])?,
            }
        }
    }

    fn say(&self, to: &mut TcpStream, plain: &[u8]) -> io::Result<()> {
        let mut tls = self.tls();
        let mut sealed = vec![0; tls.sealed_bytes(plain.len())];
        let length =
            tls.seal(&mut std::iter::once(plain), &mut sealed).map_err(io::Error::other)?;
        if !plain.is_empty() && self.spoils.swap(false, Ordering::AcqRel) {
            sealed[length - 1] ^= 1;
        }
        to.write_all(&sealed[..length])
    }

    fn tls(&self) -> std::sync::MutexGuard<'_, Box<dyn Tls>> {
        self.tls.lock().expect("not poisoned")
    }
}

struct KeyFile(PathBuf);

impl KeyFile {
    fn new(key: &TlsKey, name: &str) -> KeyFile {
        let name = format!("farblock-last-words-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.create(true).truncate(true).write(true);
        let mut file = options.open(&path).expect("a file");
        writeln!(file, "{}", key.text().as_str()).expect("room");
        KeyFile(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn key() -> TlsKey {
    TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(5)).expect("a suite")
}

fn hostnqn() -> String {
    options().hostnqn.expect("the tests set a host name")
}

fn with_key(file: &KeyFile, engine: EngineKind) -> Options {
    let tcp = TcpOptions { tls_key: Some(file.0.clone()), ..TcpOptions::default() };
    Options { tcp, engine, ..options() }
}

/// Calls the hook for commands of I/O queues except Connect.
fn on_io(
    hook: impl Fn(&mut Connection, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
) -> Script {
    let hook = move |connection: &mut Connection, qid: u16, capsule: &Capsule| {
        if qid == 0 || capsule.sqe.opcode == NvmOpcode::FABRICS.0 {
            return Ok(Handled::No);
        }
        hook(connection, capsule)
    };
    Script { hook: Box::new(hook), ..Script::default() }
}

/// Returns the script of a target that answers an I/O command with data for another command, and a
/// receiver for the host's reaction.
fn at_fault() -> (Script, mpsc::Receiver<String>) {
    let (sender, told) = mpsc::channel();
    let script = on_io(move |connection, _| {
        connection.push(0xfff0, 0, &[1; 512], LAST_PDU)?;
        let said = match connection.pdu() {
            Ok(Pdu::Terminate(term)) => term.status().to_string(),
            other => format!("{other:?}"),
        };
        let _ = sender.send(said);
        Ok(Handled::Close)
    });
    (script, told)
}

/// Reads a block, which fails. The returned driver no longer runs its event loop.
fn fails(address: &str, options: &Options) -> Driver {
    let controller = Controller::connect(address, SUBSYSTEM, options).expect("the host connects");
    let namespace: Arc<dyn Namespace> = Arc::new(controller.namespace(1).expect("a namespace"));
    let mut driver = Driver::with(&namespace, options.engine);
    driver.submit(0, Op::read(0, 1, Buffer::new(512), 1));
    assert_eq!(driver.wait(0, 1)[0].result, Err(BlockError::Disconnected));
    driver
}

/// The controller receives the message even if the host's program then closes the queue, which
/// resets the connection.
#[test]
fn the_host_sends_the_reason_to_a_controller_that_breaks_the_protocol() {
    let wanted = FatalErrorStatus::INVALID_PDU_HEADER_FIELD.to_string();
    for engine in engines() {
        for is_closed in [false, true] {
            let (script, told) = at_fault();
            let peer = Peer::new(script);
            let driver = fails(&peer.address(), &Options { engine, ..options() });
            let driver = if is_closed { None } else { Some(driver) };
            assert_eq!(told.recv_timeout(WAIT_LIMIT).as_ref(), Ok(&wanted), "{engine}");
            drop(driver);
        }
    }
}

#[test]
fn the_host_sends_the_reason_over_tls() {
    let wanted = FatalErrorStatus::INVALID_PDU_HEADER_FIELD.to_string();
    let (key, spoils) = (key(), Arc::new(AtomicBool::new(false)));
    let file = KeyFile::new(&key, "fault");
    for engine in engines() {
        let (script, told) = at_fault();
        let peer = Peer::new(script);
        let terminator = Terminator::new(peer.address, &key, &hostnqn(), &spoils);
        let driver = fails(&terminator.address.to_string(), &with_key(&file, engine));
        assert_eq!(told.recv_timeout(WAIT_LIMIT).as_ref(), Ok(&wanted), "{engine}");
        drop(driver);
    }
}

/// The host answers a damaged record with an alert, on an I/O queue and during the connection
/// attempt.
#[test]
fn the_host_answers_a_damaged_tls_record_with_an_alert() {
    const BAD_RECORD_MAC: &str = "it sent the alert 20";
    let key = key();
    let file = KeyFile::new(&key, "alert");
    for engine in engines() {
        for is_early in [false, true] {
            let spoils = Arc::new(AtomicBool::new(false));
            let spoiling = Arc::clone(&spoils);
            let script = Script {
                hook: Box::new(move |_: &mut Connection, qid, capsule: &Capsule| {
                    let is_connect = capsule.sqe.opcode == NvmOpcode::FABRICS.0;
                    let is_it = if is_early { is_connect } else { qid > 0 && !is_connect };
                    spoiling.fetch_or(is_it, Ordering::AcqRel);
                    Ok(Handled::No)
                }),
                ..Script::default()
            };
            let peer = Peer::new(script);
            let terminator = Terminator::new(peer.address, &key, &hostnqn(), &spoils);
            let (address, options) = (terminator.address.to_string(), with_key(&file, engine));
            let driver = if is_early {
                let refused = Controller::connect(&address, SUBSYSTEM, &options).map(drop);
                let error = refused.expect_err("the answer is damaged").to_string();
                assert!(error.contains("damaged or forged"), "{error}");
                None
            } else {
                Some(fails(&address, &options))
            };
            let end = terminator.ends.recv_timeout(WAIT_LIMIT).expect("the end is reported");
            assert_eq!(end, TlsError::Refused(BAD_RECORD_MAC.to_owned()), "{engine}");
            drop(driver);
        }
    }
}
