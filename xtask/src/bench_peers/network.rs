//! The network namespace of the measuring stand.
//!
//! Linux has TCP settings per network namespace. In its own namespace the stand sets cubic as the
//! congestion control, so that every side uses it, as farblock does on loopback. With bbr, which
//! many machines use, a side would transfer a fifth less data. Settings and traffic of the rest of
//! the machine do not change.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

const INSIDE: &str = "FARBLOCK_BENCH_PEERS_NETWORK";
pub(super) const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const CUBIC: &str = "cubic";

/// Restarts this program in a new network namespace. If the program already runs in one, sets up
/// its network and returns. If this user may not create one, returns at once.
pub(super) fn enter() {
    if std::env::var_os(INSIDE).is_some() {
        set_up();
        return;
    }
    let probe = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
    match probe {
        Ok(output) if output.status.success() => {}
        _ => return, // without root or `unshare`, use the network of the machine
    }
    let Ok(program) = std::env::current_exe() else { return };
    let arguments = std::env::args_os().skip(1);
    let error = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(arguments)
        .env(INSIDE, "1")
        .exec();
    eprintln!("no network namespace: {error}");
}

fn set_up() {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if !up.is_ok_and(|status| status.success()) {
        eprintln!("cannot bring the loopback interface up");
    }
    if let Err(error) = fs::write(SETTING, CUBIC) {
        eprintln!("cannot set the congestion control to {CUBIC}: {error}");
    }
}

/// The default congestion control of connections.
pub(super) fn congestion_control() -> String {
    fs::read_to_string(SETTING).map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
