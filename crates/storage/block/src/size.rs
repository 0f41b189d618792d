//! Sizes in text form: `4096`, `64KiB`, `1G`.

use std::fmt;

/// The units in bytes, largest first. All units are binary, as usual for the sizes of disks and
/// files.
const UNITS: [(&str, u64); 6] = [
    ("EiB", 1 << 60),
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

/// Parses a size: a whole number with an optional unit. The units are `KiB`, `MiB`, `GiB`, `TiB`,
/// `PiB` and `EiB`, or only their first letters, and `B`. Without a unit, the number counts bytes.
/// Units may be in upper or lower case.
///
/// Refuses `KB`, `MB` and so on, which are ambiguous: for some people `KB` means 1000 bytes, for
/// others 1024 bytes.
///
/// ```
/// use farblock_block::size;
/// assert_eq!(size::parse("64KiB"), Ok(65536));
/// assert_eq!(size::parse("1G"), Ok(1 << 30));
/// assert_eq!(size::parse("1GB").unwrap_err().to_string(),
///     "\"1GB\" is ambiguous: write 1GiB (1024-based), or the number of bytes");
/// ```
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    let refuse = |reason| Err(SizeError { text: text.to_owned(), reason });
    if number.is_empty() {
        return refuse(Reason::NoNumber);
    }
    let unit = match unit_bytes(unit.trim()) {
        Ok(unit) => unit,
        Err(reason) => return refuse(reason),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(bytes) => Ok(bytes),
        None => refuse(Reason::TooLarge),
    }
}

fn unit_bytes(unit: &str) -> Result<u64, Reason> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("b") {
        return Ok(1);
    }
    for (name, bytes) in UNITS {
        if unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(&name[..1]) {
            return Ok(bytes);
        }
        if unit.len() == 2 && unit.eq_ignore_ascii_case(&format!("{}B", &name[..1])) {
            return Err(Reason::Ambiguous);
        }
    }
    if unit.starts_with(['.', ',']) { Err(Reason::Fraction) } else { Err(Reason::Unit) }
}

/// A number of bytes that prints with a suitable unit: `1 GiB`, `512 bytes`, `1.5 GiB`. If the unit
/// does not divide the number, the text has one decimal, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in UNITS {
            if self.0 >= unit {
                let whole = self.0 / unit;
                let tenth = u128::from(self.0 % unit) * 10 / u128::from(unit);
                return match tenth {
                    0 => write!(f, "{whole} {name}"),
                    _ => write!(f, "{whole}.{tenth} {name}"),
                };
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// A number of bytes that prints like [`Size`]. If the unit rounds the number, the exact number
/// follows: `64 MiB`, `1 KiB (1025 bytes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullSize(pub u64);

impl fmt::Display for FullSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = |(_, unit): &(&str, u64)| self.0 >= *unit;
        let unit = UNITS.iter().find(|it| rounds(it)).map_or(1, |(_, unit)| *unit);
        let is_exact = (u128::from(self.0) * 10).is_multiple_of(u128::from(unit));
        match is_exact {
            true => Size(self.0).fmt(f),
            false => write!(f, "{} ({} bytes)", Size(self.0), self.0),
        }
    }
}

/// A number of bytes that prints as the text for which [`parse`] returns the same number: `1GiB`,
/// `1025`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactSize(pub u64);

impl fmt::Display for ExactSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match unit {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The error for a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    text: String,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NoNumber,
    Unit,
    Ambiguous,
    Fraction,
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match self.reason {
            Reason::NoNumber if text.trim().is_empty() => {
                f.write_str("a size is missing: write for example 1GiB")
            }
            Reason::NoNumber => {
                write!(f, "{text:?} is not a size: a size must begin with a number, as in 1GiB")
            }
            Reason::Unit => write!(
                f,
                "{text:?} has a unit that is not known: use KiB, MiB, GiB, TiB, or none for bytes"
            ),
            Reason::Ambiguous => {
                let right = text.trim().trim_end_matches(['b', 'B']);
                write!(
                    f,
                    "{text:?} is ambiguous: write {right}iB (1024-based), or the number of bytes"
                )
            }
            Reason::Fraction => {
                write!(f, "{text:?} has a fraction: use a smaller unit, as in 1536MiB")
            }
            Reason::TooLarge => write!(f, "{text:?} is larger than any disk can be"),
        }
    }
}

impl std::error::Error for SizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64KiB", 65536),
            ("64k", 65536),
            ("64K", 65536),
            ("1 MiB", 1 << 20),
            (" 3gib ", 3 << 30),
            ("2T", 2 << 40),
            ("7PiB", 7 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (text, message) in [
            ("", "a size is missing"),
            ("  ", "a size is missing"),
            ("GiB", "must begin with a number"),
            ("-1", "must begin with a number"),
            ("1.5GiB", "use a smaller unit"),
            ("1GB", "write 1GiB (1024-based)"),
            ("5 mb", "write 5 miB (1024-based)"),
            ("1XiB", "not known"),
            ("1GiBs", "not known"),
            ("1é", "not known"),
            ("18446744073709551616", "larger than any disk"),
            ("16EiB", "larger than any disk"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }

    #[test]
    fn sizes_are_formatted() {
        for (bytes, text, exact) in [
            (0, "0 bytes", "0"),
            (512, "512 bytes", "512"),
            (1024, "1 KiB", "1KiB"),
            (1536, "1.5 KiB", "1536"),
            (1 << 30, "1 GiB", "1GiB"),
            ((1 << 30) + 512, "1 GiB", "1073742336"),
            (u64::MAX, "15.9 EiB", "18446744073709551615"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
            assert_eq!(ExactSize(bytes).to_string(), exact);
            let rounded = format!("{text} ({bytes} bytes)");
            let full = match Size(bytes).to_string() {
                _ if bytes == (1 << 30) + 512 || bytes == u64::MAX => rounded,
                text => text,
            };
            assert_eq!(FullSize(bytes).to_string(), full);
            assert_eq!(parse(exact), Ok(bytes));
        }
    }
}
