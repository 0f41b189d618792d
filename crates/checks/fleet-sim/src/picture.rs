//! The recovery times as a picture for documents, in the style of the bench's charts.

use crate::report::{FleetReport, SceneReport, SimulationReport};
use farblock_bench::group;
use farblock_bench::html::chart::{Bar, Chart, Group};
use farblock_bench::html::tick;

/// The first tag of the SVG file.
const ROOT: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" ";

/// The style sheet, with the colors of the HTML reports. It follows the light or dark mode of the
/// user's system.
const STYLE: &str = "<style>svg{font:12px system-ui,sans-serif}text{fill:#1d2733}\
    .soft{fill:#5d6b7a}.axis{stroke:#d5dce3}.remote{fill:#2a78d6}.local{fill:#9db4cc}\
    @media(prefers-color-scheme:dark){text{fill:#e8edf2}.soft{fill:#9aa7b4}.axis{stroke:#3a4653}\
    .remote{fill:#5a9ff0}.local{fill:#5b7089}}</style>";

impl SimulationReport {
    /// The recovery times of the median host and the last host, as an SVG picture. It has one group
    /// for each fleet, with a bar for each scene. The bar has one color up to the median host, and
    /// another color from there to the last host.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let chart = Chart {
            id: "scale".to_owned(),
            title: "Virtual seconds until half of the hosts, and all, do I/O again".to_owned(),
            tick: &tick,
            groups: self.fleets.iter().map(fleet).collect(),
        };
        let svg = chart.render().replacen("<svg ", ROOT, 1);
        match svg.split_once("</desc>") {
            Some((head, rest)) => format!("{head}</desc>{STYLE}{rest}"),
            None => svg,
        }
    }
}

fn fleet(fleet: &FleetReport) -> Group {
    let number = |count: u32| group(&count.to_string());
    let (hosts, targets) = (number(fleet.settings.hosts), number(fleet.settings.targets));
    let label = format!("{hosts} hosts, {targets} targets");
    Group { label, bars: fleet.scenes.iter().map(scene).collect() }
}

fn scene(scene: &SceneReport) -> Bar {
    let times = &scene.seconds;
    let parts = vec![("remote", times.median), ("local", times.last - times.median)];
    let value = format!("{:.1} s, {:.1} s: {}", times.median, times.last, scene.name);
    Bar { name: "", parts, value }
}
