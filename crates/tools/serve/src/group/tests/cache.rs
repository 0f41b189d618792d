//! Checks which disks a group accepts although they use the page cache.

use super::*;
use farblock_backends::file::FileOptions;

#[test]
fn a_buffered_disk_is_accepted_only_on_a_local_file_system() {
    let folder = tempfile::tempdir().expect("the folder is created");
    let path = folder.path().join("disk.img");
    std::fs::write(&path, [0; 4096]).expect("the file is written");
    let disk = FileDisk::open(&path, &FileOptions::new(512).buffered()).expect("the disk opens");
    assert_eq!(check_direct(&path, &disk), Ok(()), "all members share the cache");
    let elsewhere = Path::new("/proc/self/status");
    let refused = check_direct(elsewhere, &disk).expect_err("proc is not a local disk");
    assert!(refused.contains("must bypass the page cache"), "{refused}");
    assert!(check_sectors(&path, 512).is_ok(), "a file has no sectors");
}
