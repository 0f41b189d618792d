//! Finds the process that holds a file lock in the information that `/proc` has about locks. A
//! recorded process ID would be unsafe: it may be missing, or the kernel may have reused it.

use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

/// Kills the processes that hold the lock on this file. Returns false if no process holds it.
pub(in super::super::super) fn kill_holder(lock: &Path, _: &str) -> bool {
    // The links in `/proc` contain canonical paths.
    let Ok(lock) = lock.canonicalize() else { return false };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).filter(|pid| kill_if(*pid, |pid| holds(pid, &lock))).count()
        > 0
}

/// Kills the process if `is_it` returns true. Never kills another process that got the same ID
/// later.
fn kill_if(pid: Pid, is_it: impl FnOnce(Pid) -> bool) -> bool {
    // Open the pidfd first. It still refers to this process if the ID is reused after the check.
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
    if !is_it(pid) {
        return false;
    }
    let killed = match process {
        Ok(process) => rustix::process::pidfd_send_signal(process, Signal::KILL),
        // Before Linux 5.3 there are no pidfds: kill right after the check.
        Err(Errno::NOSYS) => rustix::process::kill_process(pid, Signal::KILL),
        Err(error) => Err(error),
    };
    killed.is_ok()
}

/// Whether a process has this file open and locked. Only reads links: opening the process's other
/// files could hang, if their file system does not answer.
fn holds(pid: Pid, lock: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let descriptors = match fs::read_dir(process.join("fd")) {
        Ok(descriptors) => descriptors.flatten(),
        // Only root can list the descriptors of a process that has read a key.
        Err(error) => return error.kind() == io::ErrorKind::PermissionDenied && took(pid, lock),
    };
    let mut ours =
        descriptors.into_iter().filter(|it| fs::read_link(it.path()).is_ok_and(|to| to == lock));
    ours.any(|it| {
        let info = fs::read_to_string(process.join("fdinfo").join(it.file_name()));
        info.is_ok_and(|info| info.lines().any(is_lock))
    })
}

/// Whether a process took this lock, and the lock is still held. Reads `/proc/locks`, which lists
/// the process that took a lock. A server takes its lock itself, and passes it to no other process.
fn took(pid: Pid, lock: &Path) -> bool {
    let (Ok(file), Ok(locks)) = (fs::metadata(lock), fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let (device, inode) = (file.dev(), file.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| is_taken(line, pid, &place))
}

/// Matches a line such as `1: FLOCK ADVISORY WRITE 359 00:13:11691 0 EOF`. Lines of waiting
/// processes start with an arrow.
fn is_taken(line: &str, pid: Pid, place: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().skip(1).take(5).collect();
    words == ["FLOCK", "ADVISORY", "WRITE", pid.to_string().as_str(), place]
}

/// Matches a line such as `lock: 1: FLOCK ADVISORY WRITE 359 00:13:11691 0 EOF`.
fn is_lock(line: &str) -> bool {
    line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE")
}

#[cfg(test)]
mod tests {
    use super::super::{is_locked, lock};
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_lock_holder_is_found_without_access_to_its_descriptors() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("server");
        let (own, other) = (rustix::process::getpid(), Pid::INIT);
        let locked = lock(&path).expect("the lock is free");
        assert!(took(own, &path) && !took(other, &path));
        fs::write(place.path().join("another"), "").expect("the file is written");
        assert!(!took(own, &place.path().join("another")) && !took(own, &place.path().join("no")));
        drop(locked);
        assert!(!took(own, &path));
        // A shared lock on the file does not count.
        let file = fs::File::open(&path).expect("the file opens");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).expect("a lock");
        assert!(!took(own, &path));
        let pid = Pid::from_raw(359).expect("a number");
        let is_taken = |line: &str| is_taken(line, pid, "00:13:11691");
        assert!(is_taken("1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF"));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF",
            "1: POSIX  ADVISORY  WRITE 359 00:13:11691 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 3590 00:13:11691 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 359 00:13:116910 0 EOF",
            "1: FLOCK",
            "",
        ] {
            assert!(!is_taken(other), "{other}");
        }
    }

    #[test]
    fn only_the_holder_of_the_lock_is_killed() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("server").canonicalize();
        assert!(path.is_err() && !kill_holder(&place.path().join("server"), "1"));
        let locked = lock(&place.path().join("server")).expect("the lock is free");
        let path = place.path().join("server").canonicalize().expect("the path exists");
        let own = rustix::process::getpid();
        assert!(holds(own, &path));
        // This child has inherited the lock, as a supervisor does.
        let start = |stdin: Stdio| Command::new("sleep").arg("600").stdin(stdin).spawn();
        let copy = locked.try_clone().expect("a copy");
        let mut has = start(copy.into()).expect("the child starts");
        // This child only has the file open.
        let mut looks =
            start(fs::File::open(&path).expect("the file opens").into()).expect("the child starts");
        drop(locked);
        assert!(!holds(own, &path) && is_locked(&path));
        // The recorded process ID, which is the second child's, has no effect.
        assert!(kill_holder(&path, &looks.id().to_string()));
        assert_eq!(has.wait().expect("a child").code(), None, "the process was not killed");
        assert!(!is_locked(&path) && !kill_holder(&path, &looks.id().to_string()));
        assert!(looks.try_wait().expect("a child").is_none(), "the process still runs");
        looks.kill().expect("the child is killed");
        looks.wait().expect("a child");
    }
}
