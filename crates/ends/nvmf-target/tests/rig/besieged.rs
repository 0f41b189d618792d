//! A target in a separate process, so that a test can measure its memory. The process runs an
//! ignored test of the same program.

use super::stranger::resident_of;
use farblock_target::Target;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The environment variable for the connection limit.
const CONNECTIONS: &str = "FARBLOCK_SIEGE_CONNECTIONS";

pub struct Besieged {
    child: Child,
    lines: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl Besieged {
    /// Runs the test `test`, which calls [`serve`], in a new process.
    pub fn start(test: &str, connections: Option<usize>) -> Self {
        let own = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(own);
        command.args(["--ignored", "--exact", "--nocapture", test]);
        command.envs(connections.map(|most| (CONNECTIONS, most.to_string())));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let address = after(&mut lines, "listening ").parse().expect("an address");
        Self { child, lines, address }
    }

    /// Returns the resident memory of the target's process, in bytes.
    pub fn resident(&self) -> usize {
        resident_of(self.child.id())
    }

    /// Ends the process. Returns the peak number of connections.
    pub fn end(mut self) -> usize {
        drop(self.child.stdin.take());
        let most = after(&mut self.lines, "most ").parse().expect("a number");
        assert!(self.child.wait().expect("the process exits").success());
        most
    }
}

/// Runs a target until the standard input of this process ends.
pub fn serve(target: &Target) {
    println!("\nlistening {}", target.addresses()[0]);
    let mut most = 0;
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stops.store(true, Ordering::Relaxed);
    });
    while !stop.load(Ordering::Relaxed) {
        most = most.max(target.connections());
        thread::sleep(Duration::from_millis(20));
    }
    println!("\nmost {most}");
}

/// Returns the connection limit that the parent process has set.
pub fn max_connections() -> Option<usize> {
    let text = std::env::var(CONNECTIONS).ok()?;
    Some(text.parse().expect("a number"))
}

/// Skips to the next line with this prefix. Returns the rest of the line.
fn after(lines: &mut impl BufRead, what: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "no line contains {what}");
        if let Some(rest) = line.trim().strip_prefix(what) {
            return rest.to_owned();
        }
    }
}
