//! Tests of a group whose etcd requires a user, a password and a client certificate. The
//! configuration file defines the group. Each wrong setting must give one clear sentence.
#![cfg(target_os = "linux")]

mod support;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use support::etcd::{Running, free};
use support::{Scratch, has, until};

fn secret(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(name, text.as_bytes());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))
        .expect("the permissions are set");
    path
}

fn authority(scratch: &Scratch, name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params =
        CertificateParams::new(Vec::new()).expect("the certificate parameters are valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("the key is generated");
    let issuer = CertifiedIssuer::self_signed(params, key).expect("the certificate is signed");
    scratch.file(&format!("{name}.pem"), issuer.pem().as_bytes());
    issuer
}

fn certify(scratch: &Scratch, name: &str, issuer: &CertifiedIssuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .expect("the certificate parameters are valid");
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("the key is generated");
    let certificate = params.signed_by(&key, issuer).expect("the certificate is signed");
    scratch.file(&format!("{name}.pem"), certificate.pem().as_bytes());
    secret(scratch, &format!("{name}.key"), &key.serialize_pem());
}

/// etcd with one address for the set-up and one that demands certificates.
struct Etcd {
    plain: SocketAddr,
    secure: SocketAddr,
    peer: SocketAddr,
    process: Option<Running>,
}

impl Etcd {
    fn new(scratch: &Scratch) -> Self {
        assert!(has("etcd"), "install etcd (Debian: etcd-server)");
        let mut etcd = Self { plain: free(), secure: free(), peer: free(), process: None };
        etcd.start(scratch);
        etcd
    }

    fn start(&mut self, scratch: &Scratch) {
        let clients = format!("http://{},https://{}", self.plain, self.secure);
        let peer = format!("http://{}", self.peer);
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir", &scratch.text("etcd"), "--unsafe-no-fsync"])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--client-cert-auth"])
            .args(["--cert-file", &scratch.text("etcd.pem"), "--key-file"])
            .args([&scratch.text("etcd.key"), "--trusted-ca-file", &scratch.text("ours.pem")])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(scratch.path("etcd.log")).expect("the log file opens"))
            .spawn();
        self.process = Some(Running(child.expect("etcd starts")));
        until("etcd listens", || TcpStream::connect(self.plain).is_ok());
    }

    fn restart(&mut self, scratch: &Scratch) {
        self.process = None;
        self.start(scratch);
    }

    /// Sends a request to etcd's HTTP interface.
    fn post(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(self.plain).expect("etcd listens");
        let length = body.len();
        write!(
            stream,
            "POST /v3/auth/{path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
        .expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }

    fn demand_passwords(&self) {
        self.post("user/add", r#"{"name":"root","password":"of root"}"#);
        self.post("role/add", r#"{"name":"root"}"#);
        self.post("user/grant", r#"{"user":"root","role":"root"}"#);
        self.post("user/add", r#"{"name":"farblock","password":"correct"}"#);
        self.post("role/add", r#"{"name":"group"}"#);
        // The keys from "farblock/" to "farblock0", in base64.
        let range = r#""key":"ZmFyYmxvY2sv","range_end":"ZmFyYmxvY2sw""#;
        let permission = format!(r#"{{"name":"group","perm":{{"permType":"READWRITE",{range}}}}}"#);
        self.post("role/grant", &permission);
        self.post("user/grant", r#"{"user":"farblock","role":"group"}"#);
        self.post("enable", "{}");
    }
}

const NQN: &str = "nqn.2026-11.org.farblock:group";

struct Stage {
    scratch: Scratch,
    etcd: Etcd,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new();
        let ours = authority(&scratch, "ours");
        authority(&scratch, "foreign");
        for name in ["etcd", "member"] {
            certify(&scratch, name, &ours);
        }
        scratch.disk("disk.img", 1 << 20);
        scratch.disk("second.img", 1 << 20);
        secret(&scratch, "password", "correct\n");
        secret(&scratch, "wrong", "incorrect\n");
        let etcd = Etcd::new(&scratch);
        etcd.demand_passwords();
        Self { scratch, etcd }
    }

    fn config(&self, name: &str) -> String {
        format!(
            r#"listeners = ["{}"]

[group]
name = "gold"
etcd = ["https://{}"]
member = "{name}"
disk_flight = "500ms"
etcd_user = "farblock"
etcd_password_file = "password"
etcd_ca = "ours.pem"
etcd_cert = "member.pem"
etcd_key = "member.key"

[[subsystems]]
nqn = "{NQN}"
allow_any_host = true

[[subsystems.namespaces]]
path = "disk.img"

[[subsystems.namespaces]]
path = "second.img"
"#,
            free(),
            self.etcd.secure,
        )
    }

    /// Starts a member without waiting for it.
    fn serve(&self, name: &str, config: &str) -> Running {
        let file = self.scratch.file(&format!("{name}.toml"), config.as_bytes());
        let mut command = self.scratch.command(["serve", "--config", &file, "-v"]);
        command.args(["--control", &self.scratch.text(name)]);
        command.args(["--state-dir", &self.scratch.text(&format!("state-{name}"))]);
        let log = std::fs::File::create(self.log(name)).expect("the log file opens");
        command.stdout(Stdio::null()).stderr(log);
        Running(command.spawn().expect("the process starts"))
    }

    fn log(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path(&format!("log-{name}"))
    }

    fn logged(&self, name: &str) -> String {
        std::fs::read_to_string(self.log(name)).unwrap_or_default()
    }

    fn group(&self, name: &str) -> serde_json::Value {
        let control = self.scratch.text(name);
        let outcome = self.scratch.run(["ctl", "--control", &control, "group", "--json"]);
        match outcome.code {
            Some(0) => outcome.json(),
            _ => serde_json::Value::Null,
        }
    }

    fn is_led(&self, name: &str) -> bool {
        let group = self.group(name);
        let all = group["ana_groups"].as_array().map_or(0, Vec::len);
        all == 2 && (0..2).all(|at| group["ana_groups"][at]["phase"] == "serving")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["m0", "m1"] {
                eprintln!("--- {name}\n{}", self.logged(name));
            }
        }
    }
}

#[test]
fn a_group_from_configuration_files_works_with_passwords_and_certificates() {
    let mut stage = Stage::new();
    let members = ["m0", "m1"].map(|name| stage.serve(name, &stage.config(name)));
    until("both members have joined", || {
        let group = stage.group("m0");
        group["members"].as_array().is_some_and(|all| all.len() == 2)
    });
    until("every disk has a leader", || stage.is_led("m0"));
    let state = |name: &str| {
        let control = stage.scratch.text(name);
        stage.scratch.run(["config", "show", "--control", &control]).ok().json()
    };
    let (one, other) = (state("m0"), state("m1"));
    assert_eq!(one["subsystems"], other["subsystems"], "the members share different namespaces");
    assert_eq!(one["subsystems"][NQN]["namespaces"]["2"]["ana_group"], 2);
    // A reload of the unchanged file changes nothing.
    let control = stage.scratch.text("m0");
    let reloaded = stage.scratch.run(["reload", "--control", &control]).ok();
    assert!(reloaded.out().contains("has not changed"), "{}", reloaded.out());
    let ana = ["ctl", "--control", &control, "set-ana"];
    let address = one["listeners"]
        .as_object()
        .expect("the JSON contains the object")
        .keys()
        .next()
        .expect("the list has an entry");
    let set = [&ana[..], &[address.as_str(), "optimized"]].concat();
    let refused = stage.scratch.run([&set[..set.len() - 1], &["inaccessible"]].concat());
    refused.fails_in_a_line(1, &["member of a group", "group move"]);
    // etcd forgets its clients' tokens when it restarts.
    stage.etcd.restart(&stage.scratch);
    until("etcd answers m0", || stage.group("m0")["store"]["reachable"] == true);
    until("the members lead again", || stage.is_led("m0"));
    let order = ["ctl", "--control", &control, "group", "move", "1", "m1"];
    until("m1 takes an order", || stage.scratch.run(order).code == Some(0));
    until("m1 leads", || {
        let group = &stage.group("m0")["ana_groups"][0];
        group["leader"] == "m1" && group["phase"] == "serving"
    });
    drop(members);
}

#[test]
fn a_wrong_password_certificate_or_authority_is_named_while_the_member_waits() {
    let stage = Stage::new();
    for (from, to, part) in [
        ("\"password\"", "\"wrong\"", "etcd refuses the user or the password"),
        ("\"ours.pem\"", "\"foreign.pem\"", "none of the given authorities signed it"),
        (
            "etcd_cert = \"member.pem\"\netcd_key = \"member.key\"\n",
            "",
            "certificate of this member",
        ),
    ] {
        let config = stage.config("m0").replace(from, to);
        let _member = stage.serve("m0", &config);
        until("the member names its trouble", || {
            let log = stage.logged("m0");
            let mut waits = log.lines().filter(|line| line.contains("waiting until this target"));
            let place = stage.etcd.secure.to_string();
            waits.any(|line| line.contains(part) && line.contains(&place))
        });
    }
}

#[test]
fn every_wrong_setting_of_the_group_is_named() {
    let stage = Stage::new();
    let config = stage.config("m0");
    for (from, to, parts) in [
        ("\"gold\"", "\"Gold\"", [":4: group.name: use 1 to 63 lower-case", "name = \"gold\""]),
        ("name = \"gold\"\n", "", ["group", "the key `name` is missing"]),
        ("https://127", "ftp://127", [":5: group.etcd[0]: ftp://", "http://HOST:PORT"]),
        ("\"500ms\"", "\"soon\"", [":7: group.disk_flight: ", "disk_flight = \"5s\""]),
        (
            "etcd_user = \"farblock\"\n",
            "",
            [":8: group.etcd_password_file", "needs group.etcd_user"],
        ),
        ("etcd_key = \"member.key\"\n", "", ["group.etcd_cert", "needs group.etcd_key"]),
        ("member = \"m0\"", "members = 3", [":6: group.members: there is no key", "`member`"]),
        ("listeners", "ana = \"optimized\"\nlisteners", [":1: ana: the group sets it", "remove"]),
        ("etcd_ca = \"ours.pem\"", "advertise = [\"m0\"]", ["group.advertise[0]", "HOST:PORT"]),
        ("\"second.img\"", "\"mem:1MiB\"", ["path: mem:1MiB", "every member can open"]),
        ("etcd_ca = \"ours.pem\"\n", "", ["group.etcd_cert", "needs group.etcd_ca"]),
        ("\"ours.pem\"", "\"missing.pem\"", ["--etcd-ca", "missing.pem"]),
    ] {
        let text = config.replace(from, to);
        assert_ne!(text, config, "{from}");
        let file = stage.scratch.file("bad.toml", text.as_bytes());
        let outcome = stage.scratch.run(["serve", "--config", &file]);
        let code = outcome.code.expect("the process ended with an exit code");
        outcome.fails_in_a_line(code, &parts);
    }
    let file = stage.scratch.file("good.toml", config.as_bytes());
    stage.scratch.run(["serve", "--check", &file]).ok();
    let outcome = stage.scratch.run(["serve", "--config", &file, "--persist", "kept"]);
    outcome.fails_in_a_line(2, &["--persist does not work in a group"]);
}

#[test]
fn a_member_with_other_namespaces_than_the_group_is_refused() {
    let stage = Stage::new();
    let _first = stage.serve("m0", &stage.config("m0"));
    until("every disk has a leader", || stage.is_led("m0"));
    let other = stage.config("m1").replace(NQN, "nqn.2026-11.org.farblock:other");
    let file = stage.scratch.file("other.toml", other.as_bytes());
    let parts = ["other members of the group gold share different namespaces", "same order"];
    stage.scratch.run(["serve", "--config", &file]).fails_in_a_line(1, &parts);
    until("m1 has left the group", || stage.group("m0")["members"][1]["alive"] == false);
    let _second = stage.serve("m1", &stage.config("m1"));
    until("m1 has joined", || stage.group("m0")["members"][1]["alive"] == true);
    until("every disk has a leader", || stage.is_led("m1"));
}
