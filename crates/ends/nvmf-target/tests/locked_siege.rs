//! Peers without keys (strangers) attack a target whose hosts have keys. Each stranger stops after
//! one of the messages, sends a wrong proof, starts TLS, or reconnects repeatedly. The hosts can
//! still connect. Afterwards the target frees the memory that the strangers made it hold.
//!
//! This command measures the figures in docs/security.md:
//!
//! ```text
//! SIEGE_STRANGERS=20000 \
//!     cargo test -p farblock-target --test locked_siege -- --nocapture without_keys
//! ```
//!
//! Without SIEGE_STRANGERS, 4,000 strangers attack. They are still far more than the target can
//! authenticate at once. The smaller attack takes a fifth of the processor time.
#![cfg(target_os = "linux")]

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_host::{Controller, HostId, Options, TcpOptions};
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_secure::{Hash, TlsKey, TlsPsk};
use farblock_target::{Export, HostKeys, Subsystem, Target, TargetConfig, TlsPolicy};
use farblock_wire::auth::{
    ChapMessage, GroupId, HashId, MessageType, Negotiate, ProtocolDescriptor, ProtocolId, Reply,
};
use farblock_wire::fabrics::AuthenticationCommand;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe};
use rig::besieged::{self, Besieged};
use rig::keys::{KeyFile, secret};
use rig::stranger::{MIB, NQN, Peer, WAIT_LIMIT, from, host, is_open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the test that runs the target's process.
const SERVE: &str = "serve_until_the_input_ends";
/// The number of addresses of strangers. It is so high that no address reaches the limit of
/// half-open connections per address.
const ADDRESSES: usize = 200;
/// The default number of strangers of the larger attack. `SIEGE_STRANGERS=n` sets another.
const STRANGERS: usize = 4_000;
const STRANGERS_PER_THREAD: usize = 40;
const MOST_THREADS: usize = 96;
/// If this many connections are open, the strangers drop those that the target has closed before
/// they open more.
const DESCRIPTORS: usize = 18_000;
/// A stranger waits at most this long for the target.
const BRIEFLY: Duration = Duration::from_millis(200);
/// The time within which each stranger must have connected once.
const ALL_KNOCK: Duration = Duration::from_secs(300);
/// Each host with a key connects this many times during the attack.
const VISITS: usize = 6;
/// The host whose TLS key strangers do not have.
const TLS_HOST: usize = 2_000_000;
/// The seed of the key of [`TLS_HOST`]. Strangers try another key.
const TLS_SEED: u8 = 1;

#[derive(Clone, Copy, Debug)]
enum StrangerKind {
    /// Connects to the port, and then stays silent.
    Silent,
    /// Initializes the connection with an ICReq.
    Initialized,
    /// Connects an admin queue with the host's name.
    Connected,
    /// Makes the target compute with the largest DH group, without waiting for the result.
    Negotiating,
    /// Like `Negotiating`, but with the smallest group.
    Cheap,
    /// Waits for the target's challenge.
    Challenged,
    /// Replies to the challenge with a guess, without waiting for the result.
    Guessing,
    /// Waits until the target refuses the guess.
    Refused,
    HalfHello,
    /// Sends a ClientHello for a key that the stranger does not have.
    Hello,
    /// Connects and disconnects at once.
    Hasty,
}

const KINDS: [StrangerKind; 11] = [
    StrangerKind::Silent,
    StrangerKind::Initialized,
    StrangerKind::Connected,
    StrangerKind::Negotiating,
    StrangerKind::Cheap,
    StrangerKind::Challenged,
    StrangerKind::Guessing,
    StrangerKind::Refused,
    StrangerKind::HalfHello,
    StrangerKind::Hello,
    StrangerKind::Hasty,
];

/// Serializes the tests, since each needs all processors and descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises the descriptor limit of this process and of the target that it starts.
fn raise_descriptors() {
    const WANTED: u64 = DESCRIPTORS as u64 + 1000;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    assert!(most >= WANTED, "this test needs {WANTED} descriptors, and ulimit -Hn is {most}");
    if limit.current.is_some_and(|now| now < WANTED) {
        let raised = Rlimit { current: Some(WANTED), ..limit };
        setrlimit(Resource::Nofile, raised).expect("within the hard limit");
    }
}

fn tls_key(seed: u8) -> TlsKey {
    let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(seed));
    key.expect("a suite")
}

/// The process under attack. Only the other tests of this file start it.
#[test]
#[ignore = "the other tests run this in a separate process"]
fn serve_until_the_input_ends() {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.keys.insert(host(0), HostKeys::new(secret(1)));
    subsystem.keys.insert(host(TLS_HOST), HostKeys::of_tls(vec![tls_key(TLS_SEED)]));
    let namespace = Arc::new(Mem::new(512, MIB as u64).expect("a size"));
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity: "d".to_owned() });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![rig::any()],
        max_connections: besieged::max_connections(),
        tls: Some(TlsPolicy::Allowed),
        ..TargetConfig::default()
    };
    besieged::serve(&Target::start(&config).expect("the target starts"));
}

fn negotiate(group: GroupId) -> Vec<u8> {
    let head = Negotiate { t_id: 1.into(), napd: 1, ..Negotiate::zeroed() };
    let mut offer = ProtocolDescriptor {
        auth_id: ProtocolId::DH_HMAC_CHAP.0,
        halen: 1,
        dhlen: 1,
        ..ProtocolDescriptor::zeroed()
    };
    (offer.hashes[0], offer.groups[0]) = (HashId::SHA256.0, group.0);
    [head.as_bytes(), offer.as_bytes()].concat()
}

/// Returns a wrong reply to the challenge, which costs the target one more computation.
fn guess() -> Vec<u8> {
    let (hash_bytes, value_bytes) = (32, 1024_u16);
    let head = Reply {
        auth_type: MessageType::DH_HMAC_CHAP.0,
        auth_id: ChapMessage::REPLY.0,
        t_id: 1.into(),
        hl: hash_bytes,
        dhvlen: value_bytes.into(),
        ..Reply::zeroed()
    };
    let (proof, challenge) = ([5; 32], [0; 32]);
    [head.as_bytes(), &proof, &challenge, &[7; 1024]].concat()
}

fn send(peer: &mut Peer, message: &[u8]) -> bool {
    let length = message.len() as u32;
    let sqe = AuthenticationCommand::send(0, length).to_sqe();
    let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, length), ..sqe };
    peer.send(sqe, Transfer::InCapsule(length), message)
}

/// Receives the target's next message, if the target has accepted the last one.
fn receive(peer: &mut Peer) -> Option<()> {
    peer.status()?.0.is_success().then_some(())?;
    let length = 2048;
    let sqe = AuthenticationCommand::receive(0, length).to_sqe();
    let sqe = Sqe { dptr: SglDescriptor::transport(length), ..sqe };
    peer.send(sqe, Transfer::FromController(length), &[]).then_some(())?;
    peer.status()?.0.is_success().then_some(())
}

/// Runs a stranger of this kind on its own connection, as far as the target permits. The connection
/// stays open while the returned stream exists.
fn knock(kind: StrangerKind, stream: TcpStream) -> Option<TcpStream> {
    match kind {
        StrangerKind::Silent => return Some(stream),
        StrangerKind::Hasty => return None,
        StrangerKind::HalfHello | StrangerKind::Hello => return hello(kind, stream),
        _ => {}
    }
    let mut peer = Peer::try_on(stream)?;
    peer.stream.set_read_timeout(Some(BRIEFLY)).ok()?;
    if matches!(kind, StrangerKind::Initialized) {
        return Some(peer.stream);
    }
    peer.try_connect(NQN, &host(0), 0, 0xffff)?;
    let stays = match kind {
        StrangerKind::Connected => true,
        StrangerKind::Negotiating => send(&mut peer, &negotiate(GroupId::FFDHE8192)),
        StrangerKind::Cheap => send(&mut peer, &negotiate(GroupId::FFDHE2048)),
        // If other strangers keep the target busy, a stranger stops here.
        StrangerKind::Challenged => {
            let _ = send(&mut peer, &negotiate(GroupId::FFDHE8192)) && receive(&mut peer).is_some();
            true
        }
        _ => {
            let is_challenged =
                send(&mut peer, &negotiate(GroupId::FFDHE8192)) && receive(&mut peer).is_some();
            if is_challenged && send(&mut peer, &guess()) && matches!(kind, StrangerKind::Refused) {
                let _ = receive(&mut peer);
            }
            true
        }
    };
    stays.then_some(peer.stream)
}

fn hello(kind: StrangerKind, mut stream: TcpStream) -> Option<TcpStream> {
    let psk: TlsPsk = tls_key(2).psks(&host(TLS_HOST), NQN).swap_remove(0);
    let mut tls = farblock_tls::client(psk).expect("OpenSSL is there");
    assert_eq!(tls.handshake(), Ok(false));
    let mut bytes = vec![0; tls.output_bytes()];
    let length = tls.output(&mut bytes);
    let part = if matches!(kind, StrangerKind::HalfHello) { length / 2 } else { length };
    stream.write_all(&bytes[..part]).ok()?;
    Some(stream)
}

/// The state that the threads of all strangers share.
struct Crowd {
    address: SocketAddr,
    strangers: usize,
    threads: usize,
    /// The number of threads whose strangers have all connected once.
    stand: AtomicUsize,
    begun: AtomicUsize,
    is_over: AtomicBool,
}

impl Crowd {
    /// Connects the strangers of one thread, and reconnects each one that the target has closed.
    fn besiege(&self, part: usize) {
        let numbers: Vec<usize> = (part..self.strangers).step_by(self.threads).collect();
        let mut alive: Vec<Option<TcpStream>> = numbers.iter().map(|_| None).collect();
        let mut is_first = true;
        while !self.is_over.load(Ordering::Relaxed) {
            for (at, &number) in numbers.iter().enumerate() {
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                if alive[at].as_ref().is_none_or(|stream| !is_open(stream)) {
                    alive[at] = None;
                    self.let_go(&mut alive);
                    alive[at] = self.knock(number);
                }
            }
            if std::mem::take(&mut is_first) {
                self.stand.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// When descriptors run short, drops the connections that the target has closed.
    fn let_go(&self, streams: &mut [Option<TcpStream>]) {
        if streams.iter().flatten().count() >= DESCRIPTORS / self.threads {
            for stream in streams {
                *stream = stream.take().filter(is_open);
            }
        }
    }

    fn knock(&self, number: usize) -> Option<TcpStream> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let own = number % ADDRESSES;
        let stream = from(1, 1 + own as u8, self.address);
        knock(KINDS[(number + number / ADDRESSES) % KINDS.len()], stream)
    }
}

/// The duration of one visit, and the number of refusals.
type Visit = (Duration, usize);

/// Returns the options of the two hosts that have keys. The first host has a DH-HMAC-CHAP key, the
/// second a TLS key.
fn hosts(secret: &KeyFile, tls: &KeyFile) -> [Options; 2] {
    let named = |number: usize, id| Options {
        hostnqn: Some(host(number)),
        hostid: Some(HostId([id; 16])),
        // The target also serves strangers meanwhile, so a connect takes long.
        connect_timeout: Duration::from_secs(30),
        ..Options::default()
    };
    [
        Options { dhchap_secret: Some(secret.0.clone()), ..named(0, 1) },
        Options {
            tcp: TcpOptions { tls_key: Some(tls.0.clone()), ..TcpOptions::default() },
            ..named(TLS_HOST, 2)
        },
    ]
}

/// Lets a host connect, write, read and disconnect.
fn visit(address: SocketAddr, options: &Options) -> Visit {
    let begin = Instant::now();
    let mut refusals = 0;
    let controller = loop {
        match Controller::connect(&address.to_string(), NQN, options) {
            Ok(controller) => break controller,
            Err(error) => assert!(begin.elapsed() < WAIT_LIMIT, "not admitted: {error}"),
        }
        refusals += 1;
    };
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    let mut disk = Blocking::new(&namespace).expect("the queue is admitted, too");
    disk.write(0, &[9; 4096]).expect("the block is written");
    let mut read = [0; 4096];
    disk.read(0, &mut read).expect("the block is read");
    assert_eq!(read, [9; 4096]);
    (begin.elapsed(), refusals)
}

/// Attacks a target that has this connection limit.
fn siege(strangers: usize, connections: Option<usize>) {
    let (secret, tls) = (KeyFile::of_secret(1), KeyFile::of_key(&tls_key(TLS_SEED)));
    let hosts = hosts(&secret, &tls);
    let besieged = Besieged::start(SERVE, connections);
    // Let one stranger of each kind connect from another address, so that the target loads its
    // libraries and starts the authentication thread.
    for kind in KINDS {
        knock(kind, from(2, 1, besieged.address));
    }
    let before = besieged.resident();
    let crowd = Crowd {
        address: besieged.address,
        strangers,
        threads: (strangers / STRANGERS_PER_THREAD).clamp(1, MOST_THREADS),
        stand: AtomicUsize::new(0),
        begun: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    let mut most = 0;
    let mut visits = Vec::new();
    thread::scope(|scope| {
        for part in 0..crowd.threads {
            let crowd = &crowd;
            scope.spawn(move || crowd.besiege(part));
        }
        let deadline = Instant::now() + ALL_KNOCK;
        while crowd.stand.load(Ordering::Relaxed) < crowd.threads {
            if Instant::now() > deadline {
                // A panic of a thread appears only after the thread has been joined.
                crowd.is_over.store(true, Ordering::Relaxed);
                let (stand, threads) = (crowd.stand.load(Ordering::Relaxed), crowd.threads);
                panic!("only {stand} of {threads} threads connected all in {ALL_KNOCK:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let user = scope.spawn(|| {
            let visits = (0..VISITS).map(|_| {
                let [secret, tls] = &hosts;
                [visit(besieged.address, secret), visit(besieged.address, tls)]
            });
            let visits: Vec<[Visit; 2]> = visits.collect();
            crowd.is_over.store(true, Ordering::Relaxed);
            visits
        });
        while !user.is_finished() {
            most = most.max(besieged.resident());
            thread::sleep(Duration::from_millis(20));
        }
        crowd.is_over.store(true, Ordering::Relaxed);
        visits = user.join().expect("a host with a key is admitted");
    });
    let deadline = Instant::now() + WAIT_LIMIT;
    while besieged.resident() > before + KEPT_BYTES {
        assert!(Instant::now() < deadline, "{} bytes are kept", besieged.resident() - before);
        thread::sleep(Duration::from_millis(50));
    }
    let after = besieged.resident();
    let held = besieged.end();
    tell(&crowd, held, [before, most, after], &visits);
    let each = most.saturating_sub(before) / held;
    assert!(each < STRANGER_BYTES, "{each} bytes each");
}

/// After the attack, at most this many bytes may remain in use, for tables that grow with the
/// connections and for the last few strangers.
const KEPT_BYTES: usize = 40 * MIB;
/// A stranger may cost the target at most this many bytes. Decision 16 states 24 KiB without TLS,
/// and 42 KiB with a ClientHello.
const STRANGER_BYTES: usize = 42 << 10;

fn tell(crowd: &Crowd, held: usize, resident: [usize; 3], visits: &[[Visit; 2]]) {
    let [before, most, after] = resident;
    println!(
        "{} strangers, {} knocks, {held} connections at once; resident: {} MiB before, {} at most \
         ({} KiB each), {} after",
        crowd.strangers,
        crowd.begun.load(Ordering::Relaxed),
        before / MIB,
        most / MIB,
        (most.saturating_sub(before) / held) >> 10,
        after / MIB,
    );
    for (at, name) in ["authenticates", "uses TLS"].into_iter().enumerate() {
        let its = || visits.iter().map(|both| both[at]);
        let longest = its().map(|(time, _)| time).max().unwrap_or_default();
        let refusals: usize = its().map(|(_, refusals)| refusals).sum();
        let first = its().next().map_or(Duration::ZERO, |(time, _)| time);
        println!(
            "the host that {name}: {first:?} the first time, {longest:?} the longest of {VISITS}, \
             sent away {refusals} times"
        );
    }
}

#[test]
fn hosts_with_keys_connect_despite_600_peers_without_keys() {
    let _alone = alone();
    siege(600, Some(400));
}

#[test]
fn hosts_with_keys_connect_despite_4000_peers_without_keys() {
    let _alone = alone();
    raise_descriptors();
    let strangers =
        std::env::var("SIEGE_STRANGERS").map_or(STRANGERS, |n| n.parse().expect("a number"));
    siege(strangers, None);
}
