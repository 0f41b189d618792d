//! farblock's host and target use TLS. The target refuses hosts without a key and other peers.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_host::{
    ConnectError, Controller, Error, HostId, Options, TcpOptions, TcpRefusal, discover,
};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_secure::{Hash, TlsKey};
use farblock_target::{Demand, Export, HostKeys, Subsystem, Target, TargetConfig, TlsPolicy};
use rig::keys::{KeyFile, secret};
use rig::{NQN, any, engines};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOST: &str = "nqn.2014-08.org.example:secured";
const OTHER: &str = "nqn.2014-08.org.example:other";

fn key(hash: Hash, seed: u8) -> TlsKey {
    TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(seed)).expect("a suite")
}

fn serve(keys: &[TlsKey], tls: TlsPolicy, engine: EngineKind) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, 8 << 20).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let mut config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any()],
        tls: Some(tls),
        engine,
        ..TargetConfig::default()
    };
    if !keys.is_empty() {
        config.tls_keys.insert(HOST.to_owned(), keys.to_vec());
    }
    Target::start(&config).expect("the target starts")
}

fn options(host: &str, key: Option<&KeyFile>) -> Options {
    // Authenticated hosts may not share a host identifier, so each host gets its own.
    let id = host.bytes().fold(1, u8::wrapping_add);
    Options {
        hostnqn: Some(host.to_owned()),
        hostid: Some(HostId([id; 16])),
        tcp: TcpOptions { tls_key: key.map(|file| file.0.clone()), ..TcpOptions::default() },
        ..Options::default()
    }
}

fn connect(target: &Target, options: &Options) -> Result<Controller, String> {
    let address = target.addresses()[0].to_string();
    match Controller::connect(&address, NQN, options) {
        Ok(controller) => Ok(controller),
        Err(Error::Connect { reason: ConnectError::Tcp(TcpRefusal::Tls(sentence)), .. }) => {
            Err(sentence)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Writes data and reads them back, in pieces of many sizes.
fn moves_data(controller: &Controller) {
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    let mut disk = Blocking::new(&namespace).expect("a queue");
    for (index, blocks) in [1usize, 7, 8, 31, 128, 129, 2048, 8192].into_iter().enumerate() {
        let pattern = |at: usize| (at * 31 / 7 + index) as u8;
        let written: Vec<u8> = (0..blocks * 512).map(pattern).collect();
        disk.write(3, &written).expect("the block is written");
        let mut read = vec![0; written.len()];
        disk.read(3, &mut read).expect("the block is read");
        assert!(read == written, "{blocks} blocks");
    }
}

#[test]
fn data_pass_through_tls() {
    for engine in engines() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let key = key(hash, 1);
            let target = serve(std::slice::from_ref(&key), TlsPolicy::Required, engine);
            let file = KeyFile::of_key(&key);
            let mut options = options(HOST, Some(&file));
            for digests in [false, true] {
                (options.tcp.header_digest, options.tcp.data_digest) = (digests, digests);
                moves_data(&connect(&target, &options).expect("the host has the key"));
            }
        }
    }
}

#[test]
fn a_host_without_the_right_tls_key_is_refused() {
    let good = key(Hash::Sha256, 1);
    let target = serve(std::slice::from_ref(&good), TlsPolicy::Required, EngineKind::Auto);
    let (good, wrong) = (KeyFile::of_key(&good), KeyFile::of_key(&key(Hash::Sha256, 2)));
    let refused = |options: Options, sentence: &str| {
        let error = connect(&target, &options).map(drop).expect_err("the host has no key");
        assert!(error.contains(sentence), "{error}");
    };
    refused(options(HOST, Some(&wrong)), "another key");
    refused(options(OTHER, Some(&good)), "does not know the offered identity");
    refused(options(HOST, None), "TLS");
    refused(options(OTHER, None), "TLS");
    moves_data(&connect(&target, &options(HOST, Some(&good))).expect("the host has the key"));
}

#[test]
fn both_tls_keys_are_accepted_during_a_change() {
    let keys = [key(Hash::Sha256, 1), key(Hash::Sha384, 2)];
    let target = serve(&keys, TlsPolicy::Required, EngineKind::Auto);
    for key in &keys {
        let file = KeyFile::of_key(key);
        connect(&target, &options(HOST, Some(&file))).expect("both keys are valid");
    }
}

#[test]
fn a_host_with_a_tls_key_refuses_a_target_without_tls() {
    let target = serve(&[], TlsPolicy::Allowed, EngineKind::Auto);
    let file = KeyFile::of_key(&key(Hash::Sha256, 1));
    let error = connect(&target, &options(HOST, Some(&file))).map(drop).expect_err("no TLS");
    assert!(error.contains("TLS"), "{error}");
    moves_data(&connect(&target, &options(HOST, None)).expect("no TLS is required"));
}

#[test]
fn policy_allowed_admits_hosts_without_a_key() {
    let good = key(Hash::Sha256, 1);
    let target = serve(std::slice::from_ref(&good), TlsPolicy::Allowed, EngineKind::Auto);
    moves_data(&connect(&target, &options(OTHER, None)).expect("a host without a key needs none"));
    let error = connect(&target, &options(HOST, None)).map(drop).expect_err("the host has a key");
    assert!(error.contains("not allow this host"), "{error}");
    let file = KeyFile::of_key(&good);
    moves_data(&connect(&target, &options(HOST, Some(&file))).expect("the host's key is valid"));
}

#[test]
fn discovery_reports_the_security_requirements() {
    let good = key(Hash::Sha256, 1);
    let file = KeyFile::of_key(&good);
    for policy in [TlsPolicy::Required, TlsPolicy::Allowed] {
        let target = serve(std::slice::from_ref(&good), policy, EngineKind::Auto);
        let address = target.addresses()[0].to_string();
        let entries = discover(&address, &options(HOST, Some(&file))).expect("a valid key");
        let entry = entries.iter().find(|entry| entry.subnqn == NQN).expect("a listed subsystem");
        assert_eq!(entry.requirements & 0b11, 0b01, "the host has a key, and must use it");
        let plain = discover(&address, &options(OTHER, None));
        assert_eq!(plain.is_ok(), policy == TlsPolicy::Allowed);
    }
}

/// Returns whether the disk's discovery entry for a listener requires TLS. `None`: there is no such
/// entry.
fn listed(service: SocketAddr, options: &Options, at: SocketAddr) -> Option<bool> {
    let entries = discover(&service.to_string(), options).expect("every host may ask");
    let port = at.port().to_string();
    let its = entries.iter().find(|entry| entry.subnqn == NQN && entry.service == port)?;
    Some(its.requirements & 0b11 == 0b01)
}

/// Discovery lists exactly the listeners that a host can use, with the right security. The test
/// uses hosts with a key, without a key, and with concatenation, at listeners of every policy.
#[test]
fn discovery_lists_exactly_the_listeners_that_a_host_can_use() {
    const CONCATENATES: &str = "nqn.2014-08.org.example:concatenates";
    let target = steered();
    let control = target.control();
    let demand = Demand::SecureChannel;
    let concatenates = HostKeys { demand, ..HostKeys::new(secret(1)) };
    control.set_host_keys(NQN, CONCATENATES, Some(&concatenates)).unwrap();
    let allowed = target.addresses()[0];
    let [strict, plain] = [TlsPolicy::Required, TlsPolicy::Plain]
        .map(|policy| control.listen(any(), &PortAccess::default(), policy).unwrap());
    let (file, secret) = (KeyFile::of_key(&key(Hash::Sha256, 1)), KeyFile::of_secret(1));
    let concat = Options {
        dhchap_secret: Some(secret.0.clone()),
        tcp: TcpOptions { concatenate: true, ..TcpOptions::default() },
        ..options(CONCATENATES, None)
    };
    for (host, without, with) in [
        (HOST, options(HOST, None), options(HOST, Some(&file))),
        (OTHER, options(OTHER, None), options(OTHER, Some(&file))),
        (CONCATENATES, options(CONCATENATES, None), concat),
    ] {
        for at in [allowed, strict, plain] {
            let [plain, tls] = [&without, &with]
                .map(|options| Controller::connect(&at.to_string(), NQN, options).is_ok());
            let said = listed(allowed, &options(host, None), at);
            assert_eq!(said.is_some(), plain || tls, "{host} at {at}");
            let begins_in_plain = plain || host == CONCATENATES;
            assert_eq!(said == Some(true), tls && !begins_in_plain, "{host} at {at}");
        }
    }
    // Adding and removing a key changes the entries.
    let none = options(HOST, None);
    let says = || [allowed, strict, plain].map(|at| listed(allowed, &none, at));
    assert_eq!(says(), [Some(true), Some(true), None]);
    control.set_host_keys(NQN, HOST, None).unwrap();
    assert_eq!(says(), [Some(false), None, Some(false)]);
    control.set_tls(plain, TlsPolicy::Required).unwrap();
    assert_eq!(says(), [Some(false), None, None]);
}

/// Returns a target to which a TLS key of [`HOST`] was added while it ran.
fn steered() -> Target {
    let target = serve(&[], TlsPolicy::Allowed, EngineKind::Auto);
    let control = target.control();
    control.set_host_keys(NQN, HOST, Some(&HostKeys::of_tls(vec![key(Hash::Sha256, 1)]))).unwrap();
    target
}

fn is_connected(target: &Target, host: &str) -> bool {
    target.control().report().controllers.iter().any(|one| one.host_nqn == host)
}

#[test]
fn tls_keys_are_added_and_removed_at_run_time() {
    let target = serve(&[], TlsPolicy::Allowed, EngineKind::Auto);
    let control = target.control();
    let plain = connect(&target, &options(HOST, None)).expect("the host has no key yet");
    let other = connect(&target, &options(OTHER, None)).expect("the host never has a key");
    let set = |keys: &[TlsKey]| {
        let keys = HostKeys::of_tls(keys.to_vec());
        control.set_host_keys(NQN, HOST, Some(&keys).filter(|keys| !keys.tls.is_empty())).unwrap();
    };
    let [first, second, third] = [1, 2, 3].map(|seed| key(Hash::Sha256, seed));
    set(std::slice::from_ref(&first));
    assert!(!is_connected(&target, HOST), "the host is still connected without TLS");
    assert!(is_connected(&target, OTHER));
    drop(plain);
    let [file, old] = [KeyFile::of_key(&first), KeyFile::of_key(&first)];
    let next = KeyFile::of_key(&second);
    let controller = connect(&target, &options(HOST, Some(&file))).expect("the host has the key");
    set(&[second.clone(), first]);
    connect(&target, &options(HOST, Some(&next))).map(drop).expect("both keys are valid");
    // The host uses the new key in the file for new connections.
    std::fs::write(&file.0, second.text().as_str()).expect("written");
    set(std::slice::from_ref(&second));
    assert!(is_connected(&target, HOST));
    moves_data(&controller);
    connect(&target, &options(HOST, Some(&old))).map(drop).expect_err("the key was removed");
    drop(controller);
    let controller = connect(&target, &options(HOST, Some(&next))).expect("the new key is valid");
    set(&[third]);
    assert!(!is_connected(&target, HOST), "the host is connected with a removed key");
    drop(controller);
    set(&[]);
    moves_data(&connect(&target, &options(HOST, None)).expect("the host needs no key"));
    moves_data(&other);
}

#[test]
fn each_listener_has_its_own_tls_policy() {
    let target = steered();
    let control = target.control();
    let strict = control.listen(any(), &PortAccess::default(), TlsPolicy::Required).unwrap();
    let open = control.listen(any(), &PortAccess::default(), TlsPolicy::Plain).unwrap();
    let file = KeyFile::of_key(&key(Hash::Sha256, 1));
    let at = |address: SocketAddr, options: &Options| {
        Controller::connect(&address.to_string(), NQN, options)
    };
    at(strict, &options(HOST, Some(&file))).map(drop).expect("the host's key is valid");
    at(strict, &options(OTHER, None)).map(drop).expect_err("TLS is required");
    at(open, &options(OTHER, None)).map(drop).expect("a host without a key needs none");
    at(open, &options(HOST, None)).map(drop).expect_err("the host has a key");
    at(open, &options(HOST, Some(&file))).map(drop).expect_err("the port has no TLS");
    // The target disconnects a host that connected without TLS, once TLS is required.
    let stays = at(open, &options(OTHER, None)).expect("a host without a key needs none");
    let keyed = at(strict, &options(HOST, Some(&file))).expect("the host's key is valid");
    let gone = Blocking::new(&stays.namespace(1).expect("namespace 1 exists")).map(drop);
    gone.expect("a queue");
    control.set_tls(open, TlsPolicy::Required).unwrap();
    control.set_tls(strict, TlsPolicy::Required).unwrap();
    eventually(|| !is_connected(&target, OTHER));
    at(open, &options(OTHER, None)).map(drop).expect_err("TLS is required");
    assert!(is_connected(&target, HOST));
    moves_data(&keyed);
}

/// Waits until `is_so` returns true.
fn eventually(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "the condition did not hold within the time limit");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `bytes`, and returns the target's reply until it closes the connection.
fn answer(target: &Target, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(target.addresses()[0]).expect("the target listens");
    stream.write_all(bytes).expect("the target reads");
    // The connection may already be reset, with some bytes unread.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn peers_with_invalid_tls_are_disconnected_and_disturb_no_host() {
    let good = key(Hash::Sha256, 1);
    let target = serve(std::slice::from_ref(&good), TlsPolicy::Required, EngineKind::Auto);
    let file = KeyFile::of_key(&good);
    let controller = connect(&target, &options(HOST, Some(&file))).expect("the host has the key");
    // The inputs: bytes without TLS, the start of a record, an alert, a record with an excessive
    // length, and noise.
    let mut noise = vec![22, 3, 3, 0x3f, 0xff];
    noise.extend((0..20_000u32).map(|n| ((n * 7919) >> 3) as u8));
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3], &[21, 3, 3, 0, 2, 2, 40], &noise, &[]] {
        let answer = answer(&target, bytes);
        assert!(answer.is_empty() || answer[0] == 21, "the answer is not a TLS alert: {answer:x?}");
    }
    moves_data(&controller);
}

/// `openssl s_client` is a Linux program, so these tests do not run under Wine.
#[cfg(unix)]
mod others {
    use super::*;
    use farblock_secure::{Derivation, IdentityForm};
    use std::process::{Command, Stdio};

    /// Runs `openssl s_client` as a client without a key.
    fn s_client(target: &Target, arguments: &[&str]) -> String {
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &target.addresses()[0].to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("no openssl: interop/packages.sh installs it");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn an_openssl_client_connects_only_with_the_key() {
        let good = key(Hash::Sha256, 1);
        let target = serve(std::slice::from_ref(&good), TlsPolicy::Required, EngineKind::Auto);
        let psk =
            good.psk(HOST, NQN, IdentityForm::Digest, Derivation::Specified).expect("a valid key");
        let secret: String = psk.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let with = |identity: &str, secret: &str, more: &[&str]| {
            let arguments = [&["-psk_identity", identity, "-psk", secret][..], more].concat();
            s_client(&target, &arguments)
        };
        let text = with(&psk.identity, &secret, &[]);
        assert!(text.contains("Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"), "{text}");
        let wrong = "00".repeat(32);
        for text in [
            with(&psk.identity, &wrong, &[]),
            with("NVMe0R01 somebody else", &secret, &[]),
            with(&psk.identity, &secret, &["-tls1_2"]),
            s_client(&target, &[]),
        ] {
            assert!(text.contains("Cipher is (NONE)"), "{text}");
        }
        // This client has a key, but does not offer a fresh key exchange.
        let text = with(&psk.identity, &secret, &["-allow_no_dhe_kex", "-curves", "X448"]);
        assert!(!text.contains("Reused, "), "{text}");
    }

    /// Runs the TLS client `gnutls-cli` with AES-128-GCM. Returns whether it connected, and its
    /// output.
    fn gnutls_cli(target: &Target, identity: &str, secret: &str) -> (bool, String) {
        const PRIORITY: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:\
                                +AES-128-GCM";
        let output = Command::new("gnutls-cli")
            .args(["--no-ca-verification", "--port", &target.addresses()[0].port().to_string()])
            .args(["--priority", PRIORITY, "--pskusername", identity, "--pskkey", secret])
            .arg("127.0.0.1")
            .stdin(Stdio::null())
            .output()
            .expect("no gnutls-cli: interop/packages.sh installs it");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (text.contains("Handshake was completed"), text)
    }

    #[test]
    fn a_gnutls_client_connects_only_with_the_key() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let good = key(hash, 1);
            let target = serve(std::slice::from_ref(&good), TlsPolicy::Required, EngineKind::Auto);
            let psk = good.psk(HOST, NQN, IdentityForm::Digest, Derivation::Specified);
            let psk = psk.expect("a valid key");
            let secret: String = psk.key.iter().map(|byte| format!("{byte:02x}")).collect();
            let (is_in, said) = gnutls_cli(&target, &psk.identity, &secret);
            // GnuTLS offers only the cipher suite of SHA-256 keys.
            assert_eq!(is_in, hash == Hash::Sha256, "{said}");
            let wrong = "00".repeat(psk.key.len());
            for (identity, secret) in
                [(&psk.identity, &wrong), (&"NVMe0R01 somebody else".to_owned(), &secret)]
            {
                let (is_in, said) = gnutls_cli(&target, identity, secret);
                assert!(!is_in, "{said}");
            }
            // After all these clients, the target must still serve a host with the right key.
            let file = KeyFile::of_key(&good);
            moves_data(&connect(&target, &options(HOST, Some(&file))).expect("a valid key"));
        }
    }

    #[test]
    fn tls_keys_are_updated_as_an_openssl_client_requests() {
        const IC_RESP: [u8; 8] = [1, 0, 128, 0, 128, 0, 0, 0];
        let good = key(Hash::Sha256, 1);
        let target = serve(std::slice::from_ref(&good), TlsPolicy::Required, EngineKind::Auto);
        let psk =
            good.psk(HOST, NQN, IdentityForm::Digest, Derivation::Specified).expect("a valid key");
        let secret: String = psk.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut ic_req = vec![0; 128];
        ic_req[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
        for updates in [&[b"K\n"][..], &[b"k\n"], &[b"K\n", b"k\n", b"K\n"]] {
            let mut client = Command::new("openssl")
                .args(["s_client", "-connect", &target.addresses()[0].to_string()])
                .args(["-psk_identity", &psk.identity, "-psk", &secret])
                .arg("-msg")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("no openssl: interop/packages.sh installs it");
            let mut input = client.stdin.take().expect("a pipe");
            let mut output = client.stdout.take().expect("a pipe");
            let mut said = Vec::new();
            let mut wait_for = |part: &[u8], count: usize| {
                let mut byte = [0];
                while said.windows(part.len()).filter(|it| *it == part).count() < count {
                    assert_eq!(
                        output.read(&mut byte).expect("the client runs"),
                        1,
                        "{}",
                        String::from_utf8_lossy(&said)
                    );
                    said.push(byte[0]);
                }
            };
            wait_for(b"Verif", 1);
            for (index, update) in updates.iter().enumerate() {
                // The client reads commands one by one, so it must have consumed the previous
                // command.
                input.write_all(*update).expect("the client runs");
                wait_for(b">>> TLS 1.3, Handshake [length 0005], KeyUpdate", index + 1);
            }
            input.write_all(&ic_req).expect("the client runs");
            wait_for(&IC_RESP, 1);
            let asked = updates.iter().filter(|update| **update == b"K\n").count();
            wait_for(b"<<< TLS 1.3, Handshake [length 0005], KeyUpdate", asked);
            drop(input);
            client.kill().expect("the client runs");
            client.wait().expect("the client exits");
        }
    }
}
