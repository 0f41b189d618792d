//! Tests of disks with a key in the kernel's keyring. The server gets the key from its broker, a
//! helper process with root's rights. A supervisor starts a successor when a server dies.

use crate::attached::{Attachments, run};
use crate::confined::confined_server;
use crate::support::confinement::{children, runs};
use crate::support::{Server, keyring, noise, signal, until};
use std::fs;

const HOST: &str = "nqn.2026-11.org.farblock:keyring-host";
const NQN: &str = "nqn.2026-11.org.farblock:keyring-disk";
const DISK_BYTES: u64 = 8 << 20;

/// Starts a target that admits a host with the key in this file.
fn serve(attachments: &Attachments, key: &str, address: &str) -> Server {
    let disk = attachments.scratch.disk("disk.img", DISK_BYTES);
    let key = format!("{HOST}={key}");
    let args = ["serve", &disk, "--listen", address, "--nqn", NQN, "--tls-key", &key];
    Server::start(attachments.scratch.command(args))
}

#[test]
fn a_confined_server_uses_tls_keys_of_the_keyring() {
    let attachments = Attachments::new();
    let [first, second] = attachments.scratch.keys(["first.key", "second.key"], &["--tls"]);
    let target = serve(&attachments, &first, "127.0.0.1:0");
    let address = target.address.clone();
    let url = format!("{}&hostnqn={HOST}", target.url(1));
    let wanted = [&url, "--as", "nbd", "--no-device", "--tls-key", "keyring:"];
    let refused = attachments.run([&["attach"], &wanted[..]].concat());
    refused.fails(1, &["no key of nqn.2026-11.org.farblock:keyring-host"]);
    let kept = keyring::put(&first, HOST, NQN);
    let exported = attachments.attach(&wanted);
    let server = confined_server(&attachments.status("fb0"));
    // Change the key before the next connection, for which the server queries the broker again.
    drop(target);
    attachments.wait_for_state("fb0", "reconnecting");
    drop(kept);
    let _kept = keyring::put(&second, HOST, NQN);
    let _target = serve(&attachments, &second, &address);
    attachments.wait_for_state("fb0", "live");
    assert_eq!(confined_server(&attachments.status("fb0")), server, "the server's process changed");
    let input = attachments.scratch.file("input", &noise(3, DISK_BYTES as usize));
    run("nbdcopy", &["--flush", "--", &input, &exported]);
    // A server without its broker stops, and a successor replaces it. If a server is killed, its
    // broker exits.
    for kill_broker in [true, false] {
        let server = confined_server(&attachments.status("fb0"));
        let brokers = children(server);
        let [broker] = brokers[..] else { panic!("brokers: {brokers:?}") };
        let killed = if kill_broker { broker } else { server };
        signal(u32::try_from(killed).expect("the process id has 32 bits"), "KILL");
        attachments.wait_for_successor("fb0", server);
        until("the broker has exited", || !runs(broker));
        attachments.wait_for_state("fb0", "live");
    }
    let output = attachments.scratch.text("output");
    run("nbdcopy", &["--", &exported, &output]);
    assert!(
        fs::read(&output).expect("the file is readable") == noise(3, DISK_BYTES as usize),
        "the data differs from the written data"
    );
    let brokers = children(confined_server(&attachments.status("fb0")));
    attachments.detach("fb0");
    for broker in brokers {
        until("the broker has exited", || !runs(broker));
    }
}

/// Without a supervisor, no successor can start: the server must continue, and report the problem.
#[test]
fn a_server_continues_without_its_broker_and_supervisor() {
    let attachments = Attachments::new();
    let [key] = attachments.scratch.keys(["tls.key"], &["--tls"]);
    let host = "nqn.2026-11.org.farblock:lonely-host";
    let disk = attachments.scratch.disk("disk.img", DISK_BYTES);
    let nqn = "nqn.2026-11.org.farblock:lonely-disk";
    let target =
        attachments.scratch.serve([&disk, "--nqn", nqn, "--tls-key", &format!("{host}={key}")]);
    let _kept = keyring::put(&key, host, nqn);
    let url = format!("{}&hostnqn={host}&tls-key=keyring:", target.url(1));
    let exported = attachments.attach(&[&url, "--as", "nbd", "--no-device"]);
    let status = attachments.status("fb0");
    let server = confined_server(&status);
    let supervisor =
        u32::try_from(status["pid"].as_u64().expect("the status contains the process id"))
            .expect("the process id has 32 bits");
    signal(supervisor, "KILL");
    let gone = || attachments.status("fb0")["pid"].is_null();
    until("the supervisor has exited", gone);
    for broker in children(server) {
        signal(u32::try_from(broker).expect("the process id has 32 bits"), "KILL");
    }
    let trouble = || attachments.status("fb0")["trouble"].as_str().unwrap_or_default().to_owned();
    until("the status states the reason", || trouble().contains("privileged helper"));
    assert_eq!(attachments.status("fb0")["server_pid"], server);
    run("nbdcopy", &["--", &exported, &attachments.scratch.text("output")]);
    // A flush may need a new connection, for which the server has no key.
    attachments
        .run(["detach", "fb0"])
        .fails(1, &["cannot detach fb0: the privileged helper process"]);
    attachments.run(["detach", "fb0", "--force"]).ok();
}
