//! The result of a check: a verdict, a sentence about the state, and advice.

use crate::table::printable;
use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// No problem.
    Ok,
    /// The subject works, but could be better.
    Hint,
    /// The subject does not work.
    Problem,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Hint => "hint",
            Verdict::Problem => "PROBLEM",
        }
    }
}

/// One result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    /// The subject of the check, in a word or two.
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// One sentence about the state.
    pub(super) what: String,
    /// One sentence of advice; `None` without a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Ok, what: what.into(), advice: None }
    }

    pub(super) fn hint(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        let advice = Some(advice.into());
        Finding { check, verdict: Verdict::Hint, what: what.into(), advice }
    }

    pub(super) fn problem(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        let advice = Some(advice.into());
        Finding { check, verdict: Verdict::Problem, what: what.into(), advice }
    }
}

/// Splits a sentence at its first colon into the state and the advice.
#[cfg(any(target_os = "linux", windows))]
pub(super) fn split(sentence: &str) -> (String, String) {
    let (what, advice) = sentence.split_once(": ").unwrap_or((sentence, "run this as root"));
    (what.to_owned(), advice.to_owned())
}

/// Formats all findings as text for the terminal.
pub(super) fn listing(patient: &str, findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    let mut text = format!("{}\n", printable(patient));
    for Finding { check, verdict, what, advice } in findings {
        let verdict = verdict.name();
        text.push_str(&format!("  {verdict:<7}  {check:<width$}  {}\n", printable(what)));
        if let Some(advice) = advice {
            text.push_str(&format!("  {:7}  {:width$}  -> {}\n", "", "", printable(advice)));
        }
    }
    text.push_str(&format!("{}\n", summary(findings)));
    text
}

fn summary(findings: &[Finding]) -> String {
    let count = |wanted| findings.iter().filter(|finding| finding.verdict == wanted).count();
    let plural = |count: usize, what: &str| match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    };
    let (problems, hints) = (count(Verdict::Problem), count(Verdict::Hint));
    format!("{}, {}", plural(problems, "problem"), plural(hints, "hint"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_shows_each_finding_with_its_advice_below() {
        let findings = [
            Finding::ok("name", "it is 192.0.2.7"),
            Finding::problem("connection", "nothing\nlistens", "start it"),
        ];
        let lines = [
            "x",
            "  ok       name        it is 192.0.2.7",
            "  PROBLEM  connection  nothing\\u{a}listens",
            "                       -> start it",
            "1 problem, no hints",
            "",
        ];
        let lines = lines.join("\n");
        assert_eq!(listing("x", &findings), lines);
    }
}
