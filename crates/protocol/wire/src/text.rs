//! Makes text from a peer (names, serial numbers, addresses) safe to show. The text must not move a
//! terminal's cursor, start a new line of a log, or reverse the text direction to imitate another
//! line.

use core::fmt::{self, Write};

/// Whether a character is visible and safe to print. Returns false for control characters, line and
/// paragraph separators, and characters that change the text direction.
#[must_use]
pub fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'))
}

/// Shows text, with `\u{…}` for every character that is not [plain](is_plain).
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a>(pub &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_plain(c) {
                f.write_char(c)?;
            } else {
                write!(f, "{}", c.escape_unicode())?;
            }
        }
        Ok(())
    }
}

/// Shows JSON text, with `\uXXXX` for every character in its strings that is not plain. JSON
/// readers decode these escapes.
#[derive(Clone, Copy, Debug)]
pub struct PlainJson<'a>(pub &'a str);

impl fmt::Display for PlainJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            // A newline is never inside a string here: in serialized JSON, strings contain no ASCII
            // control characters except DEL.
            if is_plain(c) || c == '\n' {
                f.write_char(c)?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(f, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn deceptive_characters_are_escaped() {
        assert_eq!(
            Plain("nqn.2026-11.org.ex:größe-磁盘").to_string(),
            "nqn.2026-11.org.ex:größe-磁盘"
        );
        assert_eq!(
            Plain("a\u{202e}b\u{2028}c\u{1b}[2J\n").to_string(),
            r"a\u{202e}b\u{2028}c\u{1b}[2J\u{a}"
        );
        for c in ['\u{200b}', '\u{2066}', '\u{2069}', '\u{feff}', '\u{85}', '\u{7f}', '\u{2029}'] {
            assert!(!is_plain(c), "{c:?}");
        }
    }

    #[test]
    fn deceptive_characters_in_json_are_escaped_as_json() {
        assert_eq!(
            PlainJson("{\n\"größe\": \"a\u{7f}b\u{202e}c\u{e0041}\"}").to_string(),
            "{\n\"größe\": \"a\\u007fb\\u202ec\\udb40\\udc41\"}"
        );
    }
}
