//! Strangers knock at a target whose hosts have keys, in every way in which somebody without one
//! can: they stop after each message, send wrong proofs, begin TLS, come again and again. The hosts
//! get in, and what the strangers made the target hold is given back.
//!
//! The figures are in docs/security.md:
//!
//! ```text
//! cargo test -p farblock-target --test locked_siege -- --nocapture strangers
//! ```
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
use rig::stranger::{MIB, NQN, PATIENCE, Peer, from, host, is_open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the target's process is called among these tests.
const SERVE: &str = "serve_until_the_input_ends";
/// Where strangers are, so that no address has more than its share of half-open connections.
const ADDRESSES: usize = 200;
/// Strangers that one thread of theirs is, and most threads.
const STRANGERS_PER_THREAD: usize = 40;
const MOST_THREADS: usize = 96;
/// Connections of all of them beyond which those that the target has ended are let go of first.
const DESCRIPTORS: usize = 18_000;
/// A stranger does not wait for longer.
const BRIEFLY: Duration = Duration::from_millis(200);
/// How long it may take until each of them has knocked once.
const ALL_KNOCK: Duration = Duration::from_secs(300);
/// How often each host connects while they are there.
const VISITS: usize = 6;
/// The name whose key for TLS strangers do not have.
const TLS_HOST: usize = 2_000_000;
/// The key that its host has, and not the one that strangers try.
const TLS_SEED: u8 = 1;

/// What a stranger does.
#[derive(Clone, Copy, Debug)]
enum StrangerKind {
    /// Nothing, once it is connected.
    Silent,
    /// Has the connection initialized.
    Initialized,
    /// Connects an admin queue by the host's name.
    Connected,
    /// Has a power of the largest numbers calculated, and waits for nothing.
    Negotiating,
    /// Of the smallest ones.
    Cheap,
    /// Takes the challenge.
    Challenged,
    /// Answers it by guessing, and waits for nothing.
    Guessing,
    /// Is told that this was wrong.
    Refused,
    /// Sends half of a ClientHello.
    HalfHello,
    /// Sends one for a key that it does not have.
    Hello,
    /// Comes and goes.
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

/// One siege at a time: each wants the processors and descriptors for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this process, and the target's that it starts, have a descriptor for each connection.
fn raise_descriptors() {
    const WANTED: u64 = DESCRIPTORS as u64 + 1000;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let short = "this cannot be checked here";
    assert!(most >= WANTED, "{short}: it takes {WANTED} descriptors, and ulimit -Hn says {most}");
    if limit.current.is_some_and(|now| now < WANTED) {
        let raised = Rlimit { current: Some(WANTED), ..limit };
        setrlimit(Resource::Nofile, raised).expect("it is no more than it may have");
    }
}

fn tls_key(seed: u8) -> TlsKey {
    let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(seed));
    key.expect("a suite")
}

/// The process under attack; not a test of its own.
#[test]
#[ignore = "a part of the others"]
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
    besieged::serve(&Target::start(&config).expect("it starts"));
}

/// AUTH_Negotiate for one group.
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

/// A reply that has the target calculate once more, and is wrong.
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

/// Asks for what the target has to say, if it says by now that it has worked on the last message.
fn receive(peer: &mut Peer) -> Option<()> {
    peer.status()?.0.is_success().then_some(())?;
    let length = 2048;
    let sqe = AuthenticationCommand::receive(0, length).to_sqe();
    let sqe = Sqe { dptr: SglDescriptor::transport(length), ..sqe };
    peer.send(sqe, Transfer::FromController(length), &[]).then_some(())?;
    peer.status()?.0.is_success().then_some(())
}

/// What this kind does on a connection of its own, as far as the target lets it. The connection
/// stays for as long as the result does.
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
        // It stays where it is if the others keep the target busy.
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

/// What the threads of the strangers share.
struct Crowd {
    address: SocketAddr,
    strangers: usize,
    threads: usize,
    /// Threads whose strangers have all knocked once.
    stand: AtomicUsize,
    begun: AtomicUsize,
    is_over: AtomicBool,
}

impl Crowd {
    /// Knocks with its part of the strangers, and again where the target has ended one.
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

    /// There may be fewer descriptors than strangers; those that the target has ended need none.
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

/// One visit: how long it took, and how often the host was sent away.
type Visit = (Duration, usize);

/// The two hosts that have a key: one authenticates, the other one uses TLS.
fn hosts(secret: &KeyFile, tls: &KeyFile) -> [Options; 2] {
    let named = |number: usize, id| Options {
        hostnqn: Some(host(number)),
        hostid: Some(HostId([id; 16])),
        // The strangers have their turns as well.
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

/// A host comes, writes and reads, and goes.
fn visit(address: SocketAddr, options: &Options) -> Visit {
    let begin = Instant::now();
    let mut refusals = 0;
    let controller = loop {
        match Controller::connect(&address.to_string(), NQN, options) {
            Ok(controller) => break controller,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "the host is kept out: {error}"),
        }
        refusals += 1;
    };
    let namespace = controller.namespace(1).expect("it is there");
    let mut disk = Blocking::new(&namespace).expect("its queue is let in, too");
    disk.write(0, &[9; 4096]).expect("it is written");
    let mut read = [0; 4096];
    disk.read(0, &mut read).expect("it is read");
    assert_eq!(read, [9; 4096]);
    (begin.elapsed(), refusals)
}

/// So many strangers knock at a target that takes so many connections.
fn siege(strangers: usize, connections: Option<usize>) {
    let (secret, tls) = (KeyFile::of_secret(1), KeyFile::of_key(&tls_key(TLS_SEED)));
    let hosts = hosts(&secret, &tls);
    let besieged = Besieged::start(SERVE, connections);
    // Once, from elsewhere, so that libraries are loaded and the thread that calculates is there.
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
                // Their threads are waited for before anybody hears of this.
                crowd.is_over.store(true, Ordering::Relaxed);
                let (stand, threads) = (crowd.stand.load(Ordering::Relaxed), crowd.threads);
                panic!(
                    "of {threads} threads, {stand} have had their strangers knock in {ALL_KNOCK:?}"
                );
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
        visits = user.join().expect("a host with a key is let in");
    });
    let deadline = Instant::now() + PATIENCE;
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

/// What may stay of what they held, in bytes: tables that grow with connections, and what the last
/// few of them had.
const KEPT_BYTES: usize = 40 * MIB;
/// What each of the strangers may make the target hold, in bytes: decision 16 states 24 KiB without
/// TLS, and 42 KiB with a ClientHello.
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
fn hundreds_of_strangers_keep_no_host_with_a_key_out() {
    let _alone = alone();
    siege(600, Some(400));
}

#[test]
fn twenty_thousand_strangers_keep_no_host_with_a_key_out() {
    let _alone = alone();
    raise_descriptors();
    siege(20_000, None);
}
