//! A progress bar on the standard error, if it is a terminal and `--quiet` is not set.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

/// Returns a bar for `total` bytes; `None`: the total is unknown.
pub(crate) fn bytes(total: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match total {
        Some(total) => ProgressBar::new(total).with_style(style(
            "{wide_bar} {percent:>3} %  {binary_bytes} of {binary_total_bytes}, {rate}, {eta} left",
        )),
        None => ProgressBar::new_spinner().with_style(style("{spinner} {binary_bytes}, {rate}")),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        let _ = write!(out, "{:.0} MiB/s", state.per_sec() / f64::from(1 << 20));
    };
    ProgressStyle::with_template(template).expect("the template is valid").with_key("rate", rate)
}
