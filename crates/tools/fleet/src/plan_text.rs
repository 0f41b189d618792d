//! Parses a plan from the text of a plan file or report.

use crate::error::FleetError;
use crate::plan::Plan;
use crate::report::Report;
use std::path::Path;

impl Plan {
    /// Parses a plan from TOML, or from the JSON of a report, which contains its plan.
    ///
    /// # Errors
    /// The text is neither a plan in TOML nor a report in JSON.
    pub fn parse(name: &str, text: &str) -> Result<Plan, FleetError> {
        let mut plan = if text.trim_start().starts_with('{') {
            let report = Report::from_json(text);
            report
                .map_err(|error| FleetError::plan(name, format!("is not a valid report: {error}")))?
                .plan
        } else {
            toml::from_str(text).map_err(|error| FleetError::plan(name, one_line(&error)))?
        };
        if plan.name.is_empty() {
            // A report shows the name to others, so omit the folders of this machine.
            let stem = Path::new(name).file_stem().unwrap_or_default();
            plan.name = stem.to_string_lossy().into_owned();
        }
        Ok(plan)
    }
}

fn one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.contains('|'));
    lines.collect::<Vec<_>>().join(": ")
}
