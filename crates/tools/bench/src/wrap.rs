//! Wraps lines to a maximum width.

/// Wraps a line at spaces, and indents the further lines. A word that is longer than a line stays
/// whole, since the reader may need to copy it.
#[must_use]
pub fn wrap(line: &str, indent: usize, columns: usize) -> String {
    let mut wrapped = String::new();
    let mut width = 0;
    for word in line.split_inclusive(' ') {
        let wide = word.trim_end().chars().count();
        if width + wide > columns && width > indent {
            wrapped.truncate(wrapped.trim_end().len());
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(indent));
            width = indent;
        }
        wrapped.push_str(word);
        width += word.chars().count();
    }
    wrapped
}
