//! Log lines for programs: JSON, and the journal's format.

use farblock_wire::text::Plain;
use serde_json::{Map, Value};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes one JSON object per line: `time`, `level`, `target` (the module), `message`, and the
/// event's other fields by name. Each line is printable ASCII, even if it contains text of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let mut fields = Fields(Map::new());
        fields.text("time", time);
        fields.text("level", metadata.level().to_string().to_lowercase());
        fields.text("target", metadata.target().to_owned());
        event.record(&mut fields);
        writeln!(writer, "{}", ascii(&Value::Object(fields.0).to_string()))
    }
}

/// Escapes all characters except printable ASCII, because a terminal could interpret them.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => text.push(character),
            // In JSON, only strings can contain such characters.
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &str, text: String) {
        self.0.insert(name.to_owned(), Value::String(text));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Writes lines for systemd's journal. Each line starts with its priority (sd-daemon(3)), and has
/// no time, because the journal adds the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Journal {
    /// Whether each line names the module.
    pub(super) with_target: bool,
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        if self.with_target {
            write!(writer, "{}: ", Plain(event.metadata().target()))?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Returns the priority of a log level, as a number of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::sync::Mutex;

    /// Formats one event that contains unusual characters, as a peer could send them.
    fn written<E>(format: E) -> String
    where
        E: FormatEvent<
                tracing_subscriber::Registry,
                tracing_subscriber::fmt::format::DefaultFields,
            > + Send
            + Sync
            + 'static,
    {
        use tracing_subscriber::prelude::*;
        let mut file = tempfile::tempfile().expect("the temporary file is created");
        let writer = Mutex::new(file.try_clone().expect("the descriptor is duplicated"));
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(false)
            .event_format(format);
        let logger = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(logger, || {
            tracing::warn!(host = %"a\u{202e}\u{9b}2J\n\"\u{1f600}", count = 7, "it {}", "went");
        });
        let mut text = String::new();
        file.rewind().expect("the file is seekable");
        file.read_to_string(&mut text).expect("the file is readable");
        text
    }

    #[test]
    fn a_json_log_line_is_ascii_and_has_all_fields() {
        let text = written(Json);
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text}");
        let [line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let value: Value = serde_json::from_str(line).expect("the text is JSON");
        assert_eq!(value["host"], "a\u{202e}\u{9b}2J\n\"\u{1f600}");
        assert_eq!((&value["level"], &value["message"]), (&"warn".into(), &"it went".into()));
        assert_eq!(value["count"], 7);
        assert!(value["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{value}");
        assert!(value["target"].as_str().is_some_and(|it| it.starts_with("farblock")), "{value}");
    }

    #[test]
    fn a_journal_line_begins_with_its_priority() {
        assert!(written(Journal { with_target: false }).starts_with("<4>it went"));
        assert!(written(Journal { with_target: true }).starts_with("<4>farblock::"));
        let order = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG].map(priority);
        assert!(order.is_sorted(), "{order:?}");
    }
}
