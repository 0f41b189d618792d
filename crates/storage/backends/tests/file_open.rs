//! Tests of files that cannot be opened, and of files that change while they are open.

mod support;

use std::fs::{self, File};
use std::path::Path;

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Change, Namespace};
use farblock_reactor::EngineKind;
use support::{Dir, on_both_engines};

fn refusal(path: &Path, options: &FileOptions) -> String {
    let error = FileDisk::open(path, options).err().expect("the file was opened").to_string();
    assert!(error.contains(path.to_str().unwrap()), "the error does not name the file: {error}");
    assert!(!error.contains('\n'));
    error
}

#[test]
fn unusable_files_are_refused() {
    let dir = Dir::new();
    let options = FileOptions::new(512);
    let missing = refusal(&dir.path("missing.img"), &options);
    assert!(missing.contains("does not exist") && missing.contains("missing.img"), "{missing}");
    let misspelt = refusal(Path::new("miror:a.img,b.img"), &options);
    assert!(!misspelt.contains("truncate"), "the advice would create a misspelt file: {misspelt}");
    let under_file = refusal(&dir.file(512).join("x.img"), &options);
    // Windows reports only whether the path exists.
    let told = if cfg!(windows) { "does not exist" } else { "cannot be opened" };
    assert!(under_file.contains(told), "{under_file}");
    let directory = refusal(&dir.path(""), &options);
    assert!(directory.contains("is a directory"), "{directory}");
    let empty = refusal(&dir.file(0), &options);
    assert!(
        empty.contains("is empty: check that the name") && !empty.contains("truncate"),
        "{empty}"
    );
    let odd = refusal(&dir.file(10_000), &options);
    assert!(odd.contains("extend it with") && odd.contains(" 10240"), "{odd}");
    let odd = refusal(&dir.file(512), &FileOptions::new(4096));
    assert!(odd.contains("not a whole number of 4096-byte blocks"), "{odd}");
    for (contents, said) in [
        ("{\n  \"configured\": {}}", "the state of a farblock target"),
        ("# ours\nops admin 0123456789abcdef\n", "tokens of a farblock target"),
        ("NVMeTLSkey-1:01:AAEC:\n", "keys"),
        ("root:x:0:0:größe\n", "text"),
    ] {
        let path = dir.path("text");
        std::fs::write(&path, contents).unwrap();
        let text = refusal(&path, &options);
        assert!(text.contains(&format!("contains {said}, and is not a disk")), "{text}");
        assert!(!text.contains("truncate"), "{text}");
    }
    let error = FileDisk::open(dir.file(512), &FileOptions::new(520)).err().unwrap();
    assert!(error.to_string().contains("a power of two"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn special_files_are_refused() {
    let options = FileOptions::new(512);
    let device = refusal(Path::new("/dev/null"), &options);
    assert!(device.contains("neither a regular file nor a block device"), "{device}");
    let dir = Dir::new();
    let pipe = dir.path("pipe");
    support::run("mkfifo", &[pipe.to_str().unwrap()]);
    let pipe = refusal(&pipe, &options); // must not wait for a writer
    assert!(pipe.contains("neither a regular file nor a block device"), "{pipe}");
}

#[test]
fn a_file_has_one_writer_or_many_readers() {
    let dir = Dir::new();
    let path = dir.file(4096);
    let (writable, read_only) = (FileOptions::new(512), FileOptions::new(512).read_only());
    let writer = FileDisk::open(&path, &writable).unwrap();
    assert!(refusal(&path, &writable).contains("two writers would destroy it"));
    let written = if cfg!(target_os = "linux") { "which may write" } else { "stop the writer" };
    assert!(refusal(&path, &read_only).contains(written));
    // A queue keeps the file open and locked.
    let disk = Blocking::new(&writer).unwrap();
    drop(writer);
    assert!(refusal(&path, &writable).contains("two writers would destroy it"));
    drop(disk);
    let reader = FileDisk::open(&path, &read_only).unwrap();
    let another = FileDisk::open(&path, &read_only).unwrap();
    assert!(refusal(&path, &writable).contains("two writers would destroy it"));
    drop((reader, another));
    FileDisk::open(&path, &writable).unwrap();
}

/// The kernel keeps the files of a killed process open until it has closed the io_uring of the
/// process.
#[test]
fn opening_waits_for_a_lock_to_be_released() {
    let dir = Dir::new();
    let path = dir.file(4096);
    let options = FileOptions::new(512);
    let before = FileDisk::open(&path, &options).unwrap();
    std::thread::scope(|scope| {
        let after = scope.spawn(|| FileDisk::open(&path, &options).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(before);
        after.join().unwrap().unwrap();
    });
}

#[test]
#[cfg(target_os = "linux")]
fn missing_permissions_are_reported() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    let dir = Dir::new();
    let (secret, shown) = (dir.file(4096), dir.file(4096));
    fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&shown, Permissions::from_mode(0o444)).unwrap();
    as_nobody(dir, move || {
        let message = refusal(&secret, &FileOptions::new(512));
        assert!(message.contains("may not be read by this user"), "{message}");
        let message = refusal(&secret, &FileOptions::new(512).read_only());
        assert!(message.contains("may not be read by this user"), "{message}");
        let message = refusal(&shown, &FileOptions::new(512));
        assert!(message.contains("may not be written by this user"), "{message}");
        FileDisk::open(&shown, &FileOptions::new(512).read_only()).unwrap();
    });
}

/// Runs `work` on a thread without root's rights. The system call changes the user of one thread;
/// the C library would change all threads.
#[cfg(target_os = "linux")]
fn as_nobody(dir: Dir, work: impl FnOnce() + Send + 'static) {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    for part in dir.path("").ancestors() {
        let Ok(found) = fs::metadata(part) else { continue };
        let mode = found.permissions().mode();
        assert!(mode & 1 != 0 || part == dir.path(""), "{} is closed to others", part.display());
    }
    fs::set_permissions(dir.path(""), Permissions::from_mode(0o755)).unwrap();
    let thread = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        work();
    });
    thread.join().unwrap();
    drop(dir);
}

#[test]
fn the_description_names_the_file_and_its_options() {
    let dir = Dir::new();
    let path = dir.file(1 << 20);
    let text = path.display();
    let disk = FileDisk::open(&path, &FileOptions::new(512).buffered()).unwrap();
    assert_eq!(
        disk.describe(),
        format!("file {text} (1 MiB, 512-byte blocks, page cache: as requested)")
    );
    drop(disk);
    let disk = FileDisk::open(&path, &FileOptions::new(4096).read_only()).unwrap();
    assert!(disk.describe().contains("4096-byte blocks, read-only, "), "{}", disk.describe());
}

on_both_engines! {
    reads_beyond_the_end_of_a_truncated_file_fail(engine) {
        for options in [FileOptions::new(512), FileOptions::new(512).buffered()] {
            let dir = Dir::new();
            let path = dir.noise(1 << 20);
            let disk = FileDisk::open(&path, &options).unwrap();
            let mut disk = Blocking::with_engine(&disk, engine).unwrap();
            let mut data = vec![0; 65536];
            disk.read(1024, &mut data).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(300_000).unwrap();
            assert_eq!(disk.read(1024, &mut data), Err(BlockError::ReadFailed));
            // Read a range across the end, and the partial last block.
            assert_eq!(disk.read(580, &mut data), Err(BlockError::ReadFailed));
            assert_eq!(disk.read(585, &mut data[..512]), Err(BlockError::ReadFailed));
            disk.read(0, &mut data).unwrap();
            disk.flush().unwrap();
        }
    }

    a_write_does_not_lengthen_a_truncated_file(engine) {
        for options in [FileOptions::new(512), FileOptions::new(512).buffered()] {
            let dir = Dir::new();
            let path = dir.noise(1 << 20);
            let disk = FileDisk::open(&path, &options).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let _watch = disk.changes().unwrap().watch(move |change| {
                let _ = tell.send(change);
            });
            let mut blocks = Blocking::with_engine(&disk, engine).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(300_000).unwrap();
            assert_eq!(blocks.write(1024, &[7; 512]), Err(BlockError::WriteFailed));
            // Block 700 is in the gap between the truncated end and the new write. The file has
            // zeroes there that no host wrote, so the read must fail.
            assert_eq!(blocks.read(700, &mut [0; 512]), Err(BlockError::ReadFailed));
            assert_eq!(blocks.flush(), Err(BlockError::WriteFailed));
            assert_eq!(told.recv(), Ok(Change::Contents));
            assert!(disk.trouble().unwrap().contains("while it was in use"));
            disk.lengthen(1 << 20).unwrap();
            blocks.write(1024, &[7; 512]).unwrap();
        }
    }

    a_write_of_the_last_block_does_not_hide_a_truncation(engine) {
        let dir = Dir::new();
        let path = dir.noise(1 << 20);
        let disk = FileDisk::open(&path, &FileOptions::new(512)).unwrap();
        let mut disk = Blocking::with_engine(&disk, engine).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(300_000).unwrap();
        assert_eq!(disk.write(2047, &[7; 512]), Err(BlockError::WriteFailed));
        assert_eq!(disk.read(700, &mut [0; 512]), Err(BlockError::ReadFailed));
    }

    written_blocks_are_at_their_offsets_in_the_file(engine) {
        let dir = Dir::new();
        let path = dir.file(1 << 20);
        let disk = FileDisk::open(&path, &FileOptions::new(512)).unwrap();
        let mut disk = Blocking::with_engine(&disk, engine).unwrap();
        disk.write(3, &[7; 1024]).unwrap();
        disk.flush().unwrap();
        drop(disk);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 1 << 20, "the size changed");
        assert!(bytes[1536..2560].iter().all(|&byte| byte == 7));
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 1024);
    }
}

#[cfg(unix)]
#[test]
fn growth_of_a_file_is_reported_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(4096).unwrap();
    let disk = FileDisk::open(&path, &FileOptions::new(512)).unwrap();
    assert!(!disk.has_grown());
    file.set_len(8192 + 100).unwrap();
    // The growth thread may have noticed the new size already.
    disk.has_grown();
    assert!(!disk.has_grown());
    assert_eq!(disk.geometry().blocks, 16);
    disk.lengthen(4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8192 + 100, "the file was shortened");
    disk.lengthen_while(1 << 20, || false).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8192 + 100, "an unwanted file grew");
    let refused = disk.lengthen(u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("cannot be extended"), "{refused}");
    assert!(!refused.contains("os error"), "{refused}");
    disk.lengthen(1 << 20).unwrap();
    assert_eq!((file.metadata().unwrap().len(), disk.geometry().blocks), (1 << 20, 2048));
    file.set_len(512).unwrap();
    assert!(!disk.has_grown());
    assert_eq!(disk.geometry().blocks, 2048);
    disk.measure().unwrap();
    assert_eq!(disk.geometry().blocks, 1);
}

#[cfg(unix)]
#[test]
fn a_deleted_or_replaced_file_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["disk", "other"].map(|name| folder.path().join(name));
    for path in [&path, &other] {
        std::fs::File::create(path).unwrap().set_len(4096).unwrap();
    }
    let disk = FileDisk::open(&path, &FileOptions::new(512)).unwrap();
    std::fs::rename(&path, folder.path().join("moved")).unwrap();
    assert!(!disk.is_deleted(), "a renamed file counts as deleted");
    std::fs::rename(folder.path().join("moved"), &path).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(disk.is_deleted());
    while !disk.trouble().is_some_and(|it| it.contains("was deleted, or replaced")) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[cfg(unix)]
#[test]
fn a_lock_can_be_released_and_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(4096).unwrap();
    let options = FileOptions::new(512);
    let first = FileDisk::open(&path, &options.read_only()).unwrap();
    assert!(FileDisk::open(&path, &options).is_err());
    first.unlock();
    let second = FileDisk::open(&path, &options).unwrap();
    assert!(first.lock().is_err());
    drop(second);
    first.lock().unwrap();
    assert!(FileDisk::open(&path, &options).is_err());
}

/// QEMU's tools refuse an image that farblock shares. farblock refuses an image that they use.
#[test]
#[cfg(target_os = "linux")]
fn qemu_and_farblock_exclude_each_other() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    let dir = Dir::new();
    let path = dir.file(1 << 20);
    let image = path.to_str().unwrap();
    let qemu = || {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-c", "write 0 4k", image]);
        command.output().expect("no qemu-io: interop/packages.sh installs it")
    };
    let shared = FileDisk::open(&path, &FileOptions::new(512)).unwrap();
    let refused = String::from_utf8(qemu().stderr).unwrap();
    assert!(refused.contains("lock"), "QEMU writes to a shared disk: {refused}");
    drop(shared);
    let mut writer = Command::new("qemu-io")
        .args(["-f", "raw", image])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The tool's output shows that the tool has opened the image.
    let mut input = writer.stdin.take().unwrap();
    input.write_all(b"write 0 4k\n").unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("wrote 4096")));
    for options in [FileOptions::new(512), FileOptions::new(512).read_only()] {
        let message = refusal(&path, &options);
        assert!(message.contains(&format!("process {} (qemu-io)", writer.id())), "{message}");
    }
    drop(input);
    writer.wait().unwrap();
    FileDisk::open(&path, &FileOptions::new(512)).unwrap();
}
