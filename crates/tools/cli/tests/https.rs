//! Tests of the management API, the dashboards and the counters over HTTPS: trusted and untrusted
//! certificates, error messages, and curl and OpenSSL as clients.
#![cfg(unix)]

mod support;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use support::{Outcome, Scratch, Server, WAIT_LIMIT, finish, until};

const NQN: &str = "nqn.2026-11.org.farblock:https";
const ADMIN: &str = "0123456789abcdef0123456789abcdef";
const WATCH: &str = "fedcba9876543210fedcba9876543210";

/// Creates a file that only its owner may read.
fn secret(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))
        .expect("the permissions are set");
    path
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a target");
    params
}

fn authority(scratch: &Scratch, name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    scratch.file(&format!("{name}.pem"), issuer.pem().as_bytes());
    issuer
}

/// Writes a certificate to cert.pem, and its key to key.pem.
fn certify(scratch: &Scratch, params: &CertificateParams, by: &CertifiedIssuer<'_, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, by).unwrap();
    scratch.file("cert.pem", certificate.pem().as_bytes());
    secret(scratch, "key.pem", &key.serialize_pem());
}

/// Writes a self-signed certificate that claims to be an authority, as `openssl req -x509` makes
/// it.
fn certify_itself(scratch: &Scratch, mut params: CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    scratch.file("cert.pem", params.self_signed(&key).unwrap().pem().as_bytes());
    secret(scratch, "key.pem", &key.serialize_pem());
}

fn tokens(scratch: &Scratch) -> String {
    secret(scratch, "tokens", &format!("ops admin {ADMIN}\nwatcher read-only {WATCH}\n"))
}

/// Starts a target with the certificate in cert.pem. Returns it with the port of its API.
fn start(scratch: &Scratch, more: &[&str]) -> (Server, String) {
    let tokens = tokens(scratch);
    let args = ["--nqn", NQN, "mem:1MiB", "--api", "127.0.0.1:0", "--api-tokens", &tokens];
    let with = ["--https-cert", "cert.pem", "--https-key", "key.pem"];
    let server = scratch.serve(args.iter().chain(&with).chain(more));
    let port = said(&server, "interface at https://127.0.0.1:");
    (server, port)
}

/// Returns the rest of the target's output line that begins with `words`.
fn said(server: &Server, words: &str) -> String {
    let found = server.said.lines().find_map(|line| line.strip_prefix(words));
    found.unwrap_or_else(|| panic!("{}", server.said)).to_owned()
}

fn status(scratch: &Scratch, url: &str, ca: &str) -> Outcome {
    let token = secret(scratch, "token", WATCH);
    scratch.run(["status", "--json", "--api", url, "--token-file", &token, "--api-ca", ca])
}

fn other(scratch: &Scratch, program: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    scratch.prepare(&mut command);
    finish(
        {
            command.args(args);
            command
        },
        b"",
    )
}

#[test]
fn a_client_accepts_only_a_certificate_of_the_given_authority_and_name() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    authority(&scratch, "theirs");
    certify(&scratch, &params(&["localhost", "127.0.0.1"]), &ours);
    let (server, port) = start(&scratch, &[]);
    let url = format!("https://localhost:{port}");
    let seen = status(&scratch, &url, "ours.pem").ok().json();
    assert_eq!(seen["subsystems"][0]["nqn"], NQN);
    status(&scratch, &format!("https://127.0.0.1:{port}/"), "ours.pem").ok();
    let admin = secret(&scratch, "admin", ADMIN);
    let place = ["--api", url.as_str(), "--token-file", &admin, "--api-ca", "ours.pem"];
    scratch.run(["ctl", "add-namespace", NQN, "mem:2MiB"].iter().chain(&place)).ok();
    status(&scratch, &url, "theirs.pem")
        .fails_in_a_line(1, &["no certificate in the file of", "--api-ca"]);
    status(&scratch, &url, "key.pem").fails_in_a_line(1, &["key.pem", "contains no certificate"]);
    let plain = format!("http://127.0.0.1:{port}");
    let token = secret(&scratch, "token", WATCH);
    scratch
        .run(["status", "--api", &plain, "--token-file", &token])
        .fails_in_a_line(1, &["this address is HTTPS"]);
    scratch
        .run(["status", "--api", &url, "--token-file", &token])
        .fails_in_a_line(2, &["--api-ca"]);
    status(&scratch, &plain, "ours.pem").fails_in_a_line(2, &["write https://"]);
    // Silent clients and clients without TLS must not block others.
    let silent: Vec<_> = (0..80)
        .map(|_| TcpStream::connect(format!("127.0.0.1:{port}")).expect("the connection opens"))
        .collect();
    status(&scratch, &url, "ours.pem").ok();
    drop(silent);
    let log = server.stop().stderr;
    assert!(log.contains("token ops, from 127.0.0.1:"), "{log}");
    assert!(!log.contains(ADMIN) && !log.contains(WATCH) && !log.contains("PRIVATE"), "{log}");
}

#[test]
fn a_client_reports_why_it_refuses_a_certificate() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    let now_is_past = |mut it: CertificateParams| {
        it.not_before = rcgen::date_time_ymd(2019, 1, 1);
        it.not_after = rcgen::date_time_ymd(2020, 1, 1);
        it
    };
    let to_come = |mut it: CertificateParams| {
        it.not_before = rcgen::date_time_ymd(4000, 1, 1);
        it
    };
    let all = || params(&["127.0.0.1"]);
    let config = format!(
        "[[subsystems]]\nnqn = \"{NQN}\"\nallow_any_host = true\n[[subsystems.namespaces]]\npath = \
         \"mem:1MiB\"\n"
    );
    scratch.file("farblock.toml", config.as_bytes());
    let named = ["--https-cert", "cert.pem", "--https-key", "key.pem"];
    let check = [&["serve", "--check", "farblock.toml"][..], &named].concat();
    for (params, sentence) in [
        (now_is_past(all()), "has expired"),
        (to_come(all()), "not valid yet"),
        (params(&["elsewhere.example"]), "is not for 127.0.0.1"),
    ] {
        certify(&scratch, &params, &ours);
        // The check ignores names: it does not know by which names clients reach the target.
        let checked = scratch.run(&check);
        match sentence {
            "is not for 127.0.0.1" => checked.ok(),
            _ => checked.fails_in_a_line(1, &["--https-cert", sentence]),
        };
        let (server, port) = start(&scratch, &[]);
        let url = format!("https://127.0.0.1:{port}");
        status(&scratch, &url, "ours.pem").fails_in_a_line(1, &[sentence]);
        server.stop();
        // Trusting the certificate itself does not help: its fault remains.
        certify_itself(&scratch, params);
        let (server, port) = start(&scratch, &[]);
        let url = format!("https://127.0.0.1:{port}");
        status(&scratch, &url, "cert.pem").fails_in_a_line(1, &[sentence]);
        server.stop();
    }
    certify_itself(&scratch, all());
    let (server, port) = start(&scratch, &[]);
    let url = format!("https://127.0.0.1:{port}");
    status(&scratch, &url, "cert.pem").ok();
    status(&scratch, &url, "ours.pem").fails_in_a_line(1, &["no certificate in the file of"]);
    server.stop();
    let tokens = tokens(&scratch);
    let server = scratch.serve(["mem:1MiB", "--api", "127.0.0.1:0", "--api-tokens", &tokens]);
    let plain = said(&server, "interface at http://");
    status(&scratch, &format!("https://{plain}"), "ours.pem")
        .fails_in_a_line(1, &["does not use TLS"]);
}

#[test]
fn serve_refuses_unusable_certificates_and_keys() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    certify(&scratch, &params(&["localhost"]), &ours);
    let tokens = tokens(&scratch);
    let api = ["serve", "mem:1MiB", "--api", "0.0.0.0:0", "--api-tokens", &tokens];
    let serve = |cert: &str, key: &str| {
        let with = ["--https-cert", cert, "--https-key", key];
        scratch.run(api.iter().chain(&with))
    };
    scratch.run(api.iter().chain(&["--https-cert", "cert.pem"])).fails(2, &["--https-key"]);
    scratch.run(api).fails_in_a_line(2, &["other machines", "--https-cert"]);
    serve("none.pem", "key.pem").fails_in_a_line(1, &["none.pem"]);
    serve("key.pem", "key.pem").fails_in_a_line(1, &["contains no certificate"]);
    serve("cert.pem", "tokens").fails_in_a_line(1, &["no usable private key"]);
    let another = KeyPair::generate().unwrap().serialize_pem();
    let another = secret(&scratch, "another.pem", &another);
    serve("cert.pem", &another).fails_in_a_line(1, &["does not belong to the certificate"]);
    std::fs::set_permissions(&another, PermissionsExt::from_mode(0o644)).unwrap();
    serve("cert.pem", &another).fails_in_a_line(1, &["chmod 600"]);
    let pipe = scratch.text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    serve(&pipe, "key.pem").fails_in_a_line(1, &["pipe", "it must be a regular file"]);
    let neither = ["serve", "mem:1MiB", "--https-cert", "cert.pem", "--https-key", "key.pem"];
    scratch.run(neither).fails_in_a_line(2, &["--api, --ui or --metrics"]);
}

#[test]
fn a_running_target_uses_a_renewed_certificate() {
    let scratch = Scratch::new();
    let (old, new) = (authority(&scratch, "old"), authority(&scratch, "new"));
    certify(&scratch, &params(&["127.0.0.1"]), &old);
    let (server, port) = start(&scratch, &[]);
    let url = format!("https://127.0.0.1:{port}");
    status(&scratch, &url, "old.pem").ok();
    // A half-written file must change nothing.
    scratch.file("cert.pem", b"-----BEGIN CERT");
    status(&scratch, &url, "old.pem").ok();
    certify(&scratch, &params(&["127.0.0.1"]), &new);
    until("the target uses the new certificate", || {
        status(&scratch, &url, "new.pem").code == Some(0)
    });
    status(&scratch, &url, "old.pem").fails_in_a_line(1, &["no certificate in the file of"]);
    assert!(server.stop().stderr.contains("new connections use the new certificate"));
}

#[test]
fn curl_and_openssl_connect_over_https() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    certify(&scratch, &params(&["localhost"]), &ours);
    let (_server, port) = start(&scratch, &[]);
    let header = format!("Authorization: Bearer {WATCH}");
    let url = format!("https://localhost:{port}/v1/status");
    let curl = |ca: &str, header: &str, url: &str| {
        other(&scratch, "curl", &["-sS", "--noproxy", "*", "--cacert", ca, "-H", header, url])
    };
    assert!(curl("ours.pem", &header, &url).ok().out().contains(NQN));
    assert!(curl("ours.pem", "X-Nothing: a", &url).ok().out().contains("needs a token"));
    assert_ne!(curl("cert.pem", &header, &url.replace("localhost", "127.0.0.1")).code, Some(0));
    let plain = curl("ours.pem", &header, &url.replace("https", "http")).ok();
    assert!(plain.out().contains("this address is HTTPS"), "{}", plain.out());
    let at = format!("localhost:{port}");
    let args = ["s_client", "-connect", &at, "-CAfile", "ours.pem", "-verify_return_error"];
    let shaken = other(&scratch, "openssl", &args).ok().out();
    assert!(
        shaken.contains("Verify return code: 0 (ok)") && shaken.contains("TLSv1.3"),
        "{shaken}"
    );
    let old = other(&scratch, "openssl", &[&args[..], &["-tls1_1"]].concat());
    assert_ne!(old.code, Some(0), "{}", old.out());
}

#[test]
fn events_over_https_require_a_token() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    certify(&scratch, &params(&["localhost"]), &ours);
    let (_server, port) = start(&scratch, &[]);
    let header = format!("Authorization: Bearer {WATCH}");
    let url = format!("https://localhost:{port}/v1/events?stats=false");
    let mut command = Command::new("curl");
    scratch.prepare(&mut command);
    command.args(["-sSN", "--noproxy", "*", "--cacert", "ours.pem", "-H", &header, &url]);
    let mut reader = command.spawn().expect("curl starts");
    let mut events = reader.stdout.take().expect("the stream is a pipe");
    let mut text = String::new();
    let mut read = |until: &str| {
        let mut piece = [0; 4096];
        while !text.contains(until) {
            let count = events.read(&mut piece).expect("the stream continues");
            assert!(count > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    };
    // The server sends the first comment once the client is subscribed.
    read(":\n\n");
    scratch.run(["ctl", "add-namespace", NQN, "mem:2MiB"]).ok();
    read("event: namespace_added");
    reader.kill().expect("the process still runs");
    reader.wait().expect("the reader exits");
    let refused = format!("https://localhost:{port}/v1/events");
    let refused =
        other(&scratch, "curl", &["-sS", "--noproxy", "*", "--cacert", "ours.pem", &refused]);
    assert!(refused.ok().out().contains("needs a token"));
}

#[test]
fn the_ui_shows_only_targets_with_a_trusted_certificate() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    authority(&scratch, "theirs");
    certify(&scratch, &params(&["localhost", "127.0.0.1"]), &ours);
    let watch = secret(&scratch, "watch", WATCH);
    let (_server, port) = start(&scratch, &["--ui", "127.0.0.1:0", "--ui-token", &watch]);
    let nodes = |ca: &str| {
        let node = format!("one=https://localhost:{port}");
        let page = secret(&scratch, "page", &"p".repeat(32));
        let args = ["ui", "--node", &node, "--node-token", &watch, "--node-ca", ca];
        let mut command = scratch.command(args.iter().chain(&["--token", &page, "--json"]));
        let mut page = command.spawn().expect("the command starts");
        let mut line = String::new();
        let stdout = page.stdout.take().expect("the stream is a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
        let at = said["dashboard"].as_str().and_then(|it| it.strip_prefix("http://")).unwrap();
        let mut stream = TcpStream::connect(at.split('/').next().unwrap()).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        let token = "p".repeat(32);
        write!(
            stream,
            "GET /v1/nodes HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        page.kill().unwrap();
        page.wait().unwrap();
        answer
    };
    assert!(nodes("ours.pem").contains(NQN));
    assert!(nodes("theirs.pem").contains("no certificate in the file of"));
    let node = format!("https://localhost:{port}");
    scratch.run(["ui", "--node", &node, "--node-token", &watch]).fails_in_a_line(2, &["--node-ca"]);
}

#[test]
fn the_dashboard_of_a_target_uses_https() {
    let scratch = Scratch::new();
    let ours = authority(&scratch, "ours");
    certify(&scratch, &params(&["localhost"]), &ours);
    let watch = secret(&scratch, "watch", WATCH);
    let with = ["--https-cert", "cert.pem", "--https-key", "key.pem"];
    let args = ["--nqn", NQN, "mem:1MiB", "--ui", "127.0.0.1:0", "--ui-token", &watch];
    let server = scratch.serve(args.iter().chain(&with));
    let at = said(&server, "dashboard at https://127.0.0.1:");
    let port = at.trim_end_matches('/');
    let curl = |more: &[&str], path: &str| {
        let url = format!("https://localhost:{port}{path}");
        let args = ["-sS", "--noproxy", "*", "--cacert", "ours.pem", &url];
        other(&scratch, "curl", &[&args[..], more].concat()).ok().out()
    };
    assert!(curl(&[], "/").contains("<html"));
    assert!(curl(&[], "/v1/status").contains("needs the token"));
    let header = format!("Authorization: Bearer {WATCH}");
    assert!(curl(&["-H", &header], "/v1/status").contains(NQN));
}

#[test]
fn the_counters_use_https() {
    let scratch = Scratch::new();
    let (old, new) = (authority(&scratch, "old"), authority(&scratch, "new"));
    certify(&scratch, &params(&["localhost"]), &old);
    let with = ["--https-cert", "cert.pem", "--https-key", "key.pem"];
    let args = ["--nqn", NQN, "mem:1MiB", "--metrics", "127.0.0.1:0"];
    let server = scratch.serve(args.iter().chain(&with));
    let url = said(&server, "counters at ").replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://localhost:") && url.ends_with("/metrics"), "{url}");
    let curl = |ca: &str, url: &str| {
        let args = ["-sS", "--fail-with-body", "--noproxy", "*", "--cacert", ca, url];
        other(&scratch, "curl", &args)
    };
    assert!(curl("old.pem", &url).ok().out().contains("farblock_uptime_seconds"));
    assert_eq!(curl("new.pem", &url).code, Some(60), "curl accepted another authority");
    let plain = curl("old.pem", &url.replace("https", "http"));
    assert!(plain.out().contains("this address is HTTPS"), "{}", plain.out());
    certify(&scratch, &params(&["localhost"]), &new);
    until("the server uses the new certificate", || curl("new.pem", &url).code == Some(0));
    server.stop();
}

/// Starts a dashboard of several targets with this certificate. Returns it with its address.
fn page(scratch: &Scratch, node: &str, listen: &str) -> (Ended, String) {
    let token = secret(scratch, "page", &"p".repeat(32));
    let with = ["--https-cert", "cert.pem", "--https-key", "key.pem", "--token", &token];
    let args = ["ui", "--node", node, "--listen", listen, "--json"];
    let mut page = scratch.command(args.iter().chain(&with)).spawn().expect("the command starts");
    let mut line = String::new();
    let stdout = page.stdout.take().expect("the stream is a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let page = Ended(page);
    let said: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
    (page, said["dashboard"].as_str().unwrap().to_owned())
}

/// A process that is killed when the value is dropped.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_dashboard_of_several_targets_uses_https() {
    let scratch = Scratch::new();
    let (old, new) = (authority(&scratch, "old"), authority(&scratch, "new"));
    certify(&scratch, &params(&["localhost"]), &old);
    let socket = scratch.path("control").display().to_string();
    let _server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--control", &socket]);
    let node = format!("one={socket}");
    // With HTTPS, `farblock ui` may listen on addresses beyond loopback.
    let (_page, at) = page(&scratch, &node, "0.0.0.0:0");
    let port = at.trim_end_matches('/').rsplit_once(':').unwrap().1;
    assert!(at.starts_with("https://"), "{at}");
    let header = format!("Authorization: Bearer {}", "p".repeat(32));
    let curl = |ca: &str, more: &[&str], path: &str| {
        let url = format!("https://localhost:{port}{path}");
        let args = ["-sS", "--noproxy", "*", "--cacert", ca, &url];
        other(&scratch, "curl", &[&args[..], more].concat())
    };
    assert!(curl("old.pem", &[], "/").ok().out().contains("<html"));
    assert!(curl("old.pem", &[], "/v1/nodes").ok().out().contains("needs the token"));
    assert!(curl("old.pem", &["-H", &header], "/v1/nodes").ok().out().contains(NQN));
    assert_eq!(curl("new.pem", &[], "/").code, Some(60), "curl accepted another authority");
    certify(&scratch, &params(&["localhost"]), &new);
    until("the server uses the new certificate", || curl("new.pem", &[], "/").code == Some(0));
}

#[test]
fn tokens_are_refused_on_unencrypted_connections_to_other_machines() {
    let scratch = Scratch::new();
    let token = secret(&scratch, "token", WATCH);
    let ours = authority(&scratch, "ours");
    certify(&scratch, &params(&["localhost"]), &ours);
    let serve = ["serve", "mem:1MiB", "--ui", "0.0.0.0:0"];
    let with = ["--https-cert", "cert.pem", "--https-key", "key.pem"];
    scratch
        .run(serve.iter().chain(&["--ui-token", &token]))
        .fails_in_a_line(2, &["other machines", "unencrypted", "--https-cert", "ssh -L"]);
    scratch.run(serve.iter().chain(&with)).fails_in_a_line(2, &["is of no use", "--ui-token"]);
    let page = ["ui", "--node", "a=/nowhere", "--listen", "0.0.0.0:0", "--token", &token];
    scratch.run(page).fails_in_a_line(2, &["other machines", "--https-cert", "ssh -L"]);
    scratch.run(page.iter().chain(&with[..2])).fails(2, &["--https-key"]);
    // Counters are not secret, so a warning is enough.
    let told = |args: &[&str]| {
        let args = [&["--nqn", NQN, "mem:1MiB", "--metrics"], args].concat();
        scratch.serve(args).stop().stderr.contains("can read the metrics")
    };
    assert!(told(&["0.0.0.0:0"]));
    assert!(!told(&[&["0.0.0.0:0"][..], &with].concat()));
    assert!(!told(&["127.0.0.1:0"]));
}
