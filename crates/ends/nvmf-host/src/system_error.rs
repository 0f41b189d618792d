//! Texts of operating system errors.

use std::io;

/// Returns the text of a system error, without the number that the standard library adds.
pub(crate) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error ").map_or(text.as_str(), |(words, _)| words).to_owned()
}
