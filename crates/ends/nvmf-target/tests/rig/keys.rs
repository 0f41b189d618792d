//! Secrets, their files, and a target that requires the secrets.

use super::{NQN, any};
use farblock_backends::mem::Mem;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_secure::{Secret, TlsKey};
use farblock_target::{Export, HostKeys, Subsystem, Target, TargetConfig, TlsPolicy};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub fn secret(seed: u8) -> Secret {
    Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(seed)).expect("a valid length")
}

/// Starts a target that serves a disk of 1 MiB to this host, once the host has authenticated.
pub fn serve_to(host: &str, keys: HostKeys, tls: Option<TlsPolicy>, engine: EngineKind) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.keys.insert(host.to_owned(), keys);
    let namespace = Arc::new(Mem::new(512, 1 << 20).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any()],
        tls,
        engine,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

/// A file with a secret or key. The file is removed on drop.
pub struct KeyFile(pub PathBuf);

impl KeyFile {
    pub fn of_secret(seed: u8) -> Self {
        Self::holding(secret(seed).text().as_str())
    }

    pub fn of_key(key: &TlsKey) -> Self {
        Self::holding(key.text().as_str())
    }

    /// Replaces the secret in the file.
    #[allow(dead_code, reason = "not every test changes a secret")]
    pub fn change(&self, seed: u8) {
        std::fs::write(&self.0, secret(seed).text().as_str()).expect("room");
    }

    fn holding(text: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("farblock-key-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::File::options();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.create_new(true).write(true).open(&path).expect("a file");
        writeln!(file, "{text}").expect("room");
        Self(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
