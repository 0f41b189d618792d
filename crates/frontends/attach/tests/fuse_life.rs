//! Tests FUSE servers that cannot mount, stop while the disk is in use, or are killed.
#![cfg(target_os = "linux")]

mod fuse_support;

use farblock_attach::fuse::{Config, Server, StopError};
use farblock_random::Random;
use farblock_testkit::eventually;
use fuse_support::{ENGINES, MountedFs, Served, disk, fio_verify, mounted, output, run};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The example program `fuse_serve`, which serves a disk in its own process.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(arguments: &[&str]) -> (Program, String) {
        Program::start_as(&mut Command::new(Program::path()), arguments)
    }

    fn start_as(command: &mut Command, arguments: &[&str]) -> (Program, String) {
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the fuse_serve example is built");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut program = Program { child, input, output };
        let line = program.line();
        let path = line.strip_prefix("ready ").unwrap_or_else(|| panic!("it prints {line:?}"));
        (program, path.into())
    }

    /// The path of the example. Cargo builds examples for `cargo test`, in a folder next to the
    /// tests.
    fn path() -> PathBuf {
        let test = std::env::current_exe().expect("the path of this test");
        test.parent().and_then(Path::parent).expect("target").join("examples/fuse_serve")
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line of output");
        line.trim_end().into()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the example reads its input");
    }

    fn kill(mut self) {
        self.child.kill().expect("SIGKILL");
        assert!(ends(&mut self.child), "a killed server does not exit");
    }

    fn stop(mut self) {
        self.say("stop");
        if !ends(&mut self.child) {
            panic!("the server does not stop: {}", self.line());
        }
    }
}

fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// The test kills the server while a program writes to a file system on its loop device. All
/// programs that use the disk get errors instead of waiting. The next server cleans up, and the
/// disk still has the flushed data.
#[test]
fn a_killed_server_leaves_no_program_stuck() {
    for engine in ["uring", "portable"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (mountpoint, image) = (folder.path().join("mount"), folder.path().join("image"));
        fs::create_dir(&mountpoint).expect("a directory");
        fs::File::create(&image).expect("a file").set_len(96 << 20).expect("a size");
        let arguments = [
            image.to_str().expect("UTF-8"),
            mountpoint.to_str().expect("UTF-8"),
            "--engine",
            engine,
            "--loop",
            "true",
        ];
        let (program, device) = Program::start(&arguments);
        run("mkfs.ext4", &["-q", &device]);
        let used = MountedFs::new(&device, "rw");
        let data = Random::new(3).bytes(8 << 20);
        fs::write(used.file("durable"), &data).expect("the write succeeds");
        fs::File::open(used.file("durable"))
            .expect("a file")
            .sync_all()
            .expect("the flush succeeds");
        let file = format!("--filename={}", used.file("load"));
        let mut load = Command::new("timeout");
        let load = load.args(["60", "fio", "--name=load", &file, "--size=32m", "--bs=4k"]);
        let load = load.args(["--rw=randwrite", "--ioengine=libaio", "--direct=1"]);
        let load = load.args(["--iodepth=32", "--time_based", "--runtime=50", "--minimal"]);
        let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fio");
        std::thread::sleep(Duration::from_millis(700));
        assert!(load.try_wait().expect("a child").is_none(), "fio exited too early");
        program.kill();
        assert!(ends(&mut load), "a program that uses the disk hangs");
        assert!(!load.wait().expect("the exit status of fio").success(), "fio reported no error");
        assert!(fs::metadata(&mountpoint).is_err(), "the mount still works");
        used.unmount();

        let (program, device) = Program::start(&arguments);
        // fsck must succeed, because a killed server causes no more damage than a power loss.
        let mended = output("fsck.ext4", &["-fy", &device]).status.code();
        assert!(mended.is_some_and(|code| code < 4), "{mended:?}");
        let used = MountedFs::new(&device, "rw");
        assert!(
            fs::read(used.file("durable")).expect("the file exists") == data,
            "the flushed data changed"
        );
        used.unmount();
        program.stop();
        assert!(!mounted(&mountpoint));
        let loops = run("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"]);
        assert!(!loops.contains(mountpoint.to_str().expect("UTF-8")), "{loops}");
    }
}

/// The killed server's loop device is still mounted. The next server must still start.
#[test]
fn a_new_server_replaces_a_stale_mount_in_use() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let arguments = ["mem:64MiB", path, "--loop", "true"];
    let (program, device) = Program::start(&arguments);
    run("mkfs.ext4", &["-q", &device]);
    let used = MountedFs::new(&device, "rw");
    program.kill();
    let (program, second) = Program::start(&arguments);
    assert_ne!(device, second);
    run("mkfs.ext4", &["-q", &second]);
    used.unmount();
    program.stop();
}

#[test]
fn a_server_refuses_to_stop_while_the_file_is_open() {
    let mut served = Served::new(ENGINES[1], disk("mem:1MiB", 512));
    let file = fs::File::open(served.path()).expect("the file opens");
    let Err(StopError::InUse(path, users)) = served.server.stop(false) else {
        panic!("the server stopped although the disk is in use")
    };
    assert_eq!(path, served.path());
    let own = users.iter().find(|user| user.pid == Some(std::process::id())).expect("our process");
    assert_eq!(own.what, format!("has {} open", path.display()));
    assert!(users.iter().all(|user| !user.command.is_empty()));
    file.read_at(&mut [0; 512], 0).expect("the disk still works");
    // Start a process that uses the mount as its working directory.
    let mut shell = Command::new("sleep").arg("60").current_dir(served.folder.path()).spawn();
    let shell = shell.as_mut().expect("sleep");
    drop(file);
    let said = served.server.stop(false).expect_err("the disk is in use").to_string();
    assert!(
        said.contains(&format!("sleep (process {}) has its working directory in ", shell.id())),
        "{said}"
    );
    shell.kill().expect("SIGKILL");
    shell.wait().expect("the process ends");
    served.stop();
}

/// A process has a copy of the mount in another mount namespace. The server then continues, and the
/// error names that process.
#[test]
fn a_server_continues_while_another_namespace_has_the_mount() {
    let mut served = Served::new(ENGINES[0], disk("mem:1MiB", 512));
    let mut holder = Command::new("unshare");
    let holder = holder.args(["--mount", "--propagation", "private", "sleep", "60"]);
    let mut holder = holder.spawn().expect("unshare");
    let mount = format!("/proc/{}/mountinfo", holder.id());
    let own = fs::read_link("/proc/self/ns/mnt").expect("a link");
    eventually("the process has its own mount namespace", || {
        let link = fs::read_link(format!("/proc/{}/ns/mnt", holder.id()));
        link.is_ok_and(|link| link != own)
            && fs::read_to_string(&mount).is_ok_and(|text| !text.contains("shared:"))
            && fs::read_to_string(format!("/proc/{}/comm", holder.id()))
                .is_ok_and(|text| text == "sleep\n")
    });
    let said = served.server.stop(false).expect_err("a copy of the mount exists").to_string();
    let whose = format!("sleep (process {}) has the disk mounted at", holder.id());
    assert!(
        said.contains("is no longer mounted in this mount namespace") && said.contains(&whose),
        "{said}"
    );
    assert!(!mounted(served.folder.path()));
    holder.kill().expect("SIGKILL");
    holder.wait().expect("the process ends");
    served.stop();
}

#[test]
fn a_forced_stop_does_not_wait_for_requests() {
    // This disk does not answer for 300 s.
    let mut served = Served::new(ENGINES[0], disk("delay:300s,mem:1MiB", 512));
    let path = served.path().to_path_buf();
    let reader = std::thread::spawn(move || fs::read(path));
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    served.server.stop(true).expect("the server stops");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(reader.join().expect("no panic").is_err(), "the read succeeded");
    assert!(!mounted(served.folder.path()));
}

#[test]
fn a_server_stops_after_an_external_unmount() {
    let served = Served::new(ENGINES[0], disk("mem:1MiB", 512));
    run("umount", &[served.folder.path().to_str().expect("UTF-8")]);
    served.stop();
}

/// After a stop, neither the server nor its threads hold a reference to the namespace.
#[test]
fn a_stopped_server_releases_the_namespace() {
    let namespace = disk("mem:1MiB", 512);
    let served = Served::new(ENGINES[0], Arc::clone(&namespace));
    served.stop();
    assert_eq!(Arc::strong_count(&namespace), 1);
}

fn refused(config: &Config) -> String {
    match Server::start(config, disk("mem:1MiB", 512)) {
        Ok(_) => panic!("the server started with an invalid configuration"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn unusable_mountpoints_and_names_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = Config::new(folder.path().join("missing"));
    assert!(refused(&missing).contains("does not exist: create it"), "{}", refused(&missing));
    fs::write(folder.path().join("file"), "").expect("a file");
    let file = Config::new(folder.path().join("file"));
    assert!(refused(&file).contains("is not a directory"), "{}", refused(&file));
    for name in ["", "..", "a/b", &"x".repeat(256)] {
        let config = Config { name: name.into(), ..Config::new(folder.path().into()) };
        assert!(refused(&config).contains("is not a file name"), "{}", refused(&config));
    }
    let served = Served::new(ENGINES[0], disk("mem:1MiB", 512));
    let busy = Config::new(served.folder.path().into());
    assert!(refused(&busy).contains("is mounted at"), "{}", refused(&busy));
    served.stop();
}

/// Without root, `fusermount3` mounts and unmounts. If it is missing, the error names it.
#[test]
fn a_user_without_root_mounts_with_the_helper() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    run("chown", &["65534:65534", path]);
    // Copy the example to a folder where any user may run it.
    let program = tempfile::tempdir().expect("a folder");
    let copy = program.path().join("fuse_serve");
    fs::copy(Program::path(), &copy).expect("a copy");
    run("chmod", &["755", program.path().to_str().expect("UTF-8")]);
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
        command
    };
    let arguments = ["mem:1MiB", path, "--name", "mine"];
    let (program, _) = Program::start_as(&mut nobody(), &arguments);
    assert!(mounted(folder.path()));
    program.kill();
    let (program, _) = Program::start_as(&mut nobody(), &arguments);
    program.stop();
    assert!(!mounted(folder.path()));
    let mut others = nobody();
    let others = others.args(arguments).args(["--allow-other", "true"]).stdin(Stdio::null());
    let refused = others.output().expect("the program runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("user_allow_other"), "{said}");
}

/// Runs the command in its own mount namespace, with an empty folder mounted over `hidden`.
fn without(hidden: &str, command: &str) -> String {
    let script = format!("mount -t tmpfs none {hidden} && exec {command}");
    let output = output("unshare", &["--mount", "sh", "-c", &script]);
    assert!(!output.status.success(), "the server started although {hidden} is empty");
    String::from_utf8_lossy(&output.stderr).into()
}

#[test]
fn a_missing_device_or_helper_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display();
    run("chmod", &["755", &path.to_string()]);
    let program = format!("{path}/fuse_serve");
    fs::copy(Program::path(), &program).expect("a copy");
    let said = without("/dev", &format!("{program} mem:1MiB {path}"));
    assert!(said.contains("/dev/fuse does not exist: run 'modprobe fuse'"), "{said}");
    let setpriv = run("sh", &["-c", "command -v setpriv"]);
    fs::copy(setpriv.trim_end(), format!("{path}/setpriv")).expect("a copy");
    let command = format!("{path}/setpriv --reuid=65534 --clear-groups {program} mem:1MiB {path}");
    let said = without("/usr/bin", &command);
    assert!(said.contains("install the package fuse3"), "{said}");
}

#[test]
fn other_users_have_access_only_with_allow_other() {
    let served = Served::with(disk("mem:1MiB", 512), |config| config.allow_other = true);
    let file = format!("if={}", served.path().display());
    let dd = ["--reuid=65534", "--clear-groups", "dd", &file, "of=/dev/null", "status=none"];
    run("setpriv", &dd);
    served.stop();
    let served = Served::new(ENGINES[0], disk("mem:1MiB", 512));
    let file = format!("if={}", served.path().display());
    let dd = ["--reuid=65534", "--clear-groups", "dd", &file, "of=/dev/null", "status=none"];
    assert!(!output("setpriv", &dd).status.success());
    fio_verify(served.path().to_str().expect("UTF-8"), &["--rw=write", "--bs=4k"]);
    served.stop();
}
