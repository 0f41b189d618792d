//! Tests this server with clients of other TLS implementations. The server repeatedly requests key
//! updates.
#![cfg(unix)]

use farblock_secure::{Derivation, Hash, IdentityForm, TlsKey, TlsPsk};
use farblock_tls::{ServerKeys, Tls, TlsError, server_with};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

const HOST: &str = "nqn.2026-11.h:other";
const SUBSYSTEM: &str = "nqn.2026-11.s:other";
/// The number of lines that the client sends and the server returns.
const LINES: usize = 200;

/// Echoes the client's data until the connection ends. Returns the number of echoed bytes.
fn echo(mut socket: TcpStream, keys: Arc<ServerKeys>, per_key: u64) -> Result<usize, TlsError> {
    let mut tls = server_with(keys, per_key)?;
    let mut buffer = vec![0; 1 << 16];
    let mut echoed = 0;
    let mut is_done = false;
    loop {
        let count = socket.read(&mut buffer).unwrap_or(0);
        if count == 0 {
            return Ok(echoed);
        }
        let mut plain = Vec::new();
        let mut ended = None;
        let mut sealed = &buffer[..count];
        if !is_done {
            tls.feed(std::mem::take(&mut sealed));
            is_done = tls.handshake()?;
        }
        // Decrypt also the data that arrived together with the end of the handshake.
        if is_done {
            plain.resize(tls.openable_bytes(sealed.len()), 0);
            let (filled, end) = tls.open(sealed, &mut plain);
            plain.truncate(filled);
            ended = end;
        }
        echoed += plain.len();
        // Send one record for each line.
        for line in std::iter::once(&[][..]).chain(plain.split_inclusive(|&byte| byte == b'\n')) {
            say(&mut *tls, &mut socket, line);
        }
        match ended {
            None => {}
            Some(TlsError::Closed) => return Ok(echoed),
            Some(error) => return Err(error),
        }
    }
}

fn say(tls: &mut dyn Tls, socket: &mut TcpStream, plain: &[u8]) {
    let mut sealed = vec![0; tls.sealed_bytes(plain.len())];
    let length = tls.seal(&mut std::iter::once(plain), &mut sealed).unwrap_or_default();
    // If the client has closed the connection, the next read reports it.
    let _ = socket.write_all(&sealed[..length]);
}

/// Makes the client send lines. The client sends each line after the server has returned the
/// previous one. On failure, returns the client's output as the error.
fn talk(mut client: Command) -> Result<(), String> {
    let mut client =
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut output = client.stdout.take().unwrap();
    let mut said = Vec::new();
    for number in 0..LINES {
        let line = format!("line {number} of them\n");
        // If the client has closed the connection, its output states the reason. The output is read
        // below.
        let _ = input.write_all(line.as_bytes());
        let mut byte = [0];
        while !said.windows(line.len()).any(|part| part == line.as_bytes()) {
            if output.read(&mut byte).unwrap() == 0 {
                let _ = client.kill();
                let ended = client.wait_with_output().unwrap();
                let said = [said, ended.stderr].concat();
                return Err(String::from_utf8_lossy(&said).into_owned());
            }
            said.push(byte[0]);
        }
        said.clear();
    }
    drop(input);
    let _ = client.kill();
    client.wait().unwrap();
    Ok(())
}

fn hex(psk: &TlsPsk) -> String {
    psk.key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn openssl(port: u16, psk: &TlsPsk) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
    command.args(["-psk_identity", &psk.identity, "-psk", &hex(psk)]);
    command
}

fn gnutls(port: u16, psk: &TlsPsk) -> Command {
    const PRIORITY: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:\
                            +AES-128-GCM";
    let mut command = Command::new("gnutls-cli");
    command.args(["--no-ca-verification", "--port", &port.to_string(), "--priority", PRIORITY]);
    command.args(["--pskusername", &psk.identity, "--pskkey", &hex(psk), "127.0.0.1"]);
    command
}

/// Starts a server that echoes to one client with the key. Returns the port and the thread.
fn serve(key: TlsKey, per_key: u64) -> (u16, JoinHandle<Result<usize, TlsError>>) {
    let mut keys = ServerKeys::default();
    keys.add(key, HOST);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        echo(socket, Arc::new(keys), per_key)
    });
    (port, server)
}

#[test]
fn openssl_and_gnutls_clients_follow_key_updates_of_the_server() {
    // Neither client supports a pre-shared key with SHA-384 (GnuTLS supports it from 3.8.11 on).
    // GnuTLS accepts at most eight updates in a second.
    for (client, per_key) in [(openssl as fn(u16, &TlsPsk) -> Command, 3), (gnutls, 100)] {
        let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(3)).unwrap();
        let psk = key.psk(HOST, SUBSYSTEM, IdentityForm::Digest, Derivation::Specified).unwrap();
        let (port, server) = serve(key, per_key);
        let talked = talk(client(port, &psk));
        let echoed = server.join().unwrap();
        talked.unwrap_or_else(|said| panic!("{echoed:?}: {said}"));
        assert!(echoed.as_ref().is_ok_and(|&bytes| bytes > LINES * 10), "{echoed:?}");
    }
}

/// Returns a client that uses wolfSSL. Builds the client at the first call. `suite` is wolfSSL's
/// name of the cipher suite.
fn wolfssl(port: u16, psk: &TlsPsk, suite: &str) -> Command {
    static CLIENT: LazyLock<PathBuf> = LazyLock::new(|| {
        let client = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wolfssl");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/others/wolfssl.c");
        let built = Command::new("cc").args([source, "-lwolfssl", "-o"]).arg(&client).status();
        let is_built = built.is_ok_and(|status| status.success());
        assert!(is_built, "no libwolfssl-dev: interop/packages.sh installs it");
        client
    });
    let mut command = Command::new(&*CLIENT);
    command.args([&port.to_string(), &psk.identity, &hex(psk), suite]);
    command
}

/// Tests both cipher suites with an unrelated implementation, with and without key updates.
#[test]
fn wolfssl_works_with_both_cipher_suites() {
    const SHORT: &str = "TLS13-AES128-GCM-SHA256";
    const LONG: &str = "TLS13-AES256-GCM-SHA384";
    for (hash, suite, is_let_in) in [
        (Hash::Sha256, SHORT, true),
        (Hash::Sha384, LONG, true),
        (Hash::Sha256, LONG, false),
        (Hash::Sha384, SHORT, false),
    ] {
        for per_key in [u64::MAX, 5] {
            let key = TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(3)).unwrap();
            let psk = key.psk(HOST, SUBSYSTEM, IdentityForm::Digest, Derivation::Specified);
            let psk = psk.unwrap();
            let (port, server) = serve(key, per_key);
            let talked = talk(wolfssl(port, &psk, suite));
            let echoed = server.join().unwrap();
            assert_eq!(talked.is_ok(), is_let_in, "{hash} {suite}: {echoed:?}, {talked:?}");
            let echoes = echoed.as_ref().is_ok_and(|&bytes| bytes > LINES * 10);
            assert_eq!(echoes, is_let_in, "{hash} {suite}: {echoed:?}");
        }
    }
}

/// A host with a key cannot make the server use another hash or cipher than its identity names.
#[test]
fn a_client_cannot_choose_another_suite_than_its_key_has() {
    // wolfSSL's client treats every pre-shared key as a key with SHA-256.
    for (hash, suites, is_let_in) in [
        (Hash::Sha256, "TLS_AES_128_GCM_SHA256", true),
        (Hash::Sha256, "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256", true),
        (Hash::Sha256, "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384", false),
        (Hash::Sha256, "TLS_AES_128_CCM_SHA256", false),
        (Hash::Sha384, "TLS_AES_128_GCM_SHA256", false),
        (Hash::Sha384, "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256", false),
    ] {
        let key = TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(3)).unwrap();
        let psk = key.psk(HOST, SUBSYSTEM, IdentityForm::Names, Derivation::Specified).unwrap();
        let (port, server) = serve(key, u64::MAX);
        let mut client = openssl(port, &psk);
        client.args(["-ciphersuites", suites]);
        let talked = talk(client);
        let ended = server.join().unwrap();
        assert_eq!((talked.is_ok(), ended.is_ok()), (is_let_in, is_let_in), "{suites}: {ended:?}");
    }
}
