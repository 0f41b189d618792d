//! Escapes text for a page.

use std::fmt;

/// Escapes text for HTML and SVG, in an element or in a quoted attribute.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c| matches!(c, '&' | '<' | '>' | '"' | '\'');
        let mut rest = self.0;
        while let Some(at) = rest.find(special) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_html_characters_are_escaped() {
        let text = r#"<b a="x" c='y'>&amp; ü"#;
        let expected = "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;amp; ü";
        assert_eq!(Escaped(text).to_string(), expected);
        assert_eq!(Escaped("").to_string(), "");
        assert_eq!(Escaped("<").to_string(), "&lt;");
    }
}
