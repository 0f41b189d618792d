//! Tests of vhost-user: the socket, and the first message of a monitor. interop/linux/vhost.sh
//! tests real guests. A successor is a server that replaces a killed one.

use crate::attached::{Attachments, Target};
use crate::support::until;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// `VHOST_USER_GET_FEATURES`, version 1. The header of its answer follows.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
const ANSWER: [u8; 12] = [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0];

/// Connects a monitor, which queries the features of the disk.
fn connect(socket: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("a server listens");
    stream.write_all(&GET_FEATURES).expect("the server reads");
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).expect("the server answers");
    assert_eq!(answer[..12], ANSWER);
    let features =
        u64::from_le_bytes(answer[12..].try_into().expect("the slice has the right length"));
    // Check VIRTIO_F_VERSION_1 and VHOST_USER_F_PROTOCOL_FEATURES.
    assert_eq!(features >> 32 & 1, 1, "{features:#x}");
    assert_eq!(features >> 30 & 1, 1, "{features:#x}");
    stream
}

#[test]
fn a_connected_vhost_user_monitor_counts_as_a_user() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let socket = attachments.attach(&[&target.url(), "--as", "vhost-user", "--name", "vm"]);
    let monitor = connect(&socket);
    let whose = format!("process {}", std::process::id());
    attachments.run(["detach", "vm"]).fails_in_a_line(1, &["monitor", &whose, "--force"]);
    // After a kill, a successor creates the socket again, and the monitor can reconnect.
    let killed = attachments.kill_server("vm");
    attachments.wait_for_successor("vm", killed);
    drop(monitor);
    let monitor = connect(&socket);
    drop(monitor);
    until("the monitor has disconnected", || attachments.run(["detach", "vm"]).code == Some(0));
    assert!(UnixStream::connect(&socket).is_err());
    target.server.stop();
}
