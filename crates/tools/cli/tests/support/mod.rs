//! Runs the binary as a user would, and starts targets.
#![allow(dead_code, reason = "no test uses all helpers")]
#![allow(unreachable_pub, reason = "a module of each test file")]

#[cfg(target_os = "linux")]
pub mod confinement;
#[cfg(windows)]
mod console;
#[cfg(target_os = "linux")]
pub mod etcd;
#[cfg(target_os = "linux")]
pub mod keyring;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
#[cfg(unix)]
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A time limit that exceeds every step on a busy machine.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A directory for one test, which also holds this host's identity.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("a temporary folder is created"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("the file is written");
        self.text(name)
    }

    /// Creates a sparse file.
    pub fn disk(&self, name: &str, bytes: u64) -> String {
        let file = std::fs::File::create(self.path(name)).expect("the file is created");
        file.set_len(bytes).expect("the file is resized");
        self.text(name)
    }

    /// Returns a command for the binary, without the real user's settings.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farblock"));
        command.args(args);
        self.prepare(&mut command);
        command
    }

    /// Returns a command that reacts to SIGHUP. Tests that run under `nohup` would otherwise pass
    /// the ignored signal on.
    #[cfg(target_os = "linux")]
    pub fn command_with_hangup<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_farblock")]).args(args);
        self.prepare(&mut command);
        command
    }

    /// Sets up a command that runs the binary directly or indirectly.
    pub fn prepare(&self, command: &mut Command) {
        #[cfg(windows)]
        console::give_its_own(command);
        command
            .current_dir(self.0.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("FARBLOCK_RUNTIME_DIR", self.path("run"))
            .env("LOCALAPPDATA", self.path("state"))
            .env_remove("NO_COLOR")
            .env_remove("RUST_BACKTRACE")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Returns a command that runs the binary as a user without rights, in a directory that all
    /// users can open. If the tests run as root, the binary is a copy, because others may not reach
    /// the build directory.
    #[cfg(unix)]
    pub fn command_of_nobody<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        use std::os::unix::fs::PermissionsExt;
        if !is_root() {
            return self.command(args);
        }
        if !has("setpriv") {
            cannot_check("root may do everything, and there is no setpriv");
        }
        let open = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(self.path(""), open).expect("the permissions are set");
        let copy = self.text("farblock");
        if !self.path("farblock").exists() {
            // Copy in another process. If this process had the file open for writing while another
            // test forks, the copy could not be executed ("text busy").
            let copied = Command::new("cp").args([env!("CARGO_BIN_EXE_farblock"), &copy]).status();
            assert!(copied.expect("the program cp runs").success(), "cp");
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &copy]).args(args);
        self.prepare(&mut command);
        command
    }

    /// Runs the binary until it exits.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        finish(self.command(args), b"")
    }

    /// Changes the running target of this directory.
    pub fn ctl(&self, args: &[&str]) -> Outcome {
        self.run(["ctl"].iter().chain(args))
    }

    /// Creates files with new keys, with these options, and returns their names.
    pub fn keys<const COUNT: usize>(
        &self,
        names: [&str; COUNT],
        options: &[&str],
    ) -> [String; COUNT] {
        names.map(|name| {
            let path = self.text(name);
            self.run(["keys", "new", "--output", &path].iter().chain(options)).ok();
            path
        })
    }

    /// Runs the binary with this standard input until it exits.
    pub fn run_with<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Outcome {
        finish(self.command(args), input)
    }

    /// Starts a target, and waits until it listens.
    pub fn serve<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Server {
        let mut command = self.command(["serve", "--listen", "127.0.0.1:0"]);
        command.args(args);
        Server::start(command)
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks that the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Outcome {
        assert_eq!(self.code, Some(0), "{}\n{}", self.out(), self.stderr);
        self
    }

    /// Checks that the command failed with this code and one sentence that contains all of `parts`.
    #[track_caller]
    pub fn fails(self, code: i32, parts: &[&str]) -> Outcome {
        let all = format!("{}\n--- stderr\n{}", self.out(), self.stderr);
        assert_eq!(self.code, Some(code), "{all}");
        let errors = self.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, 1, "{all}");
        assert!(!self.stderr.contains("panicked") && !self.stderr.contains("os error"), "{all}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in:\n{all}");
        }
        self
    }

    /// Like [`fails`](Outcome::fails), and checks that farblock and not clap printed the sentence,
    /// on one line. On a busy machine, further lines may name what the command waited for.
    #[track_caller]
    pub fn fails_in_a_line(self, code: i32, parts: &[&str]) -> Outcome {
        let outcome = self.fails(code, parts);
        let said = outcome.stderr.lines().filter(|line| !line.contains("has not answered for"));
        assert_eq!(said.count(), 1, "{}", outcome.stderr);
        outcome
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.out()))
    }
}

/// Runs a command until it exits, with a timeout.
pub fn finish(mut command: Command, input: &[u8]) -> Outcome {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("the command starts");
    let stdin = child.stdin.take();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        // The command may exit before it reads everything.
        let _ = stdin.map(|mut pipe| pipe.write_all(&input));
    });
    let output = wait(child);
    feeder.join().expect("the thread does not panic");
    Outcome {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub fn wait(child: Child) -> Output {
    let id = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(child.wait_with_output());
    });
    match receiver.recv_timeout(WAIT_LIMIT) {
        Ok(output) => output.expect("the program runs"),
        Err(_) => {
            signal(id, "KILL");
            panic!("process {id} did not end within {WAIT_LIMIT:?}");
        }
    }
}

#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < WAIT_LIMIT, "this did not happen in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(windows)]
pub use console::signal;

/// Sends a signal to a process that a test started.
#[cfg(unix)]
pub fn signal(id: u32, name: &str) {
    // Use the shell's own `kill`, since a small system may not have the program.
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {id}");
}

/// A reserved address. A socket is bound to it, so the system assigns its port to no other program.
/// The socket does not listen, so a program that requests this address may listen on it.
#[cfg(unix)]
pub struct Reserved {
    _socket: socket2::Socket,
    pub address: SocketAddr,
}

#[cfg(unix)]
impl Reserved {
    /// Reserves a port of this address.
    pub fn at(ip: impl Into<IpAddr>) -> Reserved {
        let any = SocketAddr::new(ip.into(), 0);
        let domain = socket2::Domain::for_address(any);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)
            .expect("the socket is created");
        socket.set_reuse_address(true).expect("the address can be shared");
        socket.bind(&any.into()).expect("a port is free");
        let address = socket
            .local_addr()
            .ok()
            .and_then(|it| it.as_socket())
            .expect("the socket has an address");
        Reserved { _socket: socket, address }
    }
}

/// A target in its own process.
pub struct Server {
    child: Option<Child>,
    pub id: u32,
    /// The target's output, up to the line that reports the listening address.
    pub said: String,
    /// The target's address, `127.0.0.1:PORT`.
    pub address: String,
    pub nqn: String,
}

impl Server {
    pub fn start(mut command: Command) -> Server {
        let mut child = command.spawn().expect("the target starts");
        let id = child.id();
        let stdout = child.stdout.take().expect("the stream is a pipe");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // Read to the end, so that later output does not meet a closed pipe.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut said = String::new();
        let until = Instant::now() + WAIT_LIMIT;
        let address = loop {
            let Ok(line) = receiver.recv_timeout(until.saturating_duration_since(Instant::now()))
            else {
                let _ = child.kill();
                let mut stderr = String::new();
                let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut stderr));
                panic!("the target did not listen:\n{said}\n{stderr}");
            };
            said.push_str(&line);
            said.push('\n');
            if let Some(address) = line.strip_prefix("listening on ") {
                break address.to_owned();
            }
            if line.starts_with('{') {
                let json: serde_json::Value =
                    serde_json::from_str(&line).expect("the text is JSON");
                break json["listening"][0]
                    .as_str()
                    .expect("the status contains the address")
                    .to_owned();
            }
        };
        let nqn = said
            .lines()
            .find_map(|line| line.strip_prefix("Subsystem "))
            .unwrap_or_default()
            .to_owned();
        Server { child: Some(child), id, said, address, nqn }
    }

    pub fn url(&self, nsid: u32) -> String {
        format!("{}?ns={nsid}", self.subsystem_url())
    }

    pub fn subsystem_url(&self) -> String {
        format!("nvme+tcp://{}/{}", self.address, self.nqn)
    }

    pub fn signal(&self, name: &str) {
        signal(self.id, name);
    }

    /// Whether the target has exited.
    pub fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("the process runs");
        child.try_wait().expect("the process can be waited for").is_some()
    }

    /// Waits until the target exits.
    pub fn wait(mut self) -> Outcome {
        let output = wait(self.child.take().expect("the process runs"));
        Outcome {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Stops the target with SIGTERM, as a service manager does. The target must exit with success
    /// and without errors.
    #[track_caller]
    pub fn stop(self) -> Outcome {
        self.signal("TERM");
        self.wait().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns pseudo-random bytes for this seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    farblock_random::Random::new(seed).bytes(length)
}

/// Whether a program is in the PATH.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Fails a test that this machine cannot run: a skipped test would look like a passed test.
pub fn cannot_check(why: &str) -> ! {
    panic!("this cannot be checked here: {why}");
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("the program id runs");
    id.stdout.trim_ascii() == b"0"
}

pub fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).expect("the file is readable")
}
