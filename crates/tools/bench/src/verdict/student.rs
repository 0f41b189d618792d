//! Welch's t-test: how far two means may differ by chance.

/// The two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The quantile for 30 degrees of freedom, which is also used for more degrees. It is then too
/// large by less than a twentieth.
const MOST: f64 = QUANTILES[QUANTILES.len() - 1];

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance_of_mean(values: &[f64]) -> Option<f64> {
    let count = values.len();
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (count >= 2).then(|| squares / ((count - 1) * count) as f64)
}

/// Half of the width of the 95 % interval of the difference between two means. `None` if either
/// side has only one value.
pub(super) fn margin_95(a: &[f64], b: &[f64]) -> Option<f64> {
    let (left, right) = (variance_of_mean(a)?, variance_of_mean(b)?);
    let both = left + right;
    if both <= 0.0 {
        return Some(0.0);
    }
    let part = |variance: f64, count: usize| variance.powi(2) / (count - 1) as f64;
    let freedom = both.powi(2) / (part(left, a.len()) + part(right, b.len()));
    Some(quantile(freedom) * both.sqrt())
}

/// The quantile, with the degrees of freedom rounded down. So the interval can only become wider.
fn quantile(freedom: f64) -> f64 {
    let degree = freedom.max(1.0) as usize;
    QUANTILES.get(degree - 1).copied().unwrap_or(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_follows_welchs_t_test() {
        // The means are 2 and 5, the variances of the means 1/3 and 4/3. That gives 2.94 degrees of
        // freedom, and t for 2 degrees is 4.303.
        let margin = margin_95(&[1.0, 2.0, 3.0], &[3.0, 5.0, 7.0]).expect("there are enough runs");
        assert!((margin - 4.303 * (5.0_f64 / 3.0).sqrt()).abs() < 1e-9, "{margin}");
    }

    #[test]
    fn a_single_value_has_no_margin() {
        assert_eq!(margin_95(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(margin_95(&[], &[]), None);
        assert_eq!(margin_95(&[2.0, 2.0], &[3.0, 3.0]), Some(0.0));
    }

    #[test]
    fn quantiles_decrease_with_the_degrees_of_freedom() {
        assert!(QUANTILES.windows(2).all(|pair| pair[0] > pair[1]));
        assert_eq!((quantile(0.3), quantile(1.99), quantile(1e9)), (12.706, 12.706, MOST));
    }
}
