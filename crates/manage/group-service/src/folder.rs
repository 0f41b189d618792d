//! The lock of a member's state folder.
//!
//! While a process holds the lock, all processes that held it before have ended. The file contains
//! the random numbers of the last few of these processes. The member compares them with the number
//! in the group's records, because a process with this name may have used another folder.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// The number of processes that the file lists.
const LISTED: usize = 8;

/// The lock of a state folder. Dropping this releases the lock.
#[derive(Debug)]
pub(crate) struct FolderLock {
    file: File,
    /// The random numbers of the processes that held the lock before.
    pub(crate) before: Vec<u64>,
}

impl FolderLock {
    /// Locks the folder for a member.
    pub(crate) fn take(folder: &Path, group: &str, name: &str) -> io::Result<Self> {
        let path = folder.join(format!("group-{group}-{name}"));
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let number = |line: &str| u64::from_str_radix(line, 16).ok().filter(|_| line.len() == 16);
        Ok(Self { file, before: text.lines().filter_map(number).collect() })
    }

    /// Writes the random number of this process to the locked file.
    pub(crate) fn note(&mut self, process: u64) -> io::Result<()> {
        let first = (self.before.len() + 1).saturating_sub(LISTED);
        let all = self.before[first..].iter().chain([&process]);
        let text: String = all.map(|number| format!("{number:016x}\n")).collect();
        self.file.rewind()?;
        self.file.write_all(text.as_bytes())?;
        self.file.sync_all()
    }
}
