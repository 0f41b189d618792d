//! Formats errors about a configuration file: file, line, key, problem, and an example.

use crate::configuration::in_words;
use farblock_proto::controller::limits;
use farblock_state::{MAX_BURST_MS, MAX_WEIGHT};
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// An example line for each key, which error messages show.
const EXAMPLES: [(&str, &str); 37] = [
    ("engine", "engine = \"auto\""),
    ("spin", "spin = \"balanced\""),
    ("congestion", "congestion = \"cubic\""),
    ("poll", "poll = true"),
    ("cores", "cores = \"0-3,6\""),
    ("memory", "memory = \"64MiB\""),
    ("listeners", "listeners = [\"127.0.0.1:4420\"]"),
    ("tls", "tls = \"required\""),
    ("referrals", "referrals = [\"192.0.2.7:8009\"]"),
    ("subsystems", "[[subsystems]]"),
    ("nqn", "nqn = \"nqn.2026-11.org.example:disks\""),
    ("serial", "serial = \"FB0001\""),
    ("model", "model = \"farblock\""),
    ("allow_any_host", "allow_any_host = true"),
    ("allowed_hosts", "allowed_hosts = [\"nqn.2014-08.org.nvmexpress:uuid:...\"]"),
    ("namespaces", "[[subsystems.namespaces]]"),
    ("path", "path = \"disk.img\""),
    ("nsid", "nsid = 1"),
    ("block_size", "block_size = 4096"),
    ("uuid", "uuid = \"01234567-89ab-cdef-0123-456789abcdef\""),
    ("min_cntlid", "min_cntlid = 1"),
    ("max_cntlid", "max_cntlid = 1000"),
    ("eui64", "eui64 = \"0123456789abcdef\""),
    ("nguid", "nguid = \"0123456789abcdef0123456789abcdef\""),
    ("visible_to", "visible_to = [\"nqn.2014-08.org.nvmexpress:uuid:...\"]"),
    ("limits", "limits = { iops = 5000, bytes = 209715200 }"),
    ("name", "name = \"gold\""),
    ("etcd", "etcd = [\"http://10.0.0.1:2379\"]"),
    ("member", "member = \"machine1\""),
    ("advertise", "advertise = [\"machine1.example.org:4420\"]"),
    ("disk_flight", "disk_flight = \"5s\""),
    ("etcd_user", "etcd_user = \"farblock\""),
    ("etcd_password_file", "etcd_password_file = \"etcd.password\""),
    ("etcd_ca", "etcd_ca = \"etcd-ca.pem\""),
    ("etcd_cert", "etcd_cert = \"member.pem\""),
    ("etcd_key", "etcd_key = \"member.key\""),
    ("ana_groups", "ana_groups = { 5 = \"inaccessible\" }"),
];

/// The text of a configuration file, to find the line of an error.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Formats an error about the value of `key` at `span`.
    pub(super) fn error(&self, span: Range<usize>, key: &str, what: impl fmt::Display) -> String {
        let line = self.line_of(span.start);
        format!("{}:{line}: {key}: {what}", self.path.display())
    }

    /// Formats an error, with an example of a valid value.
    pub(super) fn error_with_example(
        &self,
        span: Range<usize>,
        key: &str,
        what: impl fmt::Display,
    ) -> String {
        let text = self.error(span, key, what);
        let last = key.rsplit('.').next().unwrap_or(key);
        let name = last.split('[').next().unwrap_or(last);
        match EXAMPLES.iter().find(|(known, _)| *known == name) {
            Some((_, example)) => format!("{text}; for example: {example}"),
            None => text,
        }
    }

    pub(super) fn syntax_error(&self, error: &toml::de::Error) -> String {
        let what = in_words(error.message(), None);
        let Some(span) = error.span() else {
            return format!("{}: {what}", self.path.display());
        };
        let at = span.start.min(self.text.len());
        let start = self.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        let key = line.split('=').next().unwrap_or("").trim();
        let column = self.text[start..at].chars().count() + 1;
        let place = format!("{}:{}:{column}", self.path.display(), self.line_of(at));
        let key = if line.contains('=') && !key.is_empty() { key } else { line.trim() };
        match key {
            "" => format!("{place}: this is not TOML: {what}"),
            key => format!("{place}: {key}: this is not TOML: {what}"),
        }
    }

    /// Formats the error for a value of the wrong type, or for an unknown or missing key.
    pub(super) fn schema_error(
        &self,
        error: &serde_path_to_error::Error<toml::de::Error>,
    ) -> String {
        let span = error.inner().span().unwrap_or(0..0);
        let message = error.inner().message();
        let key = key_path(error.path());
        let what = in_words(message, allowed(&key).as_deref());
        match key.as_str() {
            "" => self.error(span, "the top level", what),
            key if message.starts_with("unknown field") || message.starts_with("missing field") => {
                self.error(span, key, what)
            }
            key => self.error_with_example(span, key, what),
        }
    }

    fn line_of(&self, at: usize) -> usize {
        self.text[..at.min(self.text.len())].matches('\n').count() + 1
    }
}

/// Formats a path of keys, without internal segments of the TOML crate.
fn key_path(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => text.push_str(&format!("[{index}]")),
            Segment::Map { key } if key.starts_with("$__") => {}
            Segment::Map { key } => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

/// Returns the valid range of a key's number, if its type alone does not imply the range.
fn allowed(key: &str) -> Option<String> {
    match key.rsplit('.').next() {
        Some("nsid") => Some(format!("a whole number from 1 to {}", limits::MAX_NAMESPACE_ID)),
        Some("block_size" | "block-size") => Some("512 or 4096".to_owned()),
        Some("ana_group" | "ana-group") => {
            Some(format!("a whole number from 1 to {}", limits::MAX_ANA_GROUPS))
        }
        Some("burst_ms") => Some(format!("milliseconds from 1 to {MAX_BURST_MS}")),
        Some("weight") => Some(format!("a whole number from 1 to {MAX_WEIGHT}")),
        Some("iops" | "read_iops" | "write_iops" | "bytes" | "read_bytes" | "write_bytes") => {
            Some("a whole number of at least 1".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_configuration_shows_every_key() {
        let text = include_str!("../../cli/examples/farblock.toml");
        for (key, _) in super::EXAMPLES.iter().chain(&[("read_only", "")]) {
            let known = |line: &str| {
                let line = line.trim_start_matches("# ");
                line.starts_with(&format!("{key} = ")) || line.ends_with(&format!("{key}]]"))
            };
            assert!(text.lines().any(known), "{key}");
        }
    }
}
