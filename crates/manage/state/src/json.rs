//! Parses JSON, and refuses objects that contain a name twice.
//!
//! If an object contains a name twice, parsers differ in which value they use (RFC 8259, section
//! 4). So a program that checks a change before farblock receives it may see another value than the
//! one that farblock would apply.

use crate::problem::Problem;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Parses a text.
///
/// # Errors
/// The text is not JSON, or one of its objects contains a name twice.
pub fn parse(text: &[u8]) -> Result<Value, Problem> {
    let Once(value) = serde_json::from_slice(text)
        .map_err(|error| Problem::new("", format!("this is not JSON: {error}")))?;
    Ok(value)
}

/// A value in which no object contains a name twice.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Once)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the field {name:?} occurs twice")));
            }
            let Once(value) = entries.next_value()?;
            all.insert(name, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_with_unique_keys_is_parsed() {
        let text = r#"{"a": [1, -2, 0.5, true, null, "x"], "b": {"a": {}}}"#;
        assert_eq!(parse(text.as_bytes()), Ok(serde_json::from_str(text).expect("JSON")));
    }

    #[test]
    fn duplicate_json_keys_are_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "c": 2, "a": null}}]"#] {
            let refused =
                parse(text.as_bytes()).expect_err("a duplicate name is ambiguous").to_string();
            assert!(refused.contains("the field \"a\" occurs twice"), "{refused}");
        }
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert!(parse(&deep).expect_err("too deep").to_string().contains("recursion"));
        assert!(parse(b"{").is_err() && parse(b"{} x").is_err() && parse(b"\xff").is_err());
    }
}
