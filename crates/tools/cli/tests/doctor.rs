//! Checks what doctor finds about the connection to a target, with real peers.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use support::{Outcome, Scratch};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const NQN: &str = "nqn.2026-11.org.example:disk";

/// Starts a peer that handles each connection with `act`.
fn peer(act: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket has an address");
    let act = std::sync::Arc::new(act);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let act = std::sync::Arc::clone(&act);
            std::thread::spawn(move || act(stream));
        }
    });
    format!("nvme+tcp://{address}/{NQN}")
}

/// Waits until the peer closes the connection.
fn linger(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn doctor(scratch: &Scratch, url: &str, options: &[&str]) -> Outcome {
    scratch.run([&["doctor", url], options].concat())
}

/// Returns the check and the two sentences of the only problem, which must be the last finding.
#[track_caller]
fn problem(scratch: &Scratch, url: &str, options: &[&str]) -> (String, String) {
    let json = [options, &["--json"]].concat();
    let outcome = doctor(scratch, url, &json);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""), "{}", outcome.out());
    let report = outcome.json();
    assert_eq!(report["problems"], 1, "{report}");
    let last =
        report["findings"].as_array().and_then(|all| all.last()).expect("the report has a finding");
    assert_eq!(last["verdict"], "problem", "{report}");
    let text = |name: &str| last[name].as_str().expect("the JSON contains the text").to_owned();
    (text("check"), format!("{} -> {}", text("what"), text("advice")))
}

#[track_caller]
fn says(found: &(String, String), check: &str, parts: &[&str]) {
    assert_eq!(found.0, check, "{found:?}");
    for part in parts {
        assert!(found.1.contains(part), "{part:?} is missing in {found:?}");
    }
}

#[test]
fn doctor_reads_a_block_of_a_healthy_target() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:8MiB", "mem:1MiB"]);
    let outcome = doctor(&scratch, &server.url(2), &[]).ok();
    let text = outcome.out();
    let namespaces = "2 namespaces; number 2 has 1 MiB in 512-byte blocks";
    for part in ["connection", "path MTU", "protocol", "accepted this host", namespaces] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    assert!(text.contains("one block is read in") && text.contains("no problems"), "{text}");
    let json = doctor(&scratch, &server.url(1), &["--json"]).ok().json();
    assert_eq!(json["problems"], 0, "{json}");
    // Unnecessary digests are a hint and not a problem.
    let text = doctor(&scratch, &server.url(1), &["--data-digest"]).ok().out();
    assert!(text.contains("hint") && text.contains("leave --data-digest out"), "{text}");
    // For a URL without a subsystem, doctor lists the target's subsystems.
    let text = doctor(&scratch, &format!("nvme+tcp://{}", server.address), &[]).ok().out();
    assert!(text.contains("farblock discover"), "{text}");
    // doctor causes no lines in the target's log.
    assert_eq!(server.stop().stderr, "stopped\n");
}

#[test]
fn doctor_reports_a_port_without_a_listener() {
    let url = format!("nvme+tcp://127.0.0.1:1/{NQN}");
    let found = problem(&Scratch::new(), &url, &[]);
    says(&found, "connection", &["nothing listens at 127.0.0.1:1", "--listen"]);
}

#[test]
fn doctor_reports_a_host_name_that_cannot_be_resolved() {
    let found = problem(&Scratch::new(), "nvme+tcp://no-such-host.invalid/nqn.2026-11.a:b", &[]);
    says(&found, "name", &["no-such-host.invalid cannot be resolved", "use an address"]);
}

#[test]
fn doctor_recognizes_web_servers() {
    const ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    let scratch = Scratch::new();
    let hasty = peer(|mut stream| {
        let _ = stream.read(&mut [0; 128]);
        let _ = stream.write_all(ANSWER);
        linger(stream);
    });
    says(&problem(&scratch, &hasty, &[]), "protocol", &["a web server (HTTP) listens", "port"]);
    // This server answers only complete requests.
    let patient = peer(|mut stream| {
        let mut all = Vec::new();
        let mut chunk = [0; 256];
        while !all.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut chunk) {
                Ok(count) if count > 0 => all.extend_from_slice(&chunk[..count]),
                _ => return,
            }
        }
        let _ = stream.write_all(ANSWER);
        linger(stream);
    });
    let found = problem(&scratch, &patient, &["--timeout", "3s"]);
    says(&found, "protocol", &["a web server (HTTP) listens"]);
}

#[test]
fn doctor_recognizes_an_ssh_server() {
    let url = peer(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
        linger(stream);
    });
    says(&problem(&Scratch::new(), &url, &[]), "protocol", &["an SSH server listens"]);
}

#[test]
fn doctor_reports_an_unknown_protocol() {
    let url = peer(|mut stream| {
        let _ = stream.write_all(b"\x1b[2J what is thy bidding?");
        linger(stream);
    });
    says(&problem(&Scratch::new(), &url, &[]), "protocol", &["does not speak NVMe/TCP"]);
}

#[test]
fn doctor_reports_a_silent_port_and_a_closed_connection() {
    let scratch = Scratch::new();
    let found = problem(&scratch, &peer(linger), &["--timeout", "300ms"]);
    says(&found, "protocol", &["sends nothing", "the target hangs"]);
    let found = problem(&scratch, &peer(drop), &["--timeout", "2s"]);
    says(&found, "protocol", &["closes them without an answer"]);
}

/// The peer answers the ICReq like a target, and then stays silent.
#[test]
fn doctor_reports_a_target_that_falls_silent_after_the_icreq() {
    let url = peer(|mut stream| {
        let mut answer = [0_u8; 128];
        (answer[0], answer[2], answer[4]) = (1, 128, 128);
        // Set MAXH2CDATA to 128 KiB.
        answer[14] = 2;
        let _ = stream.read_exact(&mut [0; 128]);
        let _ = stream.write_all(&answer);
        linger(stream);
    });
    let found = problem(&Scratch::new(), &url, &["--timeout", "3s"]);
    says(&found, "connect", &["timed out", "path MTU", "ping"]);
}

#[test]
fn doctor_reports_unknown_hosts_subsystems_and_namespaces() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB", "--allow-host", HOST]);
    let found = problem(&scratch, &server.url(1), &[]);
    let own = scratch.run(["whoami", "--json"]).ok().json();
    let own = own["host_nqn"].as_str().expect("the JSON contains the name");
    says(&found, "host", &["does not allow this host", own, "farblock ctl allow-host"]);
    let as_host = format!("?hostnqn={HOST}");
    let wrong = format!("nvme+tcp://{}/{NQN}{as_host}", server.address);
    says(&problem(&scratch, &wrong, &[]), "subsystem", &["no such subsystem", &server.nqn]);
    let beyond = format!("{}?ns=7&hostnqn={HOST}", server.subsystem_url());
    says(&problem(&scratch, &beyond, &[]), "namespace", &["no namespace 7", "it has 1"]);
}

/// Checks that no step exceeds the timeout, whatever the peer does.
#[test]
fn doctor_reports_a_disk_that_does_not_answer_a_read() {
    let scratch = Scratch::new();
    let server = scratch.serve(["delay:30s,mem:1MiB"]);
    let found = problem(&scratch, &server.url(1), &["--timeout", "5s"]);
    says(&found, "reading", &["not read within 5s", "the disk that it shares"]);
}

#[cfg(unix)]
#[test]
fn doctor_reports_a_local_target_that_does_not_answer() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("run-serve")).expect("the folder is created");
    let bind = |name: &str| std::os::unix::net::UnixListener::bind(scratch.path(name));
    // doctor ignores the socket of a dead target.
    drop(bind("run-serve/gone").expect("the socket is bound"));
    let hangs = bind("run-serve/hangs").expect("the socket is bound");
    let text = scratch.run(["doctor", "--timeout", "100ms"]).out();
    assert!(text.contains("run-serve/hangs does not answer within 100ms"), "{text}");
    assert!(!text.contains("run-serve/gone"), "{text}");
    drop(hangs);
}

#[cfg(unix)]
#[test]
fn doctor_reports_the_ana_state_of_a_path() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB", "--ana", "inaccessible"]);
    let found = problem(&scratch, &server.url(1), &[]);
    says(&found, "access", &["denies access to the namespace", "another address of the target"]);
    let server = scratch.serve(["mem:1MiB", "--ana", "non-optimized"]);
    let text = doctor(&scratch, &server.url(1), &[]).ok().out();
    assert!(
        text.contains("this path is not optimized") && text.contains("no problems, 1 hint"),
        "{text}"
    );
}

#[test]
fn doctor_reports_a_target_that_requires_authentication() {
    let scratch = Scratch::new();
    let (key, other) = (scratch.text("host.key"), scratch.text("other.key"));
    for file in [&key, &other] {
        scratch.run(["keys", "new", "--output", file]).ok();
    }
    let server = scratch.serve(["mem:1MiB", "--host-key", &format!("{HOST}={key}")]);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    let found = problem(&scratch, &url, &[]);
    says(&found, "authentication", &["requires authentication", "--dhchap-secret FILE"]);
    let found = problem(&scratch, &url, &["--dhchap-secret", &other]);
    says(&found, "authentication", &["authentication failed", "farblock keys show FILE"]);
    let found = problem(&scratch, &url, &["--dhchap-secret", "nowhere.key"]);
    says(&found, "key", &["nowhere.key", "farblock keys check FILE"]);
    doctor(&scratch, &url, &["--dhchap-secret", &key]).ok();
}

#[test]
fn doctor_reports_a_target_that_requires_tls() {
    let scratch = Scratch::new();
    let (key, other) = (scratch.text("tls.key"), scratch.text("other.key"));
    for file in [&key, &other] {
        scratch.run(["keys", "new", "--tls", "--output", file]).ok();
    }
    let server = scratch.serve(["mem:1MiB", "--tls-key", &format!("{HOST}={key}")]);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    says(&problem(&scratch, &url, &[]), "protocol", &["accepts only TLS", "--tls-key FILE"]);
    let found = problem(&scratch, &url, &["--tls-key", &other]);
    says(&found, "TLS", &["refuses TLS", "farblock keys derive"]);
    let text = doctor(&scratch, &url, &["--tls-key", &key]).ok().out();
    assert!(text.contains("accepted this host over TLS"), "{text}");
    // The host has a key, but the target has none.
    let plain = scratch.serve(["mem:1MiB"]);
    let found = problem(&scratch, &plain.url(1), &["--tls-key", &key]);
    says(&found, "TLS", &["leave --tls-key out"]);
}

/// Checks that doctor does not report the host's NQN as the problem if the target allows the NQN.
#[test]
#[cfg(unix)]
fn doctor_reports_that_an_allowed_host_needs_its_tls_key() {
    let scratch = Scratch::new();
    let key = scratch.text("tls.key");
    scratch.run(["keys", "new", "--tls", "--output", &key]).ok();
    let server = scratch.serve(["mem:1MiB", "--allow-host", "nqn.2026-11.org.example:other"]);
    let allow = ["allow-host", &server.nqn, HOST, "--tls-key", &key];
    scratch.ctl(&allow).ok();
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    let found = problem(&scratch, &url, &[]);
    says(
        &found,
        "host",
        &["does not allow", "the target knows", "only over TLS", "--tls-key FILE"],
    );
    let others = ["allow-host", "set-tls", "host_id"];
    assert!(others.iter().all(|other| !found.1.contains(other)), "{found:?}");
    doctor(&scratch, &url, &["--tls-key", &key]).ok();
    // With TLS, the host's identifier is the problem.
    let id = "01234567-89ab-cdef-0123-456789abcdef";
    scratch.ctl(&[&allow[..], &["--host-id", id]].concat()).ok();
    let found = problem(&scratch, &url, &["--tls-key", &key]);
    // The default identifier derives from the name.
    let own = "not with the identifier 11111111-2222-3333-4444-555555555555";
    says(&found, "host", &["the target knows", own, "(host_id)", "?hostid=UUID"]);
    let others = ["allow-host", "set-tls", "--tls-key FILE", "the target's log"];
    assert!(others.iter().all(|other| !found.1.contains(other)), "{found:?}");
    doctor(&scratch, &format!("{url}&hostid={id}"), &["--tls-key", &key]).ok();
    scratch.run(["id", &url]).fails_in_a_line(1, &["farblock doctor 'nvme+tcp://"]);
    // Without TLS, the target does not list the subsystem for this host.
    scratch.ctl(&["set-tls", &server.address, "plain"]).ok();
    let found = problem(&scratch, &format!("{url}&hostid={id}"), &[]);
    says(&found, "host", &["does not allow", "allows this host already", "ctl set-tls ADDR:PORT"]);
    assert!(!found.1.contains("the target knows"), "{found:?}");
}

#[test]
#[cfg(unix)]
fn doctor_reports_a_target_that_requires_tls_concatenation() {
    let scratch = Scratch::new();
    let key = scratch.text("host.key");
    scratch.run(["keys", "new", "--output", &key]).ok();
    let server = scratch.serve(["mem:1MiB", "--host-key", &format!("{HOST}={key}")]);
    let demand = ["allow-host", &server.nqn, HOST, "--key", &key, "--demand", "concat"];
    scratch.ctl(&demand).ok();
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    let secret = ["--dhchap-secret", &key];
    let found = problem(&scratch, &url, &secret);
    says(&found, "authentication", &["add --concat to --dhchap-secret"]);
    let concat = [&secret[..], &["--concat"]].concat();
    for text in [
        doctor(&scratch, &url, &concat).ok().out(),
        doctor(&scratch, &format!("{url}&concat=1"), &secret).ok().out(),
    ] {
        let part = "accepted this host over TLS, with a key from the authentication";
        assert!(text.contains(part) && text.contains("an NVMe/TCP target answers"), "{text}");
    }
    // Make the listener require TLS from the start.
    scratch.ctl(&["set-tls", &server.address, "required"]).ok();
    let found = problem(&scratch, &url, &concat);
    says(&found, "protocol", &["--concat starts without TLS", "set-tls"]);
    scratch.ctl(&["set-tls", &server.address, "plain"]).ok();
    let found = problem(&scratch, &url, &concat);
    let parts = ["allows this host already", "does not offer TLS", "ctl set-tls ADDR:PORT"];
    says(&found, "host", &parts);
    assert!(!found.1.contains("the target knows"), "{found:?}");
}

/// Checks doctor with a file that a target shares, a file that a program has open, and a free file.
#[cfg(target_os = "linux")]
#[test]
fn doctor_names_the_users_of_a_file() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 8 << 20);
    let free = doctor(&scratch, "disk.img", &[]).ok().out();
    assert!(
        free.contains("is a file of 8 MiB") && free.contains("no other program uses"),
        "{free}"
    );
    // A relative name and a symbolic link lead to the same file.
    std::os::unix::fs::symlink("disk.img", scratch.path("link")).expect("the link is created");
    let server = scratch.serve([&disk]);
    for name in [disk.as_str(), "disk.img", "link"] {
        let found = problem(&scratch, name, &[]);
        let holder = format!("farblock (process {}) has", server.id);
        let advice = "stop that program, because two writers";
        says(&found, "users", &["is locked by a program that writes to it", &holder, advice]);
    }
    server.stop();
    let server = scratch.serve(["--read-only", &disk]);
    let text = doctor(&scratch, &disk, &[]).ok().out();
    assert!(text.contains("locked by programs that read it"), "{text}");
    server.stop();
    let open = std::fs::File::open(&disk).expect("the file opens");
    let text = doctor(&scratch, &disk, &[]).ok().out();
    let own = format!("(process {}) has", std::process::id());
    assert!(text.contains("is not locked, but") && text.contains(&own), "{text}");
    drop(open);
    scratch.file("empty", b"");
    let text = doctor(&scratch, "empty", &[]).out();
    assert!(text.contains("PROBLEM  disk") && text.contains("is empty"), "{text}");
    scratch.disk("odd", 1000);
    let text = doctor(&scratch, "odd", &[]).out();
    assert!(text.contains("not a whole number of 512-byte"), "{text}");
    assert!(text.contains("extend it with `truncate -s 1024"), "{text}");
}

/// Checks that doctor reports files that are not disks, and does not block on them.
#[cfg(target_os = "linux")]
#[test]
fn doctor_reports_files_that_are_no_disks() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success(), "{made}");
    says(&problem(&scratch, "pipe", &[]), "disk", &["neither a regular file", "name a file"]);
    says(&problem(&scratch, ".", &[]), "disk", &["is a directory", "name a file in it"]);
    doctor(&scratch, "nowhere.img", &[]).fails(2, &["nothing is attached as nowhere.img", "file"]);
}

#[test]
fn doctor_refuses_invalid_arguments() {
    let scratch = Scratch::new();
    doctor(&scratch, "nvme+tcp://", &[]).fails(2, &["nvme+tcp://"]);
    doctor(&scratch, &format!("nvme+tcp://127.0.0.1:1/{NQN}"), &["--timeout", "0"])
        .fails(2, &["--timeout"]);
}

#[test]
fn doctor_without_arguments_checks_the_machine() {
    let scratch = Scratch::new();
    #[cfg(unix)]
    let server = scratch.serve(["mem:1MiB", "--listen", "127.0.0.1:0"]);
    let outcome = scratch.run(["doctor", "--json"]);
    let report = outcome.json();
    let checks = report["findings"].as_array().expect("the JSON contains the list");
    let named = |name: &str| checks.iter().any(|one| one["check"] == name);
    assert!(named("version") && named("identity"), "{report}");
    #[cfg(target_os = "linux")]
    assert!(named("io_uring") && named("descriptors") && named("attach"), "{report}");
    #[cfg(unix)]
    assert!(checks.iter().any(|one| {
        one["check"] == "target"
            && one["what"].as_str().is_some_and(|what| what.contains(&server.address))
    }));
}

#[cfg(target_os = "linux")]
#[test]
fn doctor_finds_a_target_with_its_socket_in_any_folder() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:8TiB", "--control", "my.sock"]);
    let said = scratch.run(["doctor"]).out();
    assert!(said.contains("no target runs here") && said.contains("run-serve"), "{said}");
    let mut command = scratch.command(["doctor"]);
    command.env_remove("FARBLOCK_RUNTIME_DIR");
    // doctor also sees the other targets of this machine.
    let said = support::finish(command, b"").out();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(&format!("a target runs at {}", server.address)), "{said}");
    assert!(said.contains("RAM disks of 8 TiB are more than"), "{said}");
    server.stop();
}
