//! farblock's host and target authenticate each other. The target refuses all other hosts.

mod rig;

use farblock_block::blocking::Blocking;
use farblock_host::{ConnectError, Controller, Error, Options};
use farblock_secure::{Group, Hash};
use farblock_target::{HostKeys, Subsystem, Target, TargetConfig};
use rig::keys::{KeyFile, secret, serve_to};
use rig::proxy::Proxy;
use rig::{NQN, any, engines};
use std::net::SocketAddr;

const HOST: &str = "nqn.2014-08.org.example:locked";

fn serve(keys: HostKeys, engine: farblock_reactor::EngineKind) -> Target {
    serve_to(HOST, keys, None, engine)
}

/// Connects and returns the number of blocks, which an admin command reads.
fn connect(
    target: &Target,
    host: Option<&KeyFile>,
    controller: Option<&KeyFile>,
) -> Result<u64, ConnectError> {
    connect_to(target.addresses()[0], host, controller)
}

fn connect_to(
    address: SocketAddr,
    host: Option<&KeyFile>,
    controller: Option<&KeyFile>,
) -> Result<u64, ConnectError> {
    let options = Options {
        hostnqn: Some(HOST.to_owned()),
        dhchap_secret: host.map(|file| file.0.clone()),
        dhchap_ctrl_secret: controller.map(|file| file.0.clone()),
        ..Options::default()
    };
    match Controller::connect(&address.to_string(), NQN, &options) {
        Ok(controller) => Ok(controller.namespace(1).expect("namespace 1 exists").info().blocks),
        Err(Error::Connect { reason, .. }) => Err(reason),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn mutual_authentication_works_with_every_hash_and_some_groups() {
    let (host, controller) = (KeyFile::of_secret(1), KeyFile::of_secret(2));
    for engine in engines() {
        for (hash, group) in [
            (Hash::Sha256, Group::Null),
            (Hash::Sha384, Group::Ffdhe2048),
            (Hash::Sha512, Group::Ffdhe8192),
        ] {
            let mut keys = HostKeys::new(secret(1));
            (keys.hashes, keys.groups) = (vec![hash], vec![group]);
            keys.controller = Some(secret(2));
            let target = serve(keys, engine);
            assert_eq!(connect(&target, Some(&host), None), Ok(2048), "{hash} {group}");
            assert_eq!(connect(&target, Some(&host), Some(&controller)), Ok(2048));
        }
    }
}

/// A host refuses a target that accepts only algorithms outside the host's list.
#[test]
fn a_host_uses_only_its_own_hashes_and_groups() {
    let file = KeyFile::of_secret(1);
    let connect = |target: &Target, hash, group| {
        let options = Options {
            hostnqn: Some(HOST.to_owned()),
            dhchap_secret: Some(file.0.clone()),
            dhchap_hashes: vec![hash],
            dhchap_dhgroups: vec![group],
            ..Options::default()
        };
        match Controller::connect(&target.addresses()[0].to_string(), NQN, &options) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let target = serve(HostKeys::new(secret(1)), engines()[0]);
    for hash in Hash::ALL {
        assert_eq!(connect(&target, hash, Group::Ffdhe2048), "");
    }
    let mut weak = HostKeys::new(secret(1));
    (weak.hashes, weak.groups) = (vec![Hash::Sha256], vec![Group::Null]);
    let target = serve(weak, engines()[0]);
    assert_eq!(connect(&target, Hash::Sha256, Group::Null), "");
    let refused = connect(&target, Hash::Sha256, Group::Ffdhe2048);
    assert!(refused.contains("Diffie-Hellman groups: ffdhe2048"), "{refused}");
    let refused = connect(&target, Hash::Sha512, Group::Null);
    assert!(refused.contains("offered hash functions: SHA-512"), "{refused}");
}

#[test]
fn a_host_without_the_right_secret_is_refused() {
    let mut keys = HostKeys::new(secret(1));
    keys.controller = Some(secret(2));
    let target = serve(keys, engines()[0]);
    let (good, bad) = (KeyFile::of_secret(1), KeyFile::of_secret(3));
    assert_eq!(connect(&target, None, None), Err(ConnectError::AuthenticationRequired));
    let failed = |result: Result<u64, ConnectError>, sentence: &str| match result {
        Err(ConnectError::AuthenticationFailed(text)) => assert!(text.contains(sentence), "{text}"),
        other => panic!("{other:?}"),
    };
    failed(connect(&target, Some(&bad), None), "compare the secrets");
    failed(connect(&target, Some(&good), Some(&bad)), "does not match the secret");
    assert_eq!(connect(&target, Some(&good), None), Ok(2048), "the right secret still works");
}

/// Returns whether `bytes` contain AUTH_Failure1: its type, identifier and reason code.
fn has_refusal(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|bytes| bytes[..2] == [0, 0xf1] && bytes[6] == 1)
}

/// Linux's target closes the connection right after it refuses a proof, so its refusal may not
/// arrive.
#[test]
fn a_connection_closed_after_the_proof_suggests_to_compare_the_secrets() {
    let target = serve(HostKeys::new(secret(1)), engines()[0]);
    let proxy = Proxy::new(target.addresses()[0]);
    proxy.end_before(has_refusal);
    let (good, bad) = (KeyFile::of_secret(1), KeyFile::of_secret(3));
    assert_eq!(connect_to(proxy.address, Some(&good), None), Ok(2048));
    assert_eq!(connect_to(proxy.address, Some(&bad), None), Err(ConnectError::ProofNotJudged));
    let sentence = ConnectError::ProofNotJudged.to_string();
    assert!(sentence.contains("compare the secrets"), "{sentence}");
    assert!(ConnectError::ProofNotJudged.is_transient(), "the target may have died, so retry");
}

#[test]
fn a_host_that_requires_a_proof_refuses_a_controller_without_a_secret() {
    let target = serve(HostKeys::new(secret(1)), engines()[0]);
    let (host, controller) = (KeyFile::of_secret(1), KeyFile::of_secret(2));
    let refused = connect(&target, Some(&host), Some(&controller));
    assert!(matches!(refused, Err(ConnectError::AuthenticationFailed(_))), "{refused:?}");
    // The host also refuses a target that requires no authentication.
    let mut open = Subsystem::new(NQN);
    open.config.allow_any_host = true;
    let target = Target::start(&TargetConfig {
        subsystems: vec![open],
        listeners: vec![any()],
        ..TargetConfig::default()
    });
    let target = target.expect("the target starts");
    let refused = connect(&target, Some(&host), Some(&controller));
    assert_eq!(refused, Err(ConnectError::AuthenticationNotOffered));
}

/// Connects, or returns the reason why the target refused.
fn try_connect(target: &Target, options: &Options) -> Result<Controller, ConnectError> {
    match Controller::connect(&target.addresses()[0].to_string(), NQN, options) {
        Ok(controller) => Ok(controller),
        Err(Error::Connect { reason, .. }) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_configured_host_identifier_belongs_to_its_host_alone() {
    use farblock_host::HostId;
    let (ours, others) = (HostId([1; 16]), HostId([2; 16]));
    let key = KeyFile::of_secret(1);
    let other = "nqn.2026-11.org.farblock:other";
    let target = serve(HostKeys { id: Some(ours.0), ..HostKeys::new(secret(1)) }, engines()[0]);
    let control = target.control();
    control.set_host_keys(NQN, other, Some(&HostKeys::new(secret(1)))).expect("a subsystem");
    control.allow_host(NQN, other).expect("a name");
    let connect = |host: &str, id| {
        let options = Options {
            hostnqn: Some(host.to_owned()),
            hostid: Some(id),
            dhchap_secret: Some(key.0.clone()),
            ..Options::default()
        };
        try_connect(&target, &options)
    };
    let refused = |host, id| connect(host, id).err() == Some(ConnectError::IdentifierNotAllowed);
    assert!(connect(HOST, ours).is_ok() && connect(other, others).is_ok());
    assert!(refused(other, ours), "another host's identifier");
    assert!(refused(HOST, others), "an identifier that is not the host's own");
    // A host is disconnected when its host identifier is assigned to another host.
    let stays = connect(HOST, ours).expect("the host has the key");
    let goes = connect(other, others).expect("the host has the key");
    let keys = HostKeys { id: Some(others.0), ..HostKeys::new(secret(1)) };
    control.set_host_keys(NQN, HOST, Some(&keys)).expect("the subsystem exists");
    assert_eq!(control.report().controllers.len(), 0, "{:?}", control.report().controllers);
    control.set_host_keys(NQN, HOST, Some(&HostKeys::new(secret(1)))).expect("a subsystem");
    assert!(connect(other, ours).is_ok(), "the identifier is free again");
    drop((stays, goes));
}

/// An identifier without a configured owner belongs to the first host that authenticates with it,
/// since reservations identify hosts by their identifiers.
#[test]
fn a_host_identifier_belongs_to_the_first_host_that_authenticates_with_it() {
    use farblock_host::HostId;
    const OTHER: &str = "nqn.2014-08.org.example:other";
    const OPEN: &str = "nqn.2014-08.org.example:open";
    let key = KeyFile::of_secret(1);
    let target = serve(HostKeys::new(secret(1)), engines()[0]);
    let control = target.control();
    control.set_host_keys(NQN, OTHER, Some(&HostKeys::new(secret(1)))).expect("a subsystem");
    [OTHER, OPEN].iter().for_each(|host| control.allow_host(NQN, host).expect("a name"));
    let connect = |host: &str, id: u8| {
        let options = Options {
            hostnqn: Some(host.to_owned()),
            hostid: Some(HostId([id; 16])),
            dhchap_secret: (host != OPEN).then(|| key.0.clone()),
            ..Options::default()
        };
        try_connect(&target, &options)
    };
    let refused = |host, id| connect(host, id).err() == Some(ConnectError::IdentifierNotAllowed);
    let live = || {
        let all = control.report().controllers.into_iter();
        all.map(|one| one.host_nqn).collect::<Vec<_>>()
    };
    // A host that need not authenticate keeps its identifier until another host authenticates with
    // the same identifier.
    let believed = connect(OPEN, 1).expect("no other host has the identifier");
    let host = connect(HOST, 1).expect("the host has the key");
    assert_eq!(live(), [HOST], "the host that has not authenticated keeps the identifier");
    drop(believed);
    assert!(refused(OTHER, 1) && refused(OPEN, 1));
    let others =
        [connect(OTHER, 2).expect("an identifier"), connect(OPEN, 3).expect("an identifier")];
    let path = connect(HOST, 1).expect("another path of the same host");
    let again = connect(HOST, 4).expect("another identifier of the same host");
    assert!(refused(OPEN, 4));
    // If the configuration gives an identifier to a host, no other host may use it.
    let keys = HostKeys { id: Some([4; 16]), ..HostKeys::new(secret(1)) };
    control.set_host_keys(NQN, OTHER, Some(&keys)).expect("the subsystem exists");
    assert!(refused(HOST, 4) && connect(OTHER, 4).is_ok());
    drop((host, path, again, others));
    rig::until("the hosts are gone", || live().is_empty());
    connect(OPEN, 1).map(drop).expect("the identifier is free");
}

/// A connected host authenticates again with a new secret while I/O continues. After a wrong
/// secret, the target refuses the host and disconnects it.
#[test]
fn a_connected_host_reauthenticates_during_io() {
    for engine in engines() {
        let (file, own) = (KeyFile::of_secret(4), KeyFile::of_secret(6));
        let mut keys = HostKeys { controller: Some(secret(6)), ..HostKeys::new(secret(5)) };
        keys.host.push(secret(4));
        let target = serve(keys, engine);
        let options = Options {
            hostnqn: Some(HOST.to_owned()),
            dhchap_secret: Some(file.0.clone()),
            dhchap_ctrl_secret: Some(own.0.clone()),
            ..Options::default()
        };
        let controller = try_connect(&target, &options).expect("the host has a secret");
        let namespace = controller.namespace(1).expect("namespace 1 exists");
        let mut blocks = Blocking::new(&namespace).expect("a queue");
        for seed in [4, 5, 5] {
            file.change(seed);
            controller.authenticate().expect("the secret is right");
            blocks.write(0, &[seed; 512]).expect("the host stays connected");
            assert_eq!(controller.namespace_ids().expect("the controller answers"), [1]);
        }
        // Authenticate twice at the same time. The host refuses the second call, or the second call
        // waits for the first.
        std::thread::scope(|scope| {
            let both = [
                scope.spawn(|| controller.authenticate()),
                scope.spawn(|| controller.authenticate()),
            ];
            let done = both.map(|thread| thread.join().expect("no panic"));
            assert!(done.iter().any(Result::is_ok), "{done:?}");
            for refused in done.into_iter().filter_map(Result::err) {
                assert!(refused.to_string().contains("already"), "{refused}");
            }
        });
        // The controller must authenticate as well. The host rejects the controller's proof and
        // reports this.
        own.change(9);
        let refused = controller.authenticate().expect_err("the controller has another secret");
        assert!(matches!(refused, Error::Authentication { .. }), "{refused}");
        own.change(6);
        let again = try_connect(&target, &options).expect("the host has a secret");
        again.authenticate().expect("the secret is right");
        file.change(9);
        let refused = again.authenticate().expect_err("the secret is wrong");
        assert!(refused.to_string().starts_with("cannot reauthenticate with "), "{refused}");
        rig::until("the target ended the connection", || again.lost().is_some());
        assert_eq!(connect(&target, None, None), Err(ConnectError::AuthenticationRequired));
        drop((blocks, namespace, controller, again));
    }
}

#[test]
fn a_host_without_a_secret_cannot_reauthenticate() {
    let config = TargetConfig {
        subsystems: vec![open()],
        listeners: vec![any()],
        ..TargetConfig::default()
    };
    let target = Target::start(&config).expect("the target starts");
    let with = |options: &Options| try_connect(&target, options).expect("every host may connect");
    let without = with(&Options::default());
    let refused = without.authenticate().expect_err("the host has no secret");
    assert!(refused.to_string().contains("--dhchap-secret"), "{refused}");
    // A target without secrets refuses an authentication that it did not request.
    let file = KeyFile::of_secret(4);
    let asked = with(&Options { dhchap_secret: Some(file.0.clone()), ..Options::default() });
    let refused = asked.authenticate().expect_err("the target has not requested authentication");
    assert!(matches!(refused, Error::Authentication { .. }), "{refused}");
    assert!(asked.namespace_ids().is_ok(), "the controller stays connected");
}

fn open() -> Subsystem {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    subsystem
}

#[test]
fn both_secrets_are_accepted_during_a_change() {
    let mut keys = HostKeys::new(secret(5));
    keys.host.push(secret(4));
    let target = serve(keys, engines()[0]);
    for seed in [4, 5] {
        assert_eq!(connect(&target, Some(&KeyFile::of_secret(seed)), None), Ok(2048));
    }
}
