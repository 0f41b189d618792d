//! Connects an attachment's disk, after everything that a server before us asked for is over.

use super::folder::Folder;
use super::settings::Settings;
use crate::error::os;
use crate::remote;
use farblock_host::disk::{ControllerLife, CrossControllerReset, Disk};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where the controllers are written down that may carry out something.
const FILE: &str = "controllers.json";

/// A [`ControllerLife`] in the file.
#[derive(Serialize, Deserialize)]
struct Recorded {
    url: String,
    /// Identifier, uniquifier and random number (CNTLID, CIU, CIRN).
    name: Option<(u16, u8, u64)>,
    quiesce_ms: u64,
}

impl Recorded {
    fn new(life: &ControllerLife) -> Recorded {
        Recorded {
            url: life.url.to_string(),
            name: life.name.map(|name| (name.icid, name.ciu, name.cirn)),
            quiesce_ms: life.quiesce_time.as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    /// `None` if the file is not one of ours.
    fn life(&self) -> Option<ControllerLife> {
        let name = self.name.map(|(icid, ciu, cirn)| CrossControllerReset { icid, ciu, cirn });
        let quiesce_time = Duration::from_millis(self.quiesce_ms);
        Some(ControllerLife { url: self.url.parse().ok()?, name, quiesce_time })
    }
}

/// Connects a disk, with errors that say what to do next.
pub(super) fn connect(settings: &Settings, folder: &Folder) -> Result<Disk, String> {
    let options = settings.disk_options();
    let before: Vec<Recorded> = folder.read_json(FILE).unwrap_or_default();
    let before = before.iter().filter_map(Recorded::life).collect();
    let folder = folder.clone();
    let record = move |lives: &[ControllerLife]| {
        let lives: Vec<_> = lives.iter().map(Recorded::new).collect();
        if let Err(error) = folder.write_json(FILE, &lives) {
            // The disk is of more use than the order of what a process may leave that dies.
            tracing::warn!("{FILE}: {}", os(&error));
        }
    };
    Disk::succeed(&settings.urls, &options, before, record).map_err(|error| {
        let failure = remote::explain(&error, &settings.urls[0], &options.connection);
        failure.sentence().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_read_as_they_were_written() {
        let url: farblock_host::url::Url =
            "nvme+tcp://[::1]:4420/nqn.2024-01.example:a?ns=2".parse().expect("a URL");
        let name = CrossControllerReset { icid: 7, ciu: 3, cirn: u64::MAX };
        for name in [Some(name), None] {
            let quiesce_time = Duration::from_millis(1500);
            let life = ControllerLife { url: url.clone(), name, quiesce_time };
            let text = serde_json::to_string(&Recorded::new(&life)).expect("JSON");
            let read: Recorded = serde_json::from_str(&text).expect("our own");
            assert_eq!(read.life(), Some(life));
        }
    }
}
