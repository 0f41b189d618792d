//! Authentication generates TLS keys between farblock's host and target. The target refuses a host
//! that must use TLS and does not.

mod rig;

use farblock_block::blocking::Blocking;
use farblock_host::{ConnectError, Controller, Error, Options, TcpOptions};
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_secure::{Concatenation, Group, Hash, Host, HostTerms, Step};
use farblock_target::{Demand, HostKeys, Subsystem, Target, TargetConfig, TlsPolicy};
use farblock_wire::fabrics::{AuthenticationCommand, ConnectCommand, ConnectData};
use farblock_wire::property::offset;
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::keys::{KeyFile, secret, serve_to};
use rig::scripted::Queue;
use rig::{NQN, any, engines};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const HOST: &str = "nqn.2014-08.org.example:concatenated";

/// The first byte of a connection without TLS: an ICReq.
const IC_REQ: u8 = 0;
const HANDSHAKE: u8 = 22;

fn keys(demand: Demand) -> HostKeys {
    HostKeys { controller: Some(secret(2)), demand, ..HostKeys::new(secret(1)) }
}

fn serve(keys: HostKeys, tls: TlsPolicy, engine: EngineKind) -> Target {
    serve_to(HOST, keys, Some(tls), engine)
}

/// The key files of host and controller.
struct Files {
    host: KeyFile,
    controller: KeyFile,
}

impl Files {
    fn new() -> Self {
        Self { host: KeyFile::of_secret(1), controller: KeyFile::of_secret(2) }
    }

    fn options(&self, concatenate: bool, is_mutual: bool) -> Options {
        Options {
            hostnqn: Some(HOST.to_owned()),
            dhchap_secret: Some(self.host.0.clone()),
            dhchap_ctrl_secret: is_mutual.then(|| self.controller.0.clone()),
            tcp: TcpOptions { concatenate, ..TcpOptions::default() },
            ..Options::default()
        }
    }
}

fn connect(target: &Target, options: &Options) -> Result<Controller, ConnectError> {
    match Controller::connect(&target.addresses()[0].to_string(), NQN, options) {
        Ok(controller) => Ok(controller),
        Err(Error::Connect { reason, .. }) => Err(reason),
        Err(other) => panic!("{other}"),
    }
}

/// A proxy that forwards connections to a target, and records the first byte of each connection.
struct Between {
    address: SocketAddr,
    begun: Arc<Mutex<Vec<u8>>>,
}

impl Between {
    fn new(target: &Target) -> Self {
        let (begun, there) = (Arc::<Mutex<Vec<u8>>>::default(), target.addresses()[0]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound socket");
        let noted = Arc::clone(&begun);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(there)) else {
                    return;
                };
                let mut first = [0];
                client.read_exact(&mut first).expect("the client starts");
                noted.lock().expect("not poisoned").push(first[0]);
                server.write_all(&first).expect("the server still reads");
                let (mut back, mut forth) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut back, &mut forth);
                    let _ = forth.shutdown(std::net::Shutdown::Both);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut client, &mut server);
                    let _ = server.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { address, begun }
    }

    /// Returns the first bytes of all connections so far.
    fn begun(&self) -> Vec<u8> {
        self.begun.lock().expect("not poisoned").clone()
    }
}

/// A successful reauthentication keeps the TLS connection and its key.
#[test]
fn a_host_reauthenticates_inside_the_secure_channel() {
    let files = Files::new();
    let target = serve(keys(Demand::SecureChannel), TlsPolicy::Allowed, engines()[0]);
    let controller = connect(&target, &files.options(true, true)).expect("the host has the secret");
    for _ in 0..2 {
        controller.authenticate().expect("the secret is right");
        moves_data(&controller);
    }
    files.host.change(9);
    controller.authenticate().expect_err("the secret is wrong");
    rig::until("the target ended the connection", || controller.lost().is_some());
}

/// Writes to the disk, and reads the data back.
fn moves_data(controller: &Controller) {
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    let mut disk = Blocking::new(&namespace).expect("a queue");
    let written: Vec<u8> = (0..100_352).map(|at| (at * 31 / 7) as u8).collect();
    disk.write(3, &written).expect("the block is written");
    let mut read = vec![0; written.len()];
    disk.read(3, &mut read).expect("the block is read");
    assert!(read == written);
}

#[test]
fn authentication_with_concatenation_starts_tls() {
    let files = Files::new();
    for engine in engines() {
        for (hash, is_mutual) in [(Hash::Sha256, false), (Hash::Sha384, true)] {
            for demand in [Demand::Authentication, Demand::SecureChannel] {
                let mut keys = keys(demand);
                (keys.hashes, keys.groups) = (vec![hash], vec![Group::Ffdhe2048]);
                let target = serve(keys, TlsPolicy::Allowed, engine);
                let between = Between::new(&target);
                let options = files.options(true, is_mutual);
                let address = between.address.to_string();
                let controller = Controller::connect(&address, NQN, &options);
                moves_data(&controller.expect("the host has the secret"));
                // The admin queue connects without TLS and authenticates, then both queues connect
                // with TLS.
                assert_eq!(between.begun(), [IC_REQ, HANDSHAKE, HANDSHAKE], "{hash} {demand:?}");
            }
        }
    }
}

#[test]
fn a_host_that_does_not_request_the_required_concatenation_is_refused() {
    let files = Files::new();
    let target = serve(keys(Demand::SecureChannel), TlsPolicy::Allowed, EngineKind::Auto);
    let refused = connect(&target, &files.options(false, true)).err();
    assert_eq!(refused, Some(ConnectError::SecureChannelRequired));
    let sentence = refused.expect("the connection is refused").to_string();
    assert!(sentence.contains("--concat"), "{sentence}");
    // This target requires mutual authentication.
    let target = serve(keys(Demand::Mutual), TlsPolicy::Allowed, EngineKind::Auto);
    for concatenate in [false, true] {
        let refused = connect(&target, &files.options(concatenate, false)).err();
        let Some(ConnectError::AuthenticationFailed(_)) = refused else { panic!("{refused:?}") };
        let controller =
            connect(&target, &files.options(concatenate, true)).expect("the host has the secret");
        moves_data(&controller);
    }
}

#[test]
fn concatenation_fails_at_a_listener_without_tls() {
    let files = Files::new();
    let target = serve(keys(Demand::Authentication), TlsPolicy::Plain, EngineKind::Auto);
    let Some(ConnectError::AuthenticationFailed(sentence)) =
        connect(&target, &files.options(true, false)).err()
    else {
        panic!("the target accepts the host")
    };
    assert!(sentence.contains("omit --concat"), "{sentence}");
    connect(&target, &files.options(false, false))
        .expect("the host connects without concatenation");
    // A host that must use TLS cannot connect to a listener without TLS.
    let target = serve(keys(Demand::SecureChannel), TlsPolicy::Plain, EngineKind::Auto);
    let refused = connect(&target, &files.options(true, false)).err();
    assert_eq!(refused, Some(ConnectError::HostNotAllowed));
}

#[test]
fn a_host_that_wants_concatenation_does_not_continue_without_it() {
    let files = Files::new();
    // This target's subsystem has no secrets.
    let mut open = Subsystem::new(NQN);
    open.config.allow_any_host = true;
    let target = Target::start(&TargetConfig {
        subsystems: vec![open],
        listeners: vec![any()],
        ..TargetConfig::default()
    });
    let target = target.expect("the target starts");
    let refused = connect(&target, &files.options(true, false)).err();
    assert_eq!(refused, Some(ConnectError::AuthenticationNotOffered));
    let wrong = KeyFile::of_secret(3);
    let options = Options { dhchap_secret: Some(wrong.0.clone()), ..files.options(true, false) };
    let target = serve(keys(Demand::SecureChannel), TlsPolicy::Allowed, EngineKind::Auto);
    let refused = connect(&target, &options).err();
    let Some(ConnectError::AuthenticationFailed(_)) = refused else { panic!("{refused:?}") };
}

#[test]
fn removing_a_secret_ends_the_tls_keys_derived_from_it() {
    let files = Files::new();
    let target = serve(keys(Demand::SecureChannel), TlsPolicy::Allowed, EngineKind::Auto);
    let controller =
        connect(&target, &files.options(true, false)).expect("the host has the secret");
    moves_data(&controller);
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    // Add a second secret. No host is disconnected.
    let control = target.control();
    let mut both = keys(Demand::SecureChannel);
    both.host = vec![secret(5), secret(1)];
    control.set_host_keys(NQN, HOST, Some(&both)).expect("the subsystem exists");
    drop(Blocking::new(&namespace).expect("another queue with the same key"));
    // Replace the secret by another one.
    let others = HostKeys { host: vec![secret(6)], ..keys(Demand::SecureChannel) };
    control.set_host_keys(NQN, HOST, Some(&others)).expect("the subsystem exists");
    assert_eq!(control.report().controllers.len(), 0);
    assert!(Blocking::new(&namespace).is_err(), "the old key is still accepted");
    // A host that connected without TLS is disconnected when it must use a secure channel.
    let target = serve(keys(Demand::Authentication), TlsPolicy::Allowed, EngineKind::Auto);
    let _stays = connect(&target, &files.options(false, true)).expect("the host has the secret");
    let control = target.control();
    control.set_host_keys(NQN, HOST, Some(&keys(Demand::SecureChannel))).expect("a subsystem");
    assert_eq!(control.report().controllers.len(), 0);
}

/// Returns whether a host can authenticate on a queue, with or without concatenation.
fn authenticates(queue: &mut Queue, concatenation: Concatenation) -> bool {
    let mut fill = |out: &mut [u8]| out.fill(9);
    let terms = HostTerms {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: NQN.to_owned(),
        host_secret: secret(1),
        controller_secrets: Vec::new(),
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Ffdhe2048],
        concatenation,
    };
    let mut host = Host::new(terms, &mut fill);
    loop {
        match host.step() {
            Step::Send(message) => {
                let length = message.len() as u32;
                let sqe = AuthenticationCommand::send(0, length).to_sqe();
                let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, length), ..sqe };
                let answer = queue.run(sqe, Transfer::InCapsule(length), &message);
                assert_eq!(answer.status, Status::SUCCESS);
                host.handle_sent();
            }
            Step::Receive => {
                let length = Host::RECEIVE_BYTES;
                let sqe = AuthenticationCommand::receive(0, length).to_sqe();
                let sqe = Sqe { dptr: SglDescriptor::transport(length), ..sqe };
                let answer = queue.run(sqe, Transfer::FromController(length), &[]);
                host.handle_received(&answer.data, &mut fill);
            }
            Step::Done(_) => return true,
            Step::Failed(_) => return false,
        }
    }
}

#[test]
fn a_connection_that_continued_without_tls_cannot_start_it_later() {
    let target = serve(keys(Demand::Authentication), TlsPolicy::Allowed, EngineKind::Auto);
    let mut queue = Queue::new(target.addresses()[0], Digests::default());
    let data = ConnectData::new([7; 16], 0xffff, NQN, HOST);
    assert_eq!(queue.connect(ConnectCommand::new(0, 0, 31, 0), data).status, Status::SUCCESS);
    for _ in 0..2 {
        assert!(authenticates(&mut queue, Concatenation::NONE), "authenticate again");
        queue.property(offset::CAP);
    }
    assert!(!authenticates(&mut queue, Concatenation::NEW_TLS_PSK), "the target accepts a new key");
    assert!(queue.is_closed());
}
