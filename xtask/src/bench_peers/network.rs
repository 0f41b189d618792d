//! A network of the stand's own.
//!
//! Linux keeps its TCP settings per network namespace. In one of its own the stand gives everybody
//! the congestion control that farblock asks for on loopback (cubic: the usual bbr paces, and moves
//! a fifth less), without touching the machine's settings or meeting its traffic.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

const INSIDE: &str = "FARBLOCK_BENCH_PEERS_NETWORK";
pub(super) const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const CUBIC: &str = "cubic";

/// Starts this program over in a network namespace of its own, and returns there; or here, if the
/// system does not let us.
pub(super) fn enter() {
    if std::env::var_os(INSIDE).is_some() {
        set_up();
        return;
    }
    let probe = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
    match probe {
        Ok(output) if output.status.success() => {}
        _ => return, // no root, or no such program: the machine's own network will do
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
        eprintln!("cannot set the loopback interface up");
    }
    if let Err(error) = fs::write(SETTING, CUBIC) {
        eprintln!("cannot set the congestion control to {CUBIC}: {error}");
    }
}

/// What everybody's connections have unless they ask for something else.
pub(super) fn congestion_control() -> String {
    fs::read_to_string(SETTING).map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
