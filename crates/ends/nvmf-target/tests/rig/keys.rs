//! Secrets, and the files they are read from.

use farblock_secure::{Secret, TlsKey};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// The same for the same seed.
pub fn secret(seed: u8) -> Secret {
    Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(seed)).expect("a length there is")
}

/// A file with a secret or a key, removed when it is dropped.
pub struct KeyFile(pub PathBuf);

impl KeyFile {
    pub fn of_secret(seed: u8) -> Self {
        Self::holding(secret(seed).text().as_str())
    }

    pub fn of_key(key: &TlsKey) -> Self {
        Self::holding(key.text().as_str())
    }

    fn holding(text: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("farblock-key-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = std::fs::File::options();
        let mut file = file.create_new(true).write(true).mode(0o600).open(&path).expect("a file");
        writeln!(file, "{text}").expect("room");
        Self(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
