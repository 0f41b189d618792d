//! `farblock config import`: converts another target's configuration to farblock's.
//!
//! The importer reads the file into a document, checks the document, and prints a configuration
//! file. A comment in that file names each setting that the importer cannot convert. A host that
//! needed a key at the other target also needs a key at farblock, or is left out.

#![cfg(unix)]
#![forbid(unsafe_code)]

mod nvmet;
mod spdk;
mod text;

use farblock_program::error::{Failure, Result};
use farblock_program::{configuration, output};
use farblock_state::Document;
use serde_json::Value;
use std::path::Path;

/// The advice for a listener that requires TLS.
const KEYS: &str =
    "set each host's tls_key to a file with its key; hosts without a key cannot connect";

/// The converted document, and a sentence for each setting that the importer could not convert.
#[derive(Default)]
struct Imported {
    document: Document,
    notes: Vec<String>,
}

impl Imported {
    /// Adds a sentence, once.
    fn note(&mut self, sentence: String) {
        if !self.notes.contains(&sentence) {
            self.notes.push(sentence);
        }
    }
}

/// Converts the file, and prints the configuration for farblock.
///
/// # Errors
/// The file cannot be read, or is no configuration of another target.
pub fn run(path: &Path) -> Result<()> {
    let shown = path.display();
    let wrong = |what: &dyn std::fmt::Display| Failure::usage(format_args!("{shown}: {what}"));
    let json = configuration::read(path)?;
    let json: Value = serde_json::from_str(&json)
        .map_err(|error| wrong(&format!("this is not JSON: {error}")))?;
    let imported = read(&json).map_err(|what| wrong(&what))?;
    imported.document.check().map_err(|problem| wrong(&problem))?;
    let notes = text::notes(&imported);
    notes.iter().for_each(|note| output::note(&format!("not imported: {note}")));
    output::print_exact(&text::of(&imported))
}

/// Converts a file of SPDK, which lists calls for each SPDK subsystem, or a file of nvmetcli, which
/// lists ports.
fn read(json: &Value) -> Result<Imported, String> {
    let subsystems = json["subsystems"].as_array();
    let is_spdk = |one: &Value| one["config"].is_array() || one["config"].is_null();
    match subsystems {
        Some(all) if all.iter().any(|one| one["subsystem"].is_string() && is_spdk(one)) => {
            Ok(spdk::read(all))
        }
        Some(_) if json["ports"].is_array() => Ok(nvmet::read(json)),
        _ => Err("this is neither a file of nvmetcli (with ports and subsystems) nor of SPDK's \
                  save_config (with calls by subsystem)"
            .to_owned()),
    }
}

/// Returns a number. The file may contain the number as a string.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Returns a string, without white space around it; `None` if the string is empty or missing.
fn said(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// Whether a switch is on: the value is true, 1 or "1".
fn is_on(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| number(value).is_some_and(|number| number != 0))
}
