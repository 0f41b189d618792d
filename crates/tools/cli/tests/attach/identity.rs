//! Tests with another disk in place of the attached one. The server must neither read nor write
//! that other disk. A supervisor is the process that starts a successor, a server that replaces a
//! killed one.

use crate::attached::{Attachments, Target};
use crate::support::{noise, signal, until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;

const DISK_BYTES: u64 = 16 << 20;

fn trouble(attachments: &Attachments) -> String {
    attachments.status("fb0")["trouble"].as_str().unwrap_or_default().to_owned()
}

fn open(path: &str) -> fs::File {
    fs::File::options().read(true).write(true).open(path).expect("the file opens")
}

fn is_untouched(attachments: &Attachments) -> bool {
    let bytes = fs::read(attachments.scratch.path("other.img")).expect("the file is readable");
    bytes.iter().all(|byte| *byte == 0)
}

/// Checks that neither the server nor its successor accepts the other disk when the target returns.
#[test]
fn a_server_refuses_another_disk_at_the_address_of_the_old_one() {
    for way in ["fuse", "nbd", "iscsi", "vhost-user"] {
        let attachments = Attachments::new();
        let other = attachments.scratch.disk("other.img", DISK_BYTES);
        let mut target = Target::new(&attachments, DISK_BYTES);
        let url = target.url();
        let mut args = vec![url.as_str(), "--as", way, "--reconnect-delay", "100ms"];
        match way {
            "nbd" => args.push("--no-device"),
            "iscsi" => args.extend(["--listen", "127.0.0.1:0"]),
            _ => {}
        }
        let path = attachments.attach(&args);
        if way == "fuse" {
            let device = open(&path);
            device.write_all_at(&noise(1, 8192), 0).expect("the write succeeds");
            device.sync_all().expect("the flush succeeds");
        }
        target.kill();
        attachments.wait_for_state("fb0", "reconnecting");
        target.restart_with(&attachments, &other);
        until("the error states the reason", || trouble(&attachments).contains("was expected"));
        let killed = attachments.kill_server("fb0");
        until("the log of the next server names the change", || {
            let status = attachments.status("fb0");
            status["server_pid"] == Value::Null
                && trouble(&attachments).contains("is not the namespace of this disk")
        });
        target.kill();
        target.restart(&attachments);
        attachments.wait_for_successor("fb0", killed);
        attachments.wait_for_state("fb0", "live");
        if way == "fuse" {
            let mut read = vec![0; 8192];
            open(&path).read_exact_at(&mut read, 0).expect("the read succeeds");
            assert!(read == noise(1, 8192), "the data differs from the written data");
        }
        assert!(is_untouched(&attachments), "the other file was written");
        attachments.detach("fb0");
    }
}

/// Replaces the disk while no process serves it and a program keeps writing.
#[test]
fn a_successor_does_not_write_to_a_replaced_disk() {
    let attachments = Attachments::new();
    let other = attachments.scratch.disk("other.img", DISK_BYTES);
    let mut target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse", "--reconnect-delay", "100ms"]);
    let file = open(&device);
    let status = attachments.status("fb0");
    // Suspend the supervisor, so that it does nothing between the deaths of the server and the
    // target.
    let pid = |which: &str| {
        u32::try_from(status[which].as_u64().expect("the status contains the process id"))
            .expect("the process id has 32 bits")
    };
    signal(pid("pid"), "STOP");
    signal(pid("server_pid"), "KILL");
    target.kill();
    target.restart_with(&attachments, &other);
    let writer = std::thread::spawn(move || {
        file.write_all_at(&noise(2, 1 << 20), 0).and_then(|()| file.sync_all())
    });
    signal(pid("pid"), "CONT");
    until("the error states the reason", || trouble(&attachments).contains("UUID"));
    assert!(is_untouched(&attachments), "the other file was written");
    target.kill();
    target.restart(&attachments);
    writer.join().expect("the thread does not panic").expect("the write succeeds in the end");
    assert!(is_untouched(&attachments), "the other file was written");
    let kept = fs::read(attachments.scratch.path("disk.img")).expect("the file is readable");
    assert!(kept[..1 << 20] == noise(2, 1 << 20), "written data was lost");
    attachments.detach("fb0");
}

#[test]
fn attach_refuses_a_namespace_with_another_uuid() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    let id = attachments.run(["id", &url, "--json"]).ok().json();
    let uuid = id["namespaces"][0]["uuid"].as_str().expect("the JSON contains the UUID").to_owned();
    let wrong = "2d6f12ca-6c90-538f-a383-5ab39f554825";
    let way = ["--as", "nbd", "--no-device"];
    let refused = attachments.run([&["attach", &url, "--uuid", wrong], &way[..]].concat());
    refused.fails_in_a_line(1, &[&format!("UUID {uuid}"), wrong]);
    assert!(attachments.list().is_empty());
    attachments.attach(&[&[url.as_str(), "--uuid", &uuid], &way[..]].concat());
    // Imitate an older farblock, which stored no identity. The successor accepts the disk only
    // because `--uuid` names it.
    let identity = attachments.folder("fb0").join("identity.json");
    fs::remove_file(&identity).expect("the file is removed");
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    attachments.wait_for_state("fb0", "live");
    assert!(fs::read_to_string(&identity).expect("the identity file exists again").contains(&uuid));
    attachments.detach("fb0");
    attachments.attach(&[&[url.as_str()], &way[..]].concat());
    fs::write(&identity, "{\"version\":1,").expect("the file is written");
    attachments.kill_server("fb0");
    until("the error states the reason", || trouble(&attachments).contains("identity.json"));
    attachments.run(["detach", "fb0", "--force"]).ok();
}

/// An older farblock stored no `identity.json`. The disk of such an attachment must wait, and the
/// advice in its status must work.
#[test]
fn an_attachment_without_a_recorded_namespace_waits_for_the_uuid() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    let id = attachments.run(["id", &url, "--json"]).ok().json();
    let uuid = id["namespaces"][0]["uuid"].as_str().expect("the JSON contains the UUID").to_owned();
    let again = ["attach", &url, "--as", "fuse", "--name", "fb0"];
    let with = |uuid: &str| attachments.run([&again[..], &["--uuid", uuid]].concat());
    let device = attachments.attach(&again[1..]);
    let file = open(&device);
    file.write_all_at(&noise(3, 8192), 0).expect("the write succeeds");
    file.sync_all().expect("the flush succeeds");
    let forget = || {
        fs::remove_file(attachments.folder("fb0").join("identity.json"))
            .expect("the file is removed");
        attachments.kill_server("fb0");
        // Between two attempts, the attachment reports another problem for a moment.
        let mut said = String::new();
        until("the error states the reason", || {
            said = trouble(&attachments);
            said.contains("old versions of farblock")
        });
        said
    };
    let said = forget();
    for part in ["`farblock detach fb0 --force`", "attach it again as fb0", "--uuid"] {
        assert!(said.contains(part), "{said}");
    }
    attachments.run(again).fails_in_a_line(2, &["already attached"]);
    with("2d6f12ca-6c90-538f-a383-5ab39f554825").fails(1, &["does not start", "UUID", &uuid]);
    with(&uuid).ok();
    attachments.wait_for_state("fb0", "live");
    // A program with the open device must not have noticed anything.
    file.write_all_at(&noise(4, 8192), 8192).expect("the write succeeds");
    let mut read = vec![0; 8192];
    file.read_exact_at(&mut read, 0).expect("the read succeeds");
    assert!(read == noise(3, 8192), "the data differs from the written data");
    drop(file);
    attachments.detach("fb0");
    attachments.attach(&again[1..]);
    forget();
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
}

/// Checks that a second writer of one namespace is refused, whatever address it uses.
#[test]
fn attach_refuses_a_second_writer_of_a_namespace() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    let other_name = url.replace("127.0.0.1", "localhost");
    let way = ["--as", "nbd", "--no-device"];
    let attach = |args: &[&str]| attachments.run([&["attach"], args, &way[..]].concat());
    attach(&[&url]).ok();
    // `--name second` requests a second attachment of the namespace. With `--name fb0` or no name,
    // the command would add a path to the attachment `fb0`.
    let second = attach(&[&other_name, "--name", "second"]);
    second.fails_in_a_line(1, &["as fb0", "--read-only", "--shared"]);
    assert_eq!(attachments.list().len(), 1);
    attach(&[&url, "--name", "reads", "--read-only"]).ok();
    attach(&[&url, "--name", "shares", "--shared"]).ok();
    // The first attachment must continue.
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    attachments.wait_for_state("fb0", "live");
    for name in ["fb0", "shares"] {
        attach(&[&url, "--name", "no"]).fails_in_a_line(1, &["--shared"]);
        attachments.detach(name);
    }
    attach(&[&url]).ok();
    attachments.detach("fb0");
    attachments.detach("reads");
}

/// Checks that the target sees the host identity of the command line, also after the server's
/// death.
#[test]
fn an_attachment_uses_the_given_host_identity_after_a_restart() {
    const HOST: &str = "nqn.2026-11.org.example:somebody";
    const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    let attachments = Attachments::new();
    let disk = attachments.scratch.disk("disk.img", DISK_BYTES);
    let control = attachments.scratch.text("control");
    let args = [disk.as_str(), "--allow-host", HOST, "--control", &control];
    let target = attachments.scratch.serve(args);
    let url = target.url(1);
    let host = ["--hostnqn", HOST, "--hostid", ID];
    attachments.attach(&[&[&url, "--as", "nbd", "--no-device"], &host[..]].concat());
    let is_known = || {
        let status =
            attachments.scratch.run(["status", "--json", "--control", &control]).ok().json();
        let known = status["controllers"].as_array().expect("the JSON contains the list").clone();
        known.iter().any(|one| one["host_nqn"] == HOST && one["host_id"] == ID)
    };
    assert!(is_known());
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    attachments.wait_for_state("fb0", "live");
    assert!(is_known());
    attachments.detach("fb0");
    target.stop();
}
