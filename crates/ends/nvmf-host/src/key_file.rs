//! Reads key files. Each line has one key (`DHHC-1:…:` or `NVMeTLSkey-1:…:`), and only the owner
//! may read the file.

pub use crate::guard::guard_by;

use crate::guard::guard;
use crate::readable::Readable;
use crate::system_error::words;
use farblock_secure::{Secret, TlsKey};
use std::fmt::Display;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The maximum size of a key file in bytes: enough for two keys and comments.
const FILE_BYTES_MAX: u64 = 4096;
/// A file has at most this many keys: two, while a new key replaces an old one.
const SECRETS_MAX: usize = 2;

const SECRET_PREFIX: &str = "DHHC-1:";

const TLS_PREFIX: &str = "NVMeTLSkey-1:";

/// The prefix of the name of a systemd credential (`LoadCredential=`).
pub const CREDENTIAL: &str = "credential:";

/// The prefix of a name for TLS keys in the kernel's keyrings. An identity or a key's serial number
/// follows. A name without either stands for all keys of the host and subsystem.
pub const KEYRING: &str = "keyring:";

/// Whether a name is the path of a file.
#[must_use]
pub fn is_file(path: &Path) -> bool {
    let name = path.to_string_lossy();
    !name.starts_with(CREDENTIAL) && !name.starts_with(KEYRING)
}

/// Whether a name stands for keys in the kernel's keyrings.
#[must_use]
pub fn is_keyring(path: &Path) -> bool {
    path.to_string_lossy().starts_with(KEYRING)
}

/// Reads the secrets of a file or of `credential:NAME`. The file has one secret. While a new secret
/// replaces an old one, it has both, the new one first. Ignores empty lines and lines that begin
/// with `#`.
///
/// # Errors
/// Returns one sentence with the cause and the remedy. It never contains a part of a secret.
pub fn read(path: &Path) -> Result<Vec<Secret>, String> {
    parse(path, "secret", "farblock keys new", Secret::parse)
}

/// Reads the TLS keys of a file or of `credential:NAME`, like [`read`].
///
/// # Errors
/// Fails for the same reasons as [`read`].
pub fn read_tls(path: &Path) -> Result<Vec<TlsKey>, String> {
    parse(path, "key for TLS", "farblock keys new --tls", TlsKey::parse)
}

fn parse<K, E: Display>(
    path: &Path,
    what: &str,
    command: &str,
    parse: impl Fn(&str) -> Result<K, E>,
) -> Result<Vec<K>, String> {
    let shown = path.display();
    let text = text_with(path, has_key)?;
    let lines = text.lines().map(str::trim).enumerate();
    let keys: Vec<K> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            let place = |error| {
                let line = index + 1;
                format!(
                    "{shown}, line {line}, is not a {what}: {error}; create one with `{command}`"
                )
            };
            parse(line).map_err(place)
        })
        .collect::<Result<_, _>>()?;
    match keys.len() {
        0 => Err(format!("{shown} has no {what} in it; create one with `{command}`")),
        count if count > SECRETS_MAX => {
            Err(format!("{shown} has {count} keys: keep only the new one and the previous one"))
        }
        _ => Ok(keys),
    }
}

/// The permission bits that a key file may have.
const OWNER: u32 = 0o700;
/// The permission bits that a credential may have. systemd gives a service's user access through an
/// access control list, which appears in the bits of the group. Other users cannot enter the
/// directory.
const GROUP_AND_OWNER: u32 = 0o770;

/// Returns the path of a systemd credential of this service.
fn credential(name: &str) -> Result<PathBuf, String> {
    if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
        return Err(format!("{CREDENTIAL}{name} is not a credential: write only its name"));
    }
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").ok_or_else(|| {
        format!(
            "there is no {CREDENTIAL}{name}: systemd gave this process no credentials (use \
             LoadCredential= in its unit), so use a file instead"
        )
    })?;
    Ok(PathBuf::from(folder).join(name))
}

/// Reads the text of a file that only its owner can read, or of a credential.
///
/// # Errors
/// Fails for the same reasons as [`read`].
pub fn text(path: &Path) -> Result<Zeroizing<String>, String> {
    text_with(path, |_| true)
}

fn has_key(text: &str) -> bool {
    text.contains(SECRET_PREFIX) || text.contains(TLS_PREFIX)
}

/// Reads a text like [`text`]. `is_secret` tells whether a text is secret. If so, other users must
/// have no access to its file.
fn text_with(path: &Path, is_secret: fn(&str) -> bool) -> Result<Zeroizing<String>, String> {
    // Other users can read command lines and configurations, so the error must not repeat the key.
    if has_key(&path.to_string_lossy()) {
        return Err(
            "this is a key itself, which other users may have read: create a new key, and give \
             the name of its file"
                .to_owned(),
        );
    }
    if path.to_str().is_some_and(|text| text.starts_with(KEYRING)) {
        let shown = path.display();
        return Err(format!("{shown}: a keyring has only TLS keys: use a file"));
    }
    if let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) {
        return text_open(&credential(name)?, GROUP_AND_OWNER, is_secret);
    }
    text_open(path, OWNER, is_secret)
}

fn text_open(
    path: &Path,
    allowed: u32,
    is_secret: fn(&str) -> bool,
) -> Result<Zeroizing<String>, String> {
    let shown = path.display();
    let cannot = |error: &io::Error| format!("cannot read the key file {shown}: {}", words(error));
    let file = Readable::open(path).map_err(|error| cannot(&error))?;
    let readers = check_readers(&file, path, allowed).map_err(|error| cannot(&error))?;
    guard();
    let mut text = Zeroizing::new(String::new());
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| cannot(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is not a key file: it has more than {FILE_BYTES_MAX} bytes"));
    }
    match readers {
        Err(_) if !is_secret(&text) => Err(format!(
            "{shown} is not a key file: no line in it begins with {SECRET_PREFIX} or {TLS_PREFIX}; \
             give the name of the key's file"
        )),
        readers => readers.map(|()| text),
    }
}

/// Returns an error for a file that other users can read.
#[cfg(unix)]
fn check_readers(file: &Readable, path: &Path, allowed: u32) -> io::Result<Result<(), String>> {
    use std::os::unix::fs::MetadataExt;
    const PERMISSIONS: u32 = 0o777;
    let mode = file.metadata()?.mode() & PERMISSIONS;
    Ok(if mode & !allowed == 0 {
        Ok(())
    } else {
        let path = path.display();
        Err(format!(
            "other users have access to {path} (mode {mode:04o}): run chmod 600 {path}, and \
             replace the keys in it if these users may have read them"
        ))
    })
}

/// Accepts every file: on this system the access control list of the directory determines who can
/// read it.
#[cfg(not(unix))]
fn check_readers(_: &Readable, _: &Path, _: u32) -> io::Result<Result<(), String>> {
    Ok(Ok(()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    const ONE: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn file(name: &str, mode: u32, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farblock-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut options = File::options();
        let mut file = options.create_new(true).write(true).mode(mode).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        path
    }

    #[test]
    fn a_key_file_may_have_two_secrets_and_comments() {
        let path = file("good", 0o600, &format!("# the new one\n{ONE}\n\n  {ONE}\r\n"));
        assert_eq!(read(&path).unwrap(), vec![Secret::parse(ONE).unwrap(); 2]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn secrets_and_tls_keys_are_not_interchangeable() {
        const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        let path = file("tls", 0o600, &format!("{KEY}\n"));
        assert_eq!(read_tls(&path).unwrap(), vec![TlsKey::parse(KEY).unwrap()]);
        let error = read(&path).unwrap_err();
        assert!(error.contains("not a secret") && !error.contains("AAEC"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let path = file("no-tls", 0o600, ONE);
        let error = read_tls(&path).unwrap_err();
        assert!(error.contains("keys new --tls") && !error.contains("AAEC"), "{error}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn unsafe_and_invalid_key_files_are_refused() {
        for (name, mode, text, sentence) in [
            ("group", 0o640, ONE, "chmod 600"),
            ("others", 0o604, ONE, "mode 0604"),
            ("foreign", 0o644, "root:x:0:0\n", "is not a key file: no line in it begins with"),
            ("empty", 0o600, "# nothing\n", "has no secret in it"),
            ("odd", 0o400, "secret\n", "line 1, is not a secret"),
            ("many", 0o600, &format!("{ONE}\n{ONE}\n{ONE}"), "has 3 keys"),
            ("long", 0o600, &"#".repeat(5000), "more than 4096 bytes"),
        ] {
            let path = file(name, mode, text);
            let error = read(&path).unwrap_err();
            assert!(error.contains(sentence) && !error.contains("AAEC"), "{name}: {error}");
            std::fs::remove_file(path).unwrap();
        }
        for (name, sentence) in [("", "only its name"), ("../x", "only its name"), ("x", "gave")] {
            let error = read(Path::new(&format!("credential:{name}"))).unwrap_err();
            assert!(error.contains(sentence), "{error}");
        }
        for key in [ONE, "NVMeTLSkey-1:00:AAEC:"] {
            let error = read(&Path::new("/etc").join(key)).unwrap_err();
            assert!(error.contains("a key itself") && !error.contains("AAEC"), "{error}");
        }
        let group = file("credential", 0o440, ONE);
        assert!(text_open(&group, GROUP_AND_OWNER, has_key).is_ok());
        std::fs::remove_file(group).unwrap();
        let missing = read(Path::new("/nonexistent/key")).unwrap_err();
        assert!(missing.contains("cannot read the key file"), "{missing}");
    }
}
