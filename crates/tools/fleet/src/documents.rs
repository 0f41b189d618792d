//! What the documents measured, to stand beside what is measured here.

use serde::{Deserialize, Serialize};

/// One figure of the documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// I/Os per second.
    #[serde(default)]
    pub iops: Option<f64>,
    /// GB/s (10⁹ bytes).
    #[serde(default)]
    pub gb_per_second: Option<f64>,
    /// Of what the drives give alone.
    #[serde(default)]
    pub percent_of_theoretical: Option<f64>,
}

impl Documents {
    pub(crate) fn iops(iops: f64, percent: Option<f64>) -> Documents {
        Documents { iops: Some(iops), gb_per_second: None, percent_of_theoretical: percent }
    }

    pub(crate) fn gb(gb_per_second: f64, percent: Option<f64>) -> Documents {
        let gb_per_second = Some(gb_per_second);
        Documents { iops: None, gb_per_second, percent_of_theoretical: percent }
    }
}
