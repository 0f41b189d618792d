//! Temporary drives: files that the controller creates for one run.

use farblock_random::Random;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Creates the file of a drive: sparse, or full of random data if `is_filled`.
pub(crate) fn create(path: &Path, bytes: u64, is_filled: bool) -> io::Result<()> {
    File::create(path)?.set_len(bytes)?;
    if is_filled { fill(path) } else { Ok(()) }
}

/// Fills a file with data, because a file system answers reads of holes without the disk.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut left = file.metadata()?.len();
    let (mut random, mut chunk) = (Random::new(1), vec![0; 1 << 20]);
    while left > 0 {
        random.fill(&mut chunk);
        let part = left.min(chunk.len() as u64);
        file.write_all(&chunk[..part as usize])?;
        left -= part;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_filled_file_has_data_up_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive");
        File::create(&path).unwrap().set_len((1 << 20) + 512).unwrap();
        fill(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), (1 << 20) + 512);
        assert!(bytes.chunks(512).all(|block| block.iter().any(|&byte| byte != 0)));
    }
}
