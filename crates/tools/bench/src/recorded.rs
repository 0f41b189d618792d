//! Latencies as text, for the messages and reports of `farblock fleet`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::limits::{LATENCY_DIGITS, MAX_ENCODED_BYTES};

/// A lossless serialization of latencies, for messages and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLatencies {
    /// The histogram in HdrHistogram's V2 encoding, in Base64. Values are in nanoseconds with three
    /// significant digits.
    pub histogram: String,
    /// The exact sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
    /// The exact maximum of all latencies, in nanoseconds.
    pub max_ns: u64,
}

impl RecordedLatencies {
    /// Serializes `latencies`.
    #[must_use]
    pub fn of(latencies: &Latencies) -> RecordedLatencies {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&latencies.histogram, &mut bytes);
        written.expect("writing to memory cannot fail, and the counts fit the encoding");
        RecordedLatencies {
            histogram: STANDARD.encode(bytes),
            sum_ns: u64::try_from(latencies.sum_ns).unwrap_or(u64::MAX),
            max_ns: latencies.max_ns,
        }
    }

    /// Parses the latencies, which may be untrusted.
    ///
    /// # Errors
    /// The reason why the text is invalid.
    pub fn latencies(&self) -> Result<Latencies, String> {
        if self.histogram.len() > MAX_ENCODED_BYTES {
            return Err(format!("the histogram has more than {MAX_ENCODED_BYTES} characters"));
        }
        let bytes = STANDARD.decode(&self.histogram).map_err(|error| error.to_string())?;
        // The parser allocates as much memory as the header says, so check the header first.
        if header_field(&bytes, 4) != Some(bytes.len().saturating_sub(HEADER_BYTES) as u32) {
            return Err("the length of the histogram differs from its header".to_owned());
        }
        if header_field(&bytes, 12) != Some(u32::from(LATENCY_DIGITS)) {
            return Err("the histogram has an unsupported precision".to_owned());
        }
        let read = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice());
        let histogram = read.map_err(|error| format!("the histogram is invalid: {error}"))?;
        let mut latencies = Latencies::new();
        let added = latencies.histogram.add(&histogram);
        added.map_err(|error| format!("the histogram has other bounds: {error}"))?;
        latencies.sum_ns = u128::from(self.sum_ns);
        latencies.max_ns = self.max_ns;
        Ok(latencies)
    }
}

/// The size of the header in the V2 encoding: cookie, length of the counts, offset and digits (four
/// bytes each), lowest and highest value and ratio (eight bytes each).
const HEADER_BYTES: usize = 40;

fn header_field(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)
        .map(|field| u32::from_be_bytes(field.try_into().expect("the slice has the right length")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::latency::LatencySummary;

    fn of(latencies: impl IntoIterator<Item = u64>) -> Latencies {
        let mut all = Latencies::new();
        latencies.into_iter().for_each(|ns| all.record(Duration::from_nanos(ns)));
        all
    }

    #[test]
    fn recorded_latencies_are_read_without_loss() {
        let mut latencies = of((1..=1000).map(|i| i * i * 37));
        latencies.record(Duration::from_secs(100_000));
        let read = RecordedLatencies::of(&latencies)
            .latencies()
            .expect("the report was written by this program");
        assert_eq!(read.summary(), latencies.summary());
        assert_eq!(read.histogram, latencies.histogram);
        let mut both = read;
        both.merge(&of([5]));
        latencies.merge(&of([5]));
        assert_eq!(both.histogram, latencies.histogram);
        let nothing = RecordedLatencies::of(&Latencies::new())
            .latencies()
            .expect("the report was written by this program");
        assert_eq!(nothing.summary(), LatencySummary::default());
    }

    #[test]
    fn invalid_recorded_latencies_are_refused() {
        let good = RecordedLatencies::of(&of([1, 2, 3]));
        let bytes =
            STANDARD.decode(&good.histogram).expect("the report was written by this program");
        let with = |bytes: &[u8]| {
            let histogram = STANDARD.encode(bytes);
            RecordedLatencies { histogram, ..good.clone() }.latencies()
        };
        for end in 0..bytes.len() - 1 {
            assert!(with(&bytes[..end]).is_err(), "{end} bytes");
        }
        let mut length = bytes.clone();
        length[4] = 0xff;
        assert!(with(&length).is_err_and(|error| error.contains("length")));
        let mut digits = bytes.clone();
        digits[15] = 5;
        assert!(with(&digits).is_err_and(|error| error.contains("precision")));
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                // Any result is correct, as long as the parser does not panic.
                drop(with(&changed));
            }
        }
        assert!(RecordedLatencies { histogram: "?".into(), ..good }.latencies().is_err());
    }
}
