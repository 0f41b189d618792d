//! Formats numbers and times for people.

use crate::pattern::Pattern;
use crate::result::{Method, Report};
use farblock_block::size::Size;

/// The text in the place of a number that was not measured.
pub(crate) const NOTHING: &str = "–";

/// Formats a rounded number as in `1,234,567`.
#[must_use]
pub fn whole(value: f64) -> String {
    group(&format!("{value:.0}"))
}

/// Formats a number as in `1,234.5`.
#[must_use]
pub fn tenths(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{}.{fraction}", group(whole)),
        None => text, // NaN, which no report contains
    }
}

/// Formats processor time per I/O, with two decimals if it is below ten.
pub(crate) fn fine(value: f64) -> String {
    if value < 9.995 { format!("{value:.2}") } else { tenths(value) }
}

/// Formats nanoseconds as microseconds.
#[must_use]
pub fn us(ns: f64) -> String {
    tenths(ns / 1000.0)
}

/// Formats I/Os per second as a whole number, unless they are so few that a fraction matters.
#[must_use]
pub fn iops(value: f64) -> String {
    if value < 999.95 { tenths(value) } else { whole(value) }
}

/// Formats a percentage without `%`, and without a fraction if it is large.
pub(crate) fn percent(value: f64) -> String {
    if value < 999.95 { tenths(value) } else { whole(value) }
}

pub(crate) fn optional(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), show)
}

/// Formats the number of jobs and the depth as in `2 × 32`.
#[must_use]
pub fn jobs_and_depth(pattern: &Pattern) -> String {
    format!("{} × {}", pattern.numjobs, pattern.iodepth)
}

/// Formats seconds as in `5 s`, `0.5 s`, `1 min 30 s`.
#[must_use]
pub fn seconds(value: f64) -> String {
    if value < 60.0 || value.fract() != 0.0 {
        return format!("{} s", (value * 1000.0).round() / 1000.0);
    }
    let (minutes, rest) = ((value / 60.0).floor(), value % 60.0);
    if rest == 0.0 { format!("{minutes} min") } else { format!("{minutes} min {rest} s") }
}

/// Describes the machine in one line.
pub(crate) fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let plural = if machine.cores == 1 { "core" } else { "cores" };
    let memory = machine.memory_bytes.map(|size| format!(", {}", Size(size)));
    format!(
        "{}, {} {plural}{}, {} {}, {} engine",
        machine.cpu_model,
        machine.cores,
        memory.unwrap_or_default(),
        machine.kernel,
        machine.architecture,
        report.engine,
    )
}

/// Describes the method in one line.
pub(crate) fn method(method: &Method) -> String {
    let mut parts = vec![match method.runs {
        1 => format!("one run of {}", seconds(method.runtime_seconds)),
        runs => format!("{runs} runs of {}, averaged", seconds(method.runtime_seconds)),
    }];
    if method.ramp_seconds > 0.0 {
        parts.push(format!("after {} unmeasured", seconds(method.ramp_seconds)));
    }
    if method.warm_up_seconds > 0.0 {
        parts.push(format!("warm-up of {} before the first", seconds(method.warm_up_seconds)));
    }
    parts.push(format!("--spin {}", method.spin));
    if let Some(size) = method.size_bytes {
        parts.push(format!("on the first {}", Size(size)));
    }
    if let Some(size) = method.io_size_bytes {
        parts.push(format!("at most {} per job", Size(size)));
    }
    parts.join(", ")
}

/// Inserts commas between the thousands of a number.
#[must_use]
pub fn group(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut grouped = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_grouped() {
        assert_eq!(whole(999.4), "999");
        assert_eq!(whole(1_234_567.0), "1,234,567");
        assert_eq!(tenths(999.96), "1,000.0");
        assert_eq!(tenths(-1234.56), "-1,234.6");
        assert_eq!(fine(2.345), "2.35");
        assert_eq!(fine(9.996), "10.0");
        assert_eq!(us(369_040.0), "369.0");
        assert_eq!(iops(17.25), "17.2");
        assert_eq!(iops(712_000.4), "712,000");
        assert_eq!((percent(97.27), percent(10_531.1)), ("97.3".to_owned(), "10,531".to_owned()));
        assert_eq!(optional(None, whole), "–");
    }

    #[test]
    fn durations_are_shown_in_seconds_and_minutes() {
        assert_eq!(seconds(0.25), "0.25 s");
        assert_eq!(seconds(30.0), "30 s");
        assert_eq!(seconds(120.0), "2 min");
        assert_eq!(seconds(90.0), "1 min 30 s");
    }

    #[test]
    fn the_method_is_described_in_one_line() {
        let mut report = crate::testing::report();
        assert_eq!(
            method(&report.method),
            "3 runs of 30 s, averaged, after 5 s unmeasured, warm-up of 30 s before the first, \
             --spin balanced"
        );
        report.method = Method {
            runs: 1,
            ramp_seconds: 0.0,
            warm_up_seconds: 0.0,
            size_bytes: Some(1 << 30),
            io_size_bytes: Some(1 << 20),
            ..report.method
        };
        assert_eq!(
            method(&report.method),
            "one run of 30 s, --spin balanced, on the first 1 GiB, at most 1 MiB per job"
        );
    }
}
