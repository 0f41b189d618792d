//! Quotes words in shell commands that farblock advises the user to run.

/// Quotes a text as one shell word. The text may come from a peer and contain any character.
#[must_use]
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-./:_,=@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("nqn.2026-11.org.example:a"), "nqn.2026-11.org.example:a");
        assert_eq!(quoted("a?ns=1"), "'a?ns=1'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
