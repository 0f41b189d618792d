//! Reads configuration files.

use crate::alike::alike;
use crate::error::{Failure, Result, os};
use farblock_admin_api::{Aside, OpenTimeouts};
use farblock_host::readable::Readable;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The size limit of a configuration file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Checks that a target can read the file a second time when it reloads. A pipe delivers its data
/// only once, and a second read may block forever.
#[cfg(unix)]
pub fn rereadable(path: &Path) -> Result<()> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => Err(Failure::run(format_args!(
            "the configuration {} cannot be read again, because it is not a regular file: start \
             the target with a regular file",
            path.display()
        ))),
        // Accept a regular file, and also a missing one: reading it reports the error.
        _ => Ok(()),
    }
}

/// Reads a configuration file. Does not rely on the size in its metadata: a device reports none,
/// and may be endless.
pub fn read(path: &Path) -> Result<String> {
    let cannot = |error: &io::Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => ": name a file that exists",
            _ => "",
        };
        let (path, error) = (path.display(), os(error));
        Failure::run(format_args!("cannot read the configuration {path}: {error}{hint}"))
    };
    let bytes = bytes(path).map_err(Failure::Run)?.map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::run(format_args!(
            "the configuration {} has more than the allowed {MAX_BYTES} bytes: name another file",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|&&byte| byte == b'\n').count() + 1;
        Failure::usage(format_args!("{}:{line}: this is not text (UTF-8)", path.display()))
    })
}

/// Reads the file up to one byte beyond [`MAX_BYTES`]. Reading a regular file has a time limit,
/// because a network share may hang. Reading a pipe has none, because a person may be typing.
fn bytes(path: &Path) -> Result<io::Result<Vec<u8>>, String> {
    let all = |file: Readable| {
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let (patience, what, path) =
        (OpenTimeouts::default(), path.display().to_string(), path.to_owned());
    let opened = patience.with(Aside::Configuration, &what, move || Ok(Readable::open(&path)))?;
    let file = match opened {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    match file.metadata() {
        Ok(found) if found.is_file() => {
            patience.with(Aside::Configuration, &what, move || Ok(all(file)))
        }
        _ => Ok(all(file)),
    }
}

/// Rewrites an error of the TOML and serde crates for the file's author, without names of Rust
/// types. `allowed` describes the valid values if their type does not say enough.
pub fn in_words(message: &str, allowed: Option<&str>) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let rest = |start: &str| line.strip_prefix(start);
    if let Some((found, wanted)) = rest("invalid type: ")
        .or_else(|| rest("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "))
    {
        let wanted = allowed.unwrap_or_else(|| wanted_in_words(wanted));
        return format!("this is {}: write {wanted}", found_in_words(found));
    }
    if rest("UUID parsing failed").is_some() {
        return "this is not a UUID".to_owned();
    }
    let others = |rest: &str| match rest.split_once(", expected ") {
        Some((found, known)) => {
            // Each known word is in backquotes.
            let words = known.split('`').skip(1).step_by(2);
            let meant = alike(found.trim_matches('`'), words);
            let meant = meant.map_or(String::new(), |it| format!(" (did you mean `{it}`?)"));
            format!("{found}{meant}: use {known}")
        }
        None => rest.to_owned(),
    };
    if let Some(rest) = rest("unknown field ") {
        return format!("there is no key {}", others(rest));
    }
    if let Some(rest) = rest("unknown variant ") {
        return format!("there is no {}", others(rest));
    }
    if let Some(key) = rest("missing field ") {
        return format!("the key {key} is missing");
    }
    line
}

/// Rewrites serde's description of a value, such as `integer `7``, `string "x"` or `sequence`.
fn found_in_words(found: &str) -> String {
    let plain = |value: &str| {
        let value = value.trim_end_matches(" as i128").trim_end_matches(" as u128");
        value.trim_matches('`').to_owned()
    };
    match found.split_once(' ') {
        Some(("string", text)) => format!("the text {text}"),
        Some(("boolean", value)) => plain(value),
        Some(("integer", value)) => format!("the number {}", plain(value)),
        Some(("floating", value)) => format!("the number {}", plain(&value["point ".len()..])),
        None if found == "sequence" => "a list".to_owned(),
        None if found == "map" => "a table".to_owned(),
        _ => found.to_owned(),
    }
}

fn wanted_in_words(wanted: &str) -> &str {
    match wanted {
        "a boolean" => "true or false",
        "a string" => "a text in quotes",
        "a sequence" => "a list in brackets",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number from 0 to 18446744073709551615",
        "a map" => "a table",
        structure if structure.starts_with("struct ") => "a table",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_errors_name_no_rust_types() {
        for (said, words) in [
            (
                "invalid type: string \"yes\", expected a boolean",
                "this is the text \"yes\": write true or false",
            ),
            (
                "invalid type: integer `7`, expected a string",
                "this is the number 7: write a text in quotes",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "this is true: write a text in quotes",
            ),
            (
                "invalid type: floating point `1.5`, expected u32",
                "this is the number 1.5: write a whole number from 0 to 4294967295",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "this is the number -1: write a whole number from 0 to 4294967295",
            ),
            (
                "invalid type: integer `9223372036854775808` as i128, expected u16",
                "this is the number 9223372036854775808: write a whole number from 0 to 65535",
            ),
            ("invalid type: sequence, expected a string", "this is a list: write a text in quotes"),
            ("invalid type: map, expected a sequence", "this is a table: write a list in brackets"),
            (
                "unknown field `x`, expected one of `a`, `b`",
                "there is no key `x`: use one of `a`, `b`",
            ),
            (
                "unknown field `urll`, expected one of `urls`, `as`",
                "there is no key `urll` (did you mean `urls`?): use one of `urls`, `as`",
            ),
            ("unknown variant `x`, expected `a` or `b`", "there is no `x`: use `a` or `b`"),
            ("missing field `nqn`", "the key `nqn` is missing"),
            ("expected `=`", "expected `=`"),
            ("UUID parsing failed: invalid character: found `x` at 0", "this is not a UUID"),
            (
                "invalid value: integer `-3`, expected u64",
                "this is the number -3: write a whole number from 0 to 18446744073709551615",
            ),
        ] {
            assert_eq!(in_words(said, None), words);
        }
        let said = "invalid type: integer `7`, expected a string";
        assert_eq!(in_words(said, Some("512 or 4096")), "this is the number 7: write 512 or 4096");
    }

    #[test]
    fn a_binary_or_endless_configuration_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        std::fs::write(&path, b"a = 1\n\xff").unwrap();
        let Err(Failure::Usage(said)) = read(&path) else {
            panic!("a binary file is no configuration")
        };
        assert!(said.contains("a.toml:2: this is not text"), "{said}");
        #[cfg(unix)]
        {
            let Err(Failure::Run(said)) = read(Path::new("/dev/zero")) else {
                panic!("an endless file was read")
            };
            assert!(said.contains("name another file"), "{said}");
        }
    }
}
