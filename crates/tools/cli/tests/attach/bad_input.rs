//! Checks that invalid input gives one sentence and leaves nothing behind.

use crate::attached::{Attachments, Target};
use crate::support::is_root;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn attach_refuses_invalid_options_in_one_line() {
    let attachments = Attachments::new();
    let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:x?ns=1";
    for (args, parts) in [
        (&["nvme+tcp://127.0.0.1:1"][..], &["names no subsystem", "farblock discover"][..]),
        (&["/dev/sdb"], &["nvme+tcp://"]),
        (&[], &["URL"]),
        (&[url, "--as", "scsi"], &["iscsi"]),
        (&[url, "--as", "nvme", "--read-only"], &["read-only is only for"]),
        (
            &[url, "--as", "nvme", "--tls-key", "x"],
            &["nvme does not support TLS", "nvme connect --tls"],
        ),
        (&[&format!("{url}&tls-key=x"), "--as", "nvme"], &["nvme does not support TLS"]),
        (&[url, "--name", "../x"], &["is not a name"]),
        (&[url, "--iopolicy", "fastest"], &["round-robin"]),
        (&[url, "--reconnect-delay", "0"], &["without a pause"]),
        (&[url, "--ctrl-loss-tmo", "soon"], &["never"]),
        (&[url, "--keep-alive-tmo", "soon"], &["seconds"]),
        (&[url, "--threads", "0"], &["from 1 to 64"]),
        (&[url, "--as", "fuse", "--socket", "x"], &["--as nbd or --as vhost-user"]),
        (&[url, "--as", "nbd", "--mountpoint", "x"], &["--as fuse"]),
        (&[url, "--as", "vhost-user", "--no-device"], &["--as auto or --as nbd or --as fuse"]),
        (&[url, "--as", "vhost-user", "--socket", "x", "--listen", "127.0.0.1:1"], &["--listen"]),
        (&["--restore", "../x"], &["is not a name"]),
        (&["--restore", "none"], &["attach.d/none.toml", "name a file that exists"]),
        (&["--config", "none.toml"], &["none.toml", "name a file that exists"]),
    ] {
        let outcome = attachments.run([&["attach"], args].concat());
        let code = if args.iter().any(|arg| arg.contains("none")) { 1 } else { 2 };
        outcome.fails(code, parts);
    }
    attachments.run(["detach", "fb0"]).fails_in_a_line(2, &["\"fb0\" is not attached"]);
    assert!(!attachments.scratch.path("run").join("fb0").exists());
}

#[test]
fn attach_refuses_an_invalid_configuration_file_with_its_line() {
    let attachments = Attachments::new();
    for (text, parts) in [
        ("", &["bad.toml: urls"][..]),
        ("urls = ['x']", &["bad.toml:1: urls", "nvme+tcp://"]),
        ("\nurl = 'x'", &["bad.toml:2: ", "there is no key `url`"]),
        ("urls = ['nvme+tcp://a/n']\nas = 'x'", &["bad.toml:2: as"]),
        ("urls = ['nvme+tcp://a/n']\nas = 'fuse'\nsocket = 'x'", &["bad.toml: socket"]),
        ("urls = [", &["bad.toml:1: "]),
    ] {
        let path = attachments.scratch.file("bad.toml", text.as_bytes());
        attachments.run(["attach", "--config", &path]).fails_in_a_line(2, parts);
    }
}

#[test]
fn attach_refuses_unusable_names_paths_and_namespaces() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 16 << 20);
    let url = target.url();
    attachments.attach(&[&url, "--as", "nbd", "--no-device", "--name", "one"]);
    let taken = ["attach", &url, "--as", "nbd", "--no-device", "--name", "one"];
    attachments
        .run(taken)
        .fails_in_a_line(2, &["one is already attached to nvme+tcp://", "detach one"]);
    let file = attachments.scratch.file("file", b"mine");
    for (args, parts) in [
        (
            &["--as", "fuse", "--mountpoint", &file][..],
            &[file.as_str(), "is not a directory", "choose an empty"][..],
        ),
        (&["--as", "fuse", "--mountpoint", "/none/x"], &["/none/x", "create it"]),
        (&["--as", "vhost-user", "--socket", &file], &[file.as_str()]),
        (&["--as", "vhost-user", "--socket", &"x".repeat(200)], &["too long"]),
        (&["--as", "nbd", "--socket", "/none/x"], &["/none/x"]),
        (&["--as", "vhost-user", "--serial", &"x".repeat(21)], &["serial number"]),
    ] {
        let all = [&["attach", url.as_str(), "--shared"], args].concat();
        attachments.run(all).fails_in_a_line(1, parts);
    }
    assert_eq!(fs::read(&file).expect("the file opens"), b"mine");
    let other = ["attach", &url, "--as", "fuse", "--runtime-dir", &file];
    attachments.run(other).fails_in_a_line(1, &["is a file", "--runtime-dir"]);
    for command in [&["list"][..], &["detach", "one"], &["detach", "--all"]] {
        let args = [command, &["--runtime-dir", &file]].concat();
        attachments.run(args).fails_in_a_line(1, &["is a file", "--runtime-dir"]);
    }
    assert_eq!(attachments.list().len(), 1);
    // This namespace does not exist.
    let no_namespace = target.server.url(9);
    let missing = ["attach", &no_namespace, "--as", "fuse"];
    attachments.run(missing).fails_in_a_line(1, &["namespace 9"]);
    let both = ["attach", &url, &no_namespace, "--as", "fuse"];
    attachments.run(both).fails_in_a_line(1, &["different namespaces"]);
    attachments.detach("one");
}

/// An attacker who can replace a folder of the path would control the devices.
#[test]
fn attach_refuses_a_runtime_folder_that_other_users_can_replace() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 1 << 20);
    let place = attachments.scratch.path("place");
    let ours = place.join("ours").into_os_string().into_string().expect("the path is UTF-8");
    fs::create_dir_all(&ours).expect("the folder is created");
    fs::set_permissions(&ours, Permissions::from_mode(0o700)).expect("the permissions are set");
    let attach = ["attach", &target.url(), "--as", "nbd", "--no-device", "--runtime-dir", &ours];
    let refused = |what: &str| {
        let parts = [what, "another --runtime-dir"];
        attachments.run(attach).fails_in_a_line(1, &parts);
        attachments.run(["list", "--runtime-dir", &ours]).fails_in_a_line(1, &parts);
        let inner = format!("{ours}/new");
        let attach = [&attach[..6], &[inner.as_str()]].concat();
        attachments.run(attach).fails_in_a_line(1, &parts);
    };
    for mode in [0o777, 0o775] {
        fs::set_permissions(&place, Permissions::from_mode(mode)).expect("the permissions are set");
        refused(&format!("/place (mode {mode:04o}) and could replace its contents: chmod go-w"));
    }
    fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("the permissions are set");
    if is_root() {
        std::os::unix::fs::chown(&place, Some(1001), None).expect("root changes the owner");
        refused("user 1001 owns ");
        std::os::unix::fs::chown(&place, Some(0), None).expect("root changes the owner");
    }
    attachments.run(attach).ok();
    attachments.run(["detach", "fb0", "--runtime-dir", &ours]).ok();
}

#[test]
fn the_internal_attachment_commands_refuse_users() {
    let attachments = Attachments::new();
    for part in ["serve", "supervise"] {
        let args = ["attachment", part, "/tmp/none"];
        attachments.run(args).fails_in_a_line(2, &["only `farblock attach` can run this command"]);
    }
}
