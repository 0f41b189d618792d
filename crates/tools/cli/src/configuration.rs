//! The text of a file that says what to do.

use crate::error::{Failure, Result, os};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The most bytes: far more than anybody writes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads it. What a file's size says is not asked: a device has none, and no end either.
pub(crate) fn read(path: &Path) -> Result<String> {
    let cannot = |error: &std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => ": name a file that exists",
            _ => "",
        };
        let (path, error) = (path.display(), os(error));
        Failure::run(format_args!("cannot read the configuration {path}: {error}{hint}"))
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| cannot(&error))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::run(format_args!(
            "the configuration {} has more than {MAX_BYTES} bytes, which none needs: name another \
             file",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|&&byte| byte == b'\n').count() + 1;
        Failure::usage(format_args!("{}:{line}: this is not text (UTF-8)", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, b"a = 1\n\xff").unwrap();
        let Err(Failure::Usage(said)) = read(&path) else { panic!("it is none") };
        assert!(said.contains("a.toml:2: this is not text"), "{said}");
        #[cfg(unix)]
        {
            let Err(Failure::Run(said)) = read(Path::new("/dev/zero")) else { panic!("no end") };
            assert!(said.contains("name another file"), "{said}");
        }
    }
}
