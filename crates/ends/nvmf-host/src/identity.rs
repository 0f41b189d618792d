//! This host's identity: its NQN and its identifier. The host uses the first available source:
//! 1. the options of the connection,
//! 2. `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, which nvme-cli keeps,
//! 3. `hostid` in the user's configuration directory, generated once at random. A systemd service
//!    has no `HOME`: its home then comes from the user database, so that root's services and root's
//!    shells have the same identity. A service without a home uses its state directory,
//! 4. a random identity for this process, if the process can write to none of these directories.

use crate::name;
use farblock_wire::nqn::UUID_NQN_PREFIX;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

/// A host identifier: a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Returns a random identifier (UUID version 4).
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn random() -> io::Result<HostId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(HostId(bytes))
    }

    /// The host NQN derived from this identifier.
    #[must_use]
    pub fn to_nqn(self) -> String {
        format!("{UUID_NQN_PREFIX}{self}")
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

/// The error for a text that is not a host identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseHostIdError;

impl fmt::Display for ParseHostIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host identifier is a UUID other than zero")
    }
}

impl std::error::Error for ParseHostIdError {}

impl FromStr for HostId {
    type Err = ParseHostIdError;

    fn from_str(text: &str) -> Result<HostId, ParseHostIdError> {
        let dashes_fit = match text.len() {
            36 => text
                .bytes()
                .enumerate()
                .all(|(at, byte)| (byte == b'-') == matches!(at, 8 | 13 | 18 | 23)),
            32 => !text.contains('-'),
            _ => false,
        };
        if !dashes_fit {
            return Err(ParseHostIdError);
        }
        let mut digits = text.chars().filter(|&c| c != '-').map(|c| c.to_digit(16));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let high = digits.next().flatten().ok_or(ParseHostIdError)?;
            let low = digits.next().flatten().ok_or(ParseHostIdError)?;
            *byte = (high * 16 + low) as u8;
        }
        if bytes == [0; 16] {
            return Err(ParseHostIdError);
        }
        Ok(HostId(bytes))
    }
}

/// The source of this host's identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The directory of nvme-cli.
    System(PathBuf),
    /// The user's directory.
    User(PathBuf),
    /// A random identity for this process, because the process could not write to the user's
    /// directory.
    Process,
}

/// The name and identifier of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: String,
    /// Host identifier.
    pub id: HostId,
}

impl HostIdentity {
    /// This host's identity. The process reads or generates it once.
    #[must_use]
    pub fn of_this_host() -> &'static HostIdentity {
        &HostIdentity::and_source().0
    }

    /// This host's identity and its source.
    #[must_use]
    pub fn and_source() -> &'static (HostIdentity, Source) {
        static IDENTITY: OnceLock<(HostIdentity, Source)> = OnceLock::new();
        IDENTITY.get_or_init(|| {
            let system = cfg!(unix).then_some(Path::new("/etc/nvme"));
            find(system, &user_directories())
        })
    }

    /// Returns the identity with the given values. For a missing value, uses the value of this
    /// machine. But if only an NQN is given and it contains a UUID, the identifier is this UUID.
    #[must_use]
    pub fn with(nqn: Option<&str>, id: Option<HostId>) -> HostIdentity {
        match (nqn, id) {
            (Some(nqn), Some(id)) => HostIdentity { nqn: nqn.to_owned(), id },
            (None, Some(id)) => HostIdentity { nqn: id.to_nqn(), id },
            (Some(nqn), None) => {
                let id = id_of_nqn(nqn).unwrap_or_else(|| HostIdentity::of_this_host().id);
                HostIdentity { nqn: nqn.to_owned(), id }
            }
            (None, None) => HostIdentity::of_this_host().clone(),
        }
    }
}

/// The UUID in a host NQN, if the NQN was derived from one.
fn id_of_nqn(nqn: &str) -> Option<HostId> {
    nqn.strip_prefix(UUID_NQN_PREFIX)?.parse().ok()
}

/// The directories that may hold this user's identity: `farblock` in the user's configuration
/// directory, and the state directory that systemd gives to a service.
fn user_directories() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // If HOME is not set, `home_dir` reads the user database.
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    let state = variable("STATE_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute());
    directory_of(&variable, home).into_iter().chain(state).collect()
}

fn directory_of(
    variable: &dyn Fn(&str) -> Option<OsString>,
    home: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let base = if cfg!(windows) {
        PathBuf::from(variable("APPDATA")?)
    } else {
        match variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
            Some(path) => path,
            None => variable("HOME").map(PathBuf::from).or_else(home)?.join(".config"),
        }
    };
    Some(base.join("farblock"))
}

fn find(system: Option<&Path>, user: &[PathBuf]) -> (HostIdentity, Source) {
    if let Some((identity, system)) = system.and_then(|it| Some((from_system(it)?, it))) {
        return (identity, Source::System(system.to_owned()));
    }
    let mut kept = Err(io::Error::other("the user has no home directory"));
    for directory in user {
        kept = from_user(directory).map(|id| (id, Source::User(directory.clone())));
        if kept.is_ok() {
            break;
        }
    }
    let found = kept.or_else(|error| {
        tracing::warn!(%error, "cannot store the host identity: this process uses a random one");
        HostId::random().map(|id| (id, Source::Process))
    });
    // Without random numbers, a fixed identity is better than no connection.
    let (id, source) = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "no random numbers: using a fixed host identity");
        (HostId(*b"farblock-no-rand"), Source::Process)
    });
    (HostIdentity { nqn: id.to_nqn(), id }, source)
}

/// Returns the first line that is neither empty nor a comment.
fn first_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))
}

fn from_system(directory: &Path) -> Option<HostIdentity> {
    let line =
        |name| first_line(&fs::read_to_string(directory.join(name)).ok()?).map(str::to_owned);
    let nqn: Option<String> = line("hostnqn").filter(|nqn| name::check(nqn).is_ok());
    let id: Option<HostId> = line("hostid").and_then(|text| text.parse().ok());
    match (nqn, id) {
        (Some(nqn), Some(id)) => Some(HostIdentity { nqn, id }),
        (Some(nqn), None) => id_of_nqn(&nqn).map(|id| HostIdentity { nqn, id }),
        (None, Some(id)) => Some(HostIdentity { nqn: id.to_nqn(), id }),
        (None, None) => None,
    }
}

/// Reads the identifier stored in the directory, or creates one.
fn from_user(directory: &Path) -> io::Result<HostId> {
    const TRIES: u32 = 10;
    let path = directory.join("hostid");
    for _ in 0..TRIES {
        match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => {
                let line = first_line(&text).unwrap_or_default();
                return line.parse().map_err(|error: ParseHostIdError| {
                    io::Error::other(format!("{}: {error}", path.display()))
                });
            }
            // Another process has created the file and is about to write it.
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(directory)?;
                let created = fs::OpenOptions::new().write(true).create_new(true).open(&path);
                match created {
                    Ok(mut file) => {
                        let id = HostId::random()?;
                        file.write_all(format!("{id}\n").as_bytes())?;
                        return Ok(id);
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{} is empty", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory for one test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let name = format!("farblock-identity-{}", HostId::random().unwrap());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn host_identifiers_are_nonzero_uuids() {
        let id: HostId = UUID.parse().unwrap();
        assert_eq!(id.to_string(), UUID);
        assert_eq!(UUID.replace('-', "").parse(), Ok(id));
        assert_eq!(id.to_nqn(), format!("nqn.2014-08.org.nvmexpress:uuid:{UUID}"));
        let zero = "00000000-0000-0000-0000-000000000000";
        for bad in ["", "x", &UUID[1..], &UUID.replace('a', "g"), zero, &UUID.replace('0', "é")] {
            assert_eq!(bad.parse::<HostId>(), Err(ParseHostIdError), "{bad}");
        }
        let random = HostId::random().unwrap();
        assert_eq!((random.0[6] >> 4, random.0[8] >> 6), (4, 2));
        assert_ne!(random, HostId::random().unwrap());
    }

    #[test]
    fn the_files_of_the_system_take_precedence() {
        let (system, user) = (Scratch::new(), Scratch::new());
        fs::write(system.0.join("hostnqn"), "nqn.2014-08.org.example:me\n").unwrap();
        fs::write(system.0.join("hostid"), format!("{UUID}\n")).unwrap();
        let (identity, source) = find(Some(&system.0), std::slice::from_ref(&user.0));
        assert_eq!(source, Source::System(system.0.clone()));
        assert_eq!(identity.nqn, "nqn.2014-08.org.example:me");
        assert_eq!(identity.id.to_string(), UUID);
        assert!(fs::read_dir(&user.0).unwrap().next().is_none(), "nothing was written");
    }

    #[test]
    fn comments_in_identity_files_are_ignored() {
        let (system, user) = (Scratch::new(), Scratch::new());
        let commented =
            |text: &str| format!("# made by hand: {UUID_NQN_PREFIX}\n\n  # so\n{text}\n");
        fs::write(system.0.join("hostnqn"), commented("nqn.2014-08.org.example:me")).unwrap();
        fs::write(system.0.join("hostid"), commented(UUID)).unwrap();
        let (identity, _) = find(Some(&system.0), &[]);
        assert_eq!(identity.nqn, "nqn.2014-08.org.example:me");
        assert_eq!(identity.id.to_string(), UUID);
        for name in ["hostnqn", "hostid"] {
            fs::write(system.0.join(name), "# nothing but this\n").unwrap();
        }
        fs::write(user.0.join("hostid"), commented(UUID)).unwrap();
        let (identity, source) = find(Some(&system.0), std::slice::from_ref(&user.0));
        assert_eq!(
            (identity.id.to_string().as_str(), source),
            (UUID, Source::User(user.0.clone()))
        );
    }

    #[test]
    fn one_of_the_two_system_files_is_enough() {
        let system = Scratch::new();
        fs::write(system.0.join("hostid"), UUID).unwrap();
        assert!(find(Some(&system.0), &[]).0.nqn.ends_with(UUID));
        fs::remove_file(system.0.join("hostid")).unwrap();
        fs::write(system.0.join("hostnqn"), format!("{UUID_NQN_PREFIX}{UUID}")).unwrap();
        assert_eq!(find(Some(&system.0), &[]).0.id.to_string(), UUID);
    }

    #[test]
    fn a_generated_identity_is_kept() {
        let scratch = Scratch::new();
        let directory = scratch.0.join("deeper/farblock");
        let first = find(None, std::slice::from_ref(&directory));
        assert_eq!(find(None, std::slice::from_ref(&directory)), first);
        assert_eq!(first.0.nqn, first.0.id.to_nqn());
        assert_eq!(first.1, Source::User(directory));
    }

    #[cfg(unix)]
    #[test]
    fn a_service_without_home_uses_the_home_of_the_user_database() {
        let service = |_: &str| None;
        let found = directory_of(&service, || Some("/root".into()));
        assert_eq!(found, Some("/root/.config/farblock".into()));
        assert_eq!(directory_of(&service, || None), None);
        let shell = |name: &str| (name == "HOME").then(|| "/home/a".into());
        let found = directory_of(&shell, || panic!("the variable is set"));
        assert_eq!(found, Some("/home/a/.config/farblock".into()));
        assert!(std::env::home_dir().is_some(), "a home folder");
    }

    #[test]
    fn an_identity_is_temporary_if_no_folder_is_writable() {
        let scratch = Scratch::new();
        let file = scratch.0.join("file");
        fs::write(&file, "").unwrap();
        let no_folder = file.join("below");
        let first = find(None, std::slice::from_ref(&no_folder));
        assert_ne!(find(None, &[]).0, first.0);
        assert_eq!(first.1, Source::Process);
        // A service's state directory is the second choice.
        let state = scratch.0.join("state");
        let kept = find(None, &[no_folder.clone(), state.clone()]);
        assert_eq!(find(None, &[no_folder, state.clone()]), kept);
        assert_eq!(kept.1, Source::User(state));
    }

    #[test]
    fn identity_options_take_precedence() {
        let id: HostId = UUID.parse().unwrap();
        let both = HostIdentity::with(Some("nqn.me"), Some(id));
        assert_eq!((both.nqn.as_str(), both.id), ("nqn.me", id));
        assert_eq!(HostIdentity::with(None, Some(id)).nqn, id.to_nqn());
        assert_eq!(HostIdentity::with(Some(&id.to_nqn()), None).id, id);
    }
}
