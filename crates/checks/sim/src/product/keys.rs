//! Keys of the runs in which the host has to authenticate, in files as users have them.

use super::HOST_NQN;
use farblock_host::Options;
use farblock_random::Random;
use farblock_secure::{Group, Hash, Secret};
use farblock_target::HostKeys;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Who has to prove who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Proof {
    /// The host.
    OneWay,
    /// The controller as well.
    BothWays,
}

impl Proof {
    /// A quarter of all seeds authenticate, half of them both ways. Which ones depends on nothing
    /// else, so that the runs of the others are what they were.
    pub(super) fn of(seed: u64) -> Option<Proof> {
        match seed % 8 {
            3 => Some(Proof::OneWay),
            7 => Some(Proof::BothWays),
            _ => None,
        }
    }
}

/// The key files of a run; gone with it.
pub(super) struct Keys {
    folder: PathBuf,
    proof: Proof,
    host: Secret,
    controller: Secret,
}

impl Keys {
    pub(super) fn new(seed: u64, proof: Proof) -> Keys {
        let folder = new_folder();
        let mut random = Random::new(Random::mix(&[seed, 55]));
        let mut secret = |file: &str| {
            let mut fill = |bytes: &mut [u8]| random.fill(bytes);
            let secret = Secret::generate(32, Some(Hash::Sha256), &mut fill).expect("a length");
            write(&folder.join(file), &secret.text());
            secret
        };
        let (host, controller) = (secret("host"), secret("controller"));
        secret("stranger");
        Keys { folder, proof, host, controller }
    }

    /// What the target asks of the host. Powers of large numbers would take most of a run's time.
    pub(super) fn of_target(&self) -> HostKeys {
        let is_mutual = self.proof == Proof::BothWays;
        HostKeys {
            controller: is_mutual.then(|| self.controller.clone()),
            groups: vec![Group::Null],
            ..HostKeys::new(self.host.clone())
        }
    }

    /// Has the host prove who it is, and ask for proof.
    pub(super) fn give(&self, options: &mut Options) {
        let is_mutual = self.proof == Proof::BothWays;
        options.dhchap_secret = Some(self.folder.join("host"));
        options.dhchap_ctrl_secret = is_mutual.then(|| self.folder.join("controller"));
    }

    /// What others come with that know the host's name, and what they are told.
    pub(super) fn strangers(&self, options: &Options) -> Vec<(Options, &'static str)> {
        assert_eq!(options.hostnqn.as_deref(), Some(HOST_NQN));
        let stranger = Some(self.folder.join("stranger"));
        let with = |host, controller| Options {
            dhchap_secret: host,
            dhchap_ctrl_secret: controller,
            ..options.clone()
        };
        let mut all = vec![
            (with(None, None), "secret"),
            (with(stranger.clone(), None), "refuses this host's proof"),
        ];
        if self.proof == Proof::BothWays {
            // A host takes no controller that has another secret than it knows.
            let host = Some(self.folder.join("host"));
            all.push((with(host, stranger), "does not fit the secret that we have for it"));
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
