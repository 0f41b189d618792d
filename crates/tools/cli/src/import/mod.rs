//! `farblock config import`: converts another target's configuration to farblock's.
//!
//! The importer reads the file into a document, checks it, and writes a configuration file. A
//! comment in that file names each setting that the importer could not convert. A host that needed
//! a key before is never admitted without one.

mod nvmet;
mod spdk;
mod text;

use crate::configuration;
use crate::error::{Failure, Result};
use crate::output;
use farblock_state::Document;
use serde_json::Value;
use std::path::Path;

/// Advice where hosts must use TLS.
const KEYS: &str = "name a file with each host's as its tls_key, nobody is let in there before";

/// The converted document, and a sentence for each setting that could not be converted.
#[derive(Default)]
struct Imported {
    document: Document,
    notes: Vec<String>,
}

impl Imported {
    /// Adds a sentence, unless the list has it already.
    fn note(&mut self, sentence: String) {
        if !self.notes.contains(&sentence) {
            self.notes.push(sentence);
        }
    }
}

/// Runs the command.
pub(crate) fn run(path: &Path) -> Result<()> {
    let shown = path.display();
    let wrong = |what: &dyn std::fmt::Display| Failure::usage(format_args!("{shown}: {what}"));
    let json = configuration::read(path)?;
    let json: Value = serde_json::from_str(&json)
        .map_err(|error| wrong(&format!("this is not JSON: {error}")))?;
    let imported = read(&json).map_err(|what| wrong(&what))?;
    imported.document.check().map_err(|problem| wrong(&problem))?;
    let notes = text::notes(&imported);
    notes.iter().for_each(|note| output::note(&format!("not taken over: {note}")));
    output::print_exact(&text::of(&imported))
}

/// Reads either format: SPDK's file lists calls for each SPDK subsystem; nvmetcli's lists ports.
fn read(json: &Value) -> Result<Imported, String> {
    let subsystems = json["subsystems"].as_array();
    let is_spdk = |one: &Value| one["config"].is_array() || one["config"].is_null();
    match subsystems {
        Some(all) if all.iter().any(|one| one["subsystem"].is_string() && is_spdk(one)) => {
            Ok(spdk::read(all))
        }
        Some(_) if json["ports"].is_array() => Ok(nvmet::read(json)),
        _ => Err("this is neither what nvmetcli saves (it has ports and subsystems) nor SPDK's \
                  save_config (it has calls by subsystem)"
            .to_owned()),
    }
}

/// A number, which may be a string in the file.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// A string; `None` if it is empty or missing.
fn said(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// Whether a switch is on: true, 1 or "1".
fn is_on(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| number(value).is_some_and(|number| number != 0))
}
