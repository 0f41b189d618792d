//! What can be wrong with a document by itself.

use crate::document::{Document, Namespace, Subsystem, VERSION};
use farblock_proto::controller::{SubsystemConfig, limits};
use farblock_wire::nqn;
use std::fmt;

/// What is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The field, as its names from the top, dots between them.
    pub field: String,
    /// One sentence.
    pub sentence: String,
}

impl Problem {
    /// What is wrong with `field`.
    pub fn new(field: impl Into<String>, sentence: impl fmt::Display) -> Self {
        Self { field: field.into(), sentence: sentence.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.sentence),
            field => write!(f, "{field}: {}", self.sentence),
        }
    }
}

impl std::error::Error for Problem {}

impl Document {
    /// Reads a document, and checks it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(json: &str) -> Result<Self, Problem> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let document: Self =
            serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
                let field = error.path().to_string();
                let sentence = without_place(&error.inner().to_string());
                Problem::new(if field == "." { String::new() } else { field }, sentence)
            })?;
        deserializer.end().map_err(|error| Problem::new("", error))?;
        document.check()?;
        Ok(document)
    }

    /// The document as JSON, on several lines for people who look at it.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("our own types are JSON");
        text.push('\n');
        text
    }

    /// Whether the document can be meant.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), Problem> {
        if self.version != VERSION {
            let sentence = format!("this farblock knows documents of version {VERSION} only");
            return Err(Problem::new("version", sentence));
        }
        let count = |field: &str, count, most| {
            let sentence = format!("these are more than the {most} that there may be");
            if count > most { Err(Problem::new(field, sentence)) } else { Ok(()) }
        };
        count("listeners", self.listeners.len(), limits::MAX_LISTENERS)?;
        count("referrals", self.referrals.len(), limits::MAX_REFERRALS)?;
        count("subsystems", self.subsystems.len(), limits::MAX_SUBSYSTEMS)?;
        if self.listeners.is_empty() {
            return Err(Problem::new("listeners", "nobody could connect: name one at least"));
        }
        for address in self.listeners.keys().chain(self.referrals.keys()) {
            if address.port() == 0 {
                let sentence = "port 0 is none that a host could be told: choose one";
                return Err(Problem::new(format!("listeners.{address}"), sentence));
            }
        }
        for (name, subsystem) in &self.subsystems {
            check_subsystem(name, subsystem)?;
        }
        Ok(())
    }
}

fn check_subsystem(name: &str, subsystem: &Subsystem) -> Result<(), Problem> {
    let at = |field: &str| format!("subsystems.{name}{field}");
    let nqn_of = |field: String, name: &str| {
        nqn::validate_name(name).map_err(|error| Problem::new(field, error))
    };
    nqn_of(at(""), name)?;
    let mut config = SubsystemConfig::new(name, "1");
    config.check().map_err(|error| Problem::new(at(""), error))?;
    if let Some(serial) = &subsystem.serial {
        config.serial.clone_from(serial);
        config.check().map_err(|error| Problem::new(at(".serial"), error))?;
    }
    if let Some(model) = &subsystem.model {
        config.model.clone_from(model);
        config.check().map_err(|error| Problem::new(at(".model"), error))?;
    }
    if subsystem.allow_any_host && !subsystem.hosts.is_empty() {
        let sentence = "the listed hosts would mean nothing then: empty hosts, or set it to false";
        return Err(Problem::new(at(".allow_any_host"), sentence));
    }
    if subsystem.hosts.len() > limits::MAX_ALLOWED_HOSTS {
        let sentence = format!("no more than {} hosts can be listed", limits::MAX_ALLOWED_HOSTS);
        return Err(Problem::new(at(".hosts"), sentence));
    }
    for host in subsystem.hosts.keys() {
        nqn_of(at(&format!(".hosts.{host}")), host)?;
    }
    for (nsid, namespace) in &subsystem.namespaces {
        let field = at(&format!(".namespaces.{nsid}"));
        if !(1..=limits::MAX_NAMESPACE_ID).contains(nsid) {
            let sentence = format!("use 1 to {}", limits::MAX_NAMESPACE_ID);
            return Err(Problem::new(field, sentence));
        }
        check_namespace(&field, namespace)?;
    }
    Ok(())
}

fn check_namespace(field: &str, namespace: &Namespace) -> Result<(), Problem> {
    let at = |name: &str| format!("{field}.{name}");
    if namespace.path.trim().is_empty() {
        let sentence = "a disk is missing: name a file, or for example mem:1GiB";
        return Err(Problem::new(at("path"), sentence));
    }
    if !matches!(namespace.block_size, 512 | 4096) {
        let sentence = format!("{} is no size for a block: use 512 or 4096", namespace.block_size);
        return Err(Problem::new(at("block_size"), sentence));
    }
    match namespace.size {
        Some(0) => Err(Problem::new(at("size"), "nothing can be stored in 0 bytes")),
        Some(size) if !size.is_multiple_of(u64::from(namespace.block_size)) => {
            let sentence = format!(
                "{size} bytes are no whole number of blocks of {}: use a multiple of it",
                namespace.block_size
            );
            Err(Problem::new(at("size"), sentence))
        }
        Some(size) if i64::try_from(size).is_err() => {
            Err(Problem::new(at("size"), format!("no disk has {size} bytes")))
        }
        _ => Ok(()),
    }
}

/// What serde_json says, without where in the text that is: the field says it.
fn without_place(text: &str) -> String {
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text.to_owned(),
    }
}
