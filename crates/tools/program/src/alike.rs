//! Suggests a known word for a misspelled one.

/// Returns the word most similar to `typed`, if one is similar enough.
pub fn alike<'a>(typed: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = plain(typed);
    // Accept up to one edit for every three letters, and one edit in a short word. A word whose
    // letters all differ is never similar.
    let most = (typed.len() / 3).max(1);
    let distances = words.into_iter().map(|word| (distance(&typed, &plain(word)), word));
    let (_, word) =
        distances.filter(|(distance, _)| *distance <= most && *distance < typed.len()).min()?;
    Some(word)
}

/// Normalizes case and hyphens, so that they do not count as differences.
fn plain(word: &str) -> Vec<char> {
    word.chars().map(|it| if it == '_' { '-' } else { it.to_ascii_lowercase() }).collect()
}

/// Returns the edit distance: the number of letters to insert, delete, replace, or swap with their
/// neighbour.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for (index, row) in rows.iter_mut().enumerate() {
        row[0] = index;
    }
    rows[0] = (0..=other.len()).collect();
    for i in 1..=one.len() {
        for j in 1..=other.len() {
            let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            let is_exchanged =
                i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
            if is_exchanged {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_gets_the_nearest_known_word() {
        let words = ["urls", "iopolicy", "ctrl-loss-timeout", "keep-alive"];
        for (typed, meant) in [
            ("url", Some("urls")),
            ("iopolcy", Some("iopolicy")),
            ("io-policy", Some("iopolicy")),
            ("ctrl_loss_tiemout", Some("ctrl-loss-timeout")),
            ("ctrl-loss-tmo", Some("ctrl-loss-timeout")),
            ("KeepAlive", Some("keep-alive")),
            ("delay", None),
            ("", None),
        ] {
            assert_eq!(alike(typed, words), meant, "{typed}");
        }
    }
}
