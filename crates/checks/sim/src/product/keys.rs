//! Keys of the runs in which the host has to authenticate, in files as users have them.

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

/// There is no library for TLS on other systems.
const HAS_TLS: bool = cfg!(unix);

/// Who has to prove who it is, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// The host.
    OneWay,
    /// The controller as well.
    BothWays,
    /// Both, by a key for TLS.
    Tls,
    /// The host, and then both in TLS that comes of that; the controller as well if it is so.
    Concatenated { is_mutual: bool },
}

impl Proof {
    /// Seven of sixteen seeds do. Which ones depends on nothing else: the runs of the others are
    /// what they were.
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

    /// To be called outside of every world: what OpenSSL draws once for a process is not to be of
    /// the first one's numbers.
    pub(super) fn prepare(self) {
        #[cfg(unix)]
        if matches!(self, Proof::Tls | Proof::Concatenated { .. }) {
            farblock_tls::draw_from(os::fill_simulated).expect("OpenSSL is installed");
        }
    }

    fn is_mutual(self) -> bool {
        matches!(self, Proof::BothWays | Proof::Concatenated { is_mutual: true })
    }

    /// Whether damage on the way cannot do any harm.
    pub(super) fn is_sealed(self) -> bool {
        self == Proof::Tls
    }
}

/// How far the change of the host's key is, which comes once in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// It has not begun.
    Ahead,
    /// Either is good, and the host has the new one.
    UnderWay,
    /// The old one was taken away.
    Over,
}

/// What a target is told.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) keys: HostKeys,
    pub(super) tls: Option<TlsPolicy>,
}

/// The key files of a run; gone with it.
pub(super) struct Keys {
    folder: PathBuf,
    proof: Proof,
    /// The old and the new one.
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
        // Each suite has its turn.
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

    /// What the target asks of the host. Powers of large numbers would take most of a run's time,
    /// and there is no TLS of an exchange without any.
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

    /// The change of the key goes a step on, if this is its time; the target is to be told.
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

    /// The host has the new key from now on, which the target takes by now.
    pub(super) fn renew(&self) {
        for (file, text) in [("host", self.host[1].text()), ("tls", self.tls[1].text())] {
            let path = self.folder.join(file);
            std::fs::remove_file(&path).expect("it is there");
            write(&path, &text);
        }
    }

    /// Has the host prove who it is, and ask for proof.
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

    /// What others come with that know the host's name, and what they are told.
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
            (with(file("stranger"), None), "refuses this host's proof"),
        ];
        if self.change == Change::Over {
            all.push((with(file("old"), None), "refuses this host's proof"));
        }
        if self.proof.is_mutual() {
            // A host takes no controller that has another secret than it knows.
            let wrong = "does not fit the secret that we have for it";
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

/// One that nobody has: a process that was killed may have left one of the same number.
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
    file.write_all(text.as_bytes()).expect("there is room for a key");
}
