//! The results that StarWind and LINBIT published for their tests, for comparison with a run.

use serde::{Deserialize, Serialize};

/// The results of a published test for one load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// I/Os per second.
    #[serde(default)]
    pub iops: Option<f64>,
    /// Throughput in GB/s (10⁹ bytes).
    #[serde(default)]
    pub gb_per_second: Option<f64>,
    /// The percentage of the sum of the drives' speeds, where each drive is measured alone.
    #[serde(default)]
    pub percent_of_theoretical: Option<f64>,
    /// The advantage of NVMe over Fabrics over iSCSI, in percent.
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

    /// Whether there is a result to compare with the fleet's result.
    pub(crate) fn has_figure(&self) -> bool {
        self.iops.is_some() || self.gb_per_second.is_some()
    }
}
