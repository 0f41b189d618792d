//! Shared helpers of the tests.

#![allow(dead_code, unused_imports, unused_macros, reason = "no test uses all helpers")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::{BlockError, Geometry, Namespace, Op, Queue};
use farblock_random::Random;
use farblock_reactor::{Reactor, TaskId};

/// Creates a module for each name, with one test per engine.
macro_rules! on_both_engines {
    ($($name:ident($engine:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn with($engine: EngineKind) $body

            #[test]
            fn portable() {
                with(EngineKind::Portable);
            }

            #[test]
            #[cfg(target_os = "linux")]
            fn uring() {
                with(EngineKind::Uring);
            }
        }
    )*};
}
pub(crate) use on_both_engines;

/// A directory for files. It is on the disk that holds the build, because `/tmp` may be in memory.
pub(crate) struct Dir {
    dir: tempfile::TempDir,
    files: AtomicU32,
}

impl Dir {
    pub(crate) fn new() -> Dir {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a temporary folder is created");
        Dir { dir, files: AtomicU32::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, bytes: u64) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.path(&format!("disk{number}.img"));
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("the file is created");
        path
    }

    /// Creates a file full of random bytes.
    pub(crate) fn noise(&self, bytes: u64) -> PathBuf {
        let path = self.file(0);
        let mut data = vec![0; bytes as usize];
        Random::new(1).fill(&mut data);
        std::fs::write(&path, data).expect("the file is written");
        path
    }

    /// Creates a sparse file that is open and already unlinked. Closing it frees its space.
    pub(crate) fn disk(&self, bytes: u64, options: &FileOptions) -> FileDisk {
        let path = self.file(bytes);
        let disk = FileDisk::open(&path, options).expect("the disk opens");
        std::fs::remove_file(&path).expect("the file is removed");
        disk
    }
}

/// A namespace that accepts only a few blocks per operation.
pub(crate) struct Capped {
    inner: Arc<dyn Namespace>,
    max_blocks: u32,
}

impl Capped {
    pub(crate) fn new(inner: Arc<dyn Namespace>, max_blocks: u32) -> Capped {
        Capped { inner, max_blocks }
    }
}

impl Namespace for Capped {
    fn geometry(&self) -> Geometry {
        Geometry { max_blocks: self.max_blocks, ..self.inner.geometry() }
    }

    fn describe(&self) -> String {
        format!("{}, {} blocks at once", self.inner.describe(), self.max_blocks)
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        Ok(Box::new(CappedQueue { inner, geometry: self.geometry(), refused: Vec::new() }))
    }
}

struct CappedQueue {
    inner: Box<dyn Queue>,
    geometry: Geometry,
    refused: Vec<farblock_block::Completion>,
}

impl Queue for CappedQueue {
    fn submit(&mut self, op: Op) {
        match op.check(&self.geometry) {
            Ok(()) => self.inner.submit(op),
            Err(error) => self.refused.push(op.complete(Err(error))),
        }
    }

    fn poll(&mut self, done: &mut Vec<farblock_block::Completion>) {
        done.append(&mut self.refused);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }
}

/// False if `FARBLOCK_SKIP_ROOT_TESTS` is set. Otherwise true: the test then fails without root.
pub(crate) fn may_use_root() -> bool {
    let skip = std::env::var_os("FARBLOCK_SKIP_ROOT_TESTS").is_some();
    if skip {
        eprintln!("NOT TESTED: FARBLOCK_SKIP_ROOT_TESTS is set");
    }
    !skip
}

/// Runs a program that must succeed, and returns the output of the program.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} does not start: {error}"));
    assert!(
        output.status.success(),
        "`{program} {}` failed (this test needs root and loop devices; \
         FARBLOCK_SKIP_ROOT_TESTS=1 skips it): {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A mounted file system. Dropping this value unmounts the file system.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts a memory file system of this many bytes.
    pub(crate) fn tmpfs(dir: &Dir, bytes: u64) -> Mount {
        Mount::new(dir, &["-t", "tmpfs", "-o", &format!("size={bytes}"), "farblock-test"])
    }

    /// Mounts the file system on a device.
    pub(crate) fn device(dir: &Dir, device: &Loop) -> Mount {
        Mount::new(dir, &[text(&device.path)])
    }

    fn new(dir: &Dir, arguments: &[&str]) -> Mount {
        let at = dir.path("mount");
        std::fs::create_dir_all(&at).expect("a directory to mount on");
        let mut arguments = arguments.to_vec();
        arguments.push(text(&at));
        run("mount", &arguments);
        Mount { at }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// A loop device over a sparse file. Dropping this value detaches the device.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
    /// The file below the device.
    pub(crate) file: PathBuf,
}

impl Loop {
    pub(crate) fn new(dir: &Dir, bytes: u64, sector: u32) -> Loop {
        Loop::over(&dir.file(bytes), sector)
    }

    /// Creates a loop device over an existing file.
    pub(crate) fn over(file: &Path, sector: u32) -> Loop {
        let sector = sector.to_string();
        let arguments = ["--show", "--find", "--sector-size", &sector, text(file)];
        Loop { path: run("losetup", &arguments).into(), file: file.to_owned() }
    }

    pub(crate) fn part(file: &Path, offset: u64, bytes: u64) -> Loop {
        let (offset, bytes) = (offset.to_string(), bytes.to_string());
        let limits = ["--offset", &offset, "--sizelimit", &bytes, text(file)];
        let made = run("losetup", &[&["--show", "--find"], &limits[..]].concat());
        Loop { path: made.into(), file: file.to_owned() }
    }

    pub(crate) fn name(&self) -> &str {
        text(&self.path)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}
