//! The published documents' results, for comparison with a run.

use serde::{Deserialize, Serialize};

/// One result of the documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// I/Os per second.
    #[serde(default)]
    pub iops: Option<f64>,
    /// GB/s (10⁹ bytes).
    #[serde(default)]
    pub gb_per_second: Option<f64>,
    /// Percentage of the drives' speed when measured alone.
    #[serde(default)]
    pub percent_of_theoretical: Option<f64>,
    /// Advantage of NVMe over Fabrics over iSCSI, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_over_iscsi: Option<f64>,
}

impl Documents {
    pub(crate) fn iops(iops: f64, percent: Option<f64>) -> Documents {
        Documents { iops: Some(iops), percent_of_theoretical: percent, ..Documents::default() }
    }

    pub(crate) fn gb(gb_per_second: f64, percent: Option<f64>) -> Documents {
        let gb_per_second = Some(gb_per_second);
        Documents { gb_per_second, percent_of_theoretical: percent, ..Documents::default() }
    }

    pub(crate) fn over_iscsi(percent: f64) -> Documents {
        Documents { percent_over_iscsi: Some(percent), ..Documents::default() }
    }

    /// True if there is a result to compare with the fleet's.
    pub(crate) fn has_figure(&self) -> bool {
        self.iops.is_some() || self.gb_per_second.is_some()
    }
}
