//! The key files for runs in which the host must authenticate, in the format that operators use.

use super::HOST_NQN;
use farblock_host::{Options, TcpOptions};
use farblock_random::Random;
#[cfg(unix)]
use farblock_reactor::os;
use farblock_secure::{Group, Hash, Secret, TlsKey};
use farblock_target::{Demand, HostKeys, TlsPolicy};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this system has a TLS library.
const HAS_TLS: bool = cfg!(unix);

/// The kind of authentication of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// The host authenticates.
    OneWay,
    /// Host and controller authenticate.
    BothWays,
    /// Host and controller authenticate, and the connection uses TLS with a configured key.
    Tls,
    /// The host authenticates, and both ends derive the TLS key from the session key. If
    /// `is_mutual`, the controller authenticates as well.
    Concatenated { is_mutual: bool },
}

impl Proof {
    /// The kind of authentication for a seed; `None` for most seeds.
    pub(super) fn of(seed: u64) -> Option<Proof> {
        match seed % 16 {
            3 | 11 => Some(Proof::OneWay),
            7 | 15 => Some(Proof::BothWays),
            5 if HAS_TLS => Some(Proof::Tls),
            9 if HAS_TLS => Some(Proof::Concatenated { is_mutual: false }),
            13 if HAS_TLS => Some(Proof::Concatenated { is_mutual: true }),
            _ => None,
        }
    }

    /// Makes OpenSSL draw the random numbers that it needs once in each process. Call this outside
    /// of every simulated world: otherwise, these numbers would come from the seed of the first
    /// world.
    pub(super) fn prepare(self) {
        #[cfg(unix)]
        if matches!(self, Proof::Tls | Proof::Concatenated { .. }) {
            farblock_tls::draw_from(os::fill_simulated).expect("OpenSSL is installed");
        }
    }

    fn is_mutual(self) -> bool {
        matches!(self, Proof::BothWays | Proof::Concatenated { is_mutual: true })
    }

    /// Whether a connection detects corrupted bytes from its first byte on.
    pub(super) fn is_sealed(self) -> bool {
        self == Proof::Tls
    }
}

/// The progress of the host's key change. A run changes the key once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The change has not started.
    Ahead,
    /// The target accepts both keys, and the host has the new key.
    UnderWay,
    /// The target no longer accepts the old key.
    Over,
}

/// The authentication settings of the target.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) keys: HostKeys,
    pub(super) tls: Option<TlsPolicy>,
}

/// The key files of a run. Dropping this deletes the files.
pub(super) struct Keys {
    folder: PathBuf,
    proof: Proof,
    host: [Secret; 2],
    tls: [TlsKey; 2],
    controller: Secret,
    change: Change,
}

impl Keys {
    pub(super) fn new(seed: u64, proof: Proof) -> Keys {
        let folder = new_folder();
        let mut random = Random::new(Random::mix(&[seed, 55]));
        let mut fill = |bytes: &mut [u8]| random.fill(bytes);
        let mut secret = || Secret::generate(32, Some(Hash::Sha256), &mut fill).expect("a length");
        let [host, controller, stranger, new_host] = [(); 4].map(|()| secret());
        let mut key = |hash| TlsKey::generate(hash, &mut fill).expect("a suite");
        // Alternate between the cipher suites.
        let hash = if (seed / 16).is_multiple_of(2) { Hash::Sha256 } else { Hash::Sha384 };
        let [tls, tls_stranger, new_tls] = [(); 3].map(|()| key(hash));
        for (file, text) in [
            ("host", host.text()),
            ("old", host.text()),
            ("controller", controller.text()),
            ("stranger", stranger.text()),
            ("tls", tls.text()),
            ("tls-old", tls.text()),
            ("tls-stranger", tls_stranger.text()),
        ] {
            write(&folder.join(file), &text);
        }
        let (host, tls) = ([host, new_host], [tls, new_tls]);
        Keys { folder, proof, host, tls, controller, change: Change::Ahead }
    }

    pub(super) fn proof(&self) -> Proof {
        self.proof
    }

    /// The authentication settings of the target. Only runs with TLS concatenation use
    /// Diffie-Hellman: concatenation requires it, but its modular exponentiation is slow.
    pub(super) fn of_target(&self) -> Terms {
        let good = match self.change {
            Change::Ahead => 0..1,
            Change::UnderWay => 0..2,
            Change::Over => 1..2,
        };
        let concatenates = matches!(self.proof, Proof::Concatenated { .. });
        let group = if concatenates { Group::Ffdhe2048 } else { Group::Null };
        let keys = HostKeys {
            host: self.host[good.clone()].to_vec(),
            controller: self.proof.is_mutual().then(|| self.controller.clone()),
            groups: vec![group],
            demand: if concatenates { Demand::SecureChannel } else { Demand::Authentication },
            ..HostKeys::of_tls(Vec::new())
        };
        match self.proof {
            Proof::Tls => {
                let keys = HostKeys::of_tls(self.tls[good].to_vec());
                Terms { keys, tls: Some(TlsPolicy::Required) }
            }
            Proof::Concatenated { .. } => Terms { keys, tls: Some(TlsPolicy::Allowed) },
            Proof::OneWay | Proof::BothWays => Terms { keys, tls: None },
        }
    }

    /// Advances the key change to `change`. Returns false if that is not the next step. After true,
    /// the caller must update the target.
    pub(super) fn go_on(&mut self, change: Change) -> bool {
        let is_next = matches!(
            (self.change, change),
            (Change::Ahead, Change::UnderWay) | (Change::UnderWay, Change::Over)
        );
        if is_next {
            self.change = change;
        }
        is_next
    }

    /// Writes the new key to the host's key file. The target accepts this key already.
    pub(super) fn renew(&self) {
        for (file, text) in [("host", self.host[1].text()), ("tls", self.tls[1].text())] {
            let path = self.folder.join(file);
            std::fs::remove_file(&path).expect("the file exists");
            write(&path, &text);
        }
    }

    /// Sets the host's key files in its options.
    pub(super) fn give(&self, options: &mut Options) {
        let file = |name: &str| Some(self.folder.join(name));
        if self.proof == Proof::Tls {
            options.tcp.tls_key = file("tls");
            return;
        }
        options.dhchap_secret = file("host");
        options.dhchap_ctrl_secret = self.proof.is_mutual().then(|| file("controller")).flatten();
        options.tcp.concatenate = matches!(self.proof, Proof::Concatenated { .. });
    }

    /// The connect options of peers that know only the host's name, and the error that each must
    /// get.
    pub(super) fn strangers(&self, options: &Options) -> Vec<(Options, &'static str)> {
        assert_eq!(options.hostnqn.as_deref(), Some(HOST_NQN));
        let file = |name: &str| Some(self.folder.join(name));
        if self.proof == Proof::Tls {
            let with = |tls_key| {
                let tcp = TcpOptions { tls_key, ..options.tcp.clone() };
                Options { tcp, ..options.clone() }
            };
            let mut all = vec![(with(None), ""), (with(file("tls-stranger")), "refuses TLS")];
            if self.change == Change::Over {
                all.push((with(file("tls-old")), "refuses TLS"));
            }
            return all;
        }
        let with = |host, controller| Options {
            dhchap_secret: host,
            dhchap_ctrl_secret: controller,
            ..options.clone()
        };
        let mut all = vec![
            (with(None, None), "secret"),
            (with(file("stranger"), None), "refused this host's proof"),
        ];
        if self.change == Change::Over {
            all.push((with(file("old"), None), "refused this host's proof"));
        }
        if self.proof.is_mutual() {
            // A host rejects a controller whose secret differs from the configured one.
            let wrong = "does not match the secret that this host has for it";
            all.push((with(file("host"), file("stranger")), wrong));
        }
        if options.tcp.concatenate {
            let plain = with(file("host"), options.dhchap_ctrl_secret.clone());
            all.push((Options { tcp: TcpOptions::default(), ..plain }, "--concat"));
        }
        all
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Creates a folder. A killed process may have left a folder with the same number.
fn new_folder() -> PathBuf {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    loop {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("farblock-sim-{}-{run}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match std::fs::create_dir(&folder) {
            Ok(()) => return folder,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("no folder for keys, {}: {error}", folder.display()),
        }
    }
}

fn write(path: &Path, text: &str) {
    let mut options = File::options();
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).expect("a key file");
    file.write_all(text.as_bytes()).expect("room for a key");
}
