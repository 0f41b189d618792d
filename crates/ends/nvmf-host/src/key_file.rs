//! Secrets in files: one `DHHC-1:…:` a line, readable by their owner alone.

use farblock_secure::Secret;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use zeroize::Zeroizing;

/// Bytes of the longest file that is read: some lines of secrets and of comments.
const FILE_BYTES_MAX: u64 = 4096;
/// Secrets in one file: while one takes another's place there are two.
const SECRETS_MAX: usize = 2;

/// Reads the secrets of a file: one, or while one takes another's place the new one and then the
/// old one. Empty lines, and those that begin with `#`, are left out.
///
/// # Errors
/// One sentence that says what is wrong and what to do; never with a part of a secret.
pub fn read(path: &Path) -> Result<Vec<Secret>, String> {
    let shown = path.display();
    let cannot = |error: &io::Error| {
        format!("cannot read the key file {shown}: {}", crate::error::words(error))
    };
    let file = File::open(path).map_err(|error| cannot(&error))?;
    check_owner_only(&file, path).map_err(|error| cannot(&error))??;
    let mut text = Zeroizing::new(String::new());
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| cannot(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown} is no key file: it has more than {FILE_BYTES_MAX} bytes"));
    }
    let lines = text.lines().map(str::trim).enumerate();
    let secrets: Vec<Secret> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| {
            let place = |error| {
                format!(
                    "{shown}, line {}, is no secret: {error}; `farblock keys new` makes one",
                    index + 1
                )
            };
            Secret::parse(line).map_err(place)
        })
        .collect::<Result<_, _>>()?;
    match secrets.len() {
        0 => Err(format!("{shown} has no secret in it; `farblock keys new` makes one")),
        count if count > SECRETS_MAX => {
            Err(format!("{shown} has {count} secrets: keep the new one and the one before it"))
        }
        _ => Ok(secrets),
    }
}

/// Others who can read a secret have it.
#[cfg(unix)]
fn check_owner_only(file: &File, path: &Path) -> io::Result<Result<(), String>> {
    use std::os::unix::fs::MetadataExt;
    const OTHERS: u32 = 0o077;
    const PERMISSIONS: u32 = 0o777;
    let mode = file.metadata()?.mode() & PERMISSIONS;
    Ok(if mode & OTHERS == 0 {
        Ok(())
    } else {
        let path = path.display();
        Err(format!(
            "the key file {path} is open to others than its owner (mode {mode:04o}): \
             chmod 600 {path}"
        ))
    })
}

/// Elsewhere a folder's access control list says who reads what is in it.
#[cfg(not(unix))]
fn check_owner_only(_file: &File, _path: &Path) -> io::Result<Result<(), String>> {
    Ok(Ok(()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::PathBuf;

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
    fn secrets_and_comments() {
        let path = file("good", 0o600, &format!("# the new one\n{ONE}\n\n  {ONE}\r\n"));
        assert_eq!(read(&path).unwrap(), vec![Secret::parse(ONE).unwrap(); 2]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (name, mode, text, sentence) in [
            ("group", 0o640, ONE, "chmod 600"),
            ("others", 0o604, ONE, "mode 0604"),
            ("empty", 0o600, "# nothing\n", "has no secret in it"),
            ("odd", 0o400, "secret\n", "line 1, is no secret"),
            ("many", 0o600, &format!("{ONE}\n{ONE}\n{ONE}"), "has 3 secrets"),
            ("long", 0o600, &"#".repeat(5000), "more than 4096 bytes"),
        ] {
            let path = file(name, mode, text);
            let error = read(&path).unwrap_err();
            assert!(error.contains(sentence) && !error.contains("AAEC"), "{name}: {error}");
            std::fs::remove_file(path).unwrap();
        }
        let missing = read(Path::new("/nonexistent/key")).unwrap_err();
        assert!(missing.contains("cannot read the key file"), "{missing}");
    }
}
