//! The file format in which a process records its controllers. If the process dies, the next one
//! learns which controllers may still execute commands.

use farblock_host::disk::{ControllerLife, ControllerOrigin, CrossControllerReset};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The version of the format that this program writes.
pub const VERSION: u64 = 1;

/// Formats bytes as hexadecimal, two digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses hexadecimal. Returns `None` unless the text has exactly `N` bytes.
pub fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * N)?;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = (pair[0] * 16 + pair[1]) as u8;
    }
    Some(bytes)
}

/// One controller ([`ControllerLife`]) as an entry of the file. The file is a list, so that an
/// older version of farblock can read the entries that it understands.
#[derive(Serialize, Deserialize)]
pub struct Life {
    /// The version of the format; 0 in files of the first version, which lack this field.
    #[serde(default)]
    pub version: u64,
    url: String,
    /// The controller's identifier, instance uniquifier and instance random number (CNTLID, CIU,
    /// CIRN).
    name: Option<(u16, u8, u64)>,
    quiesce_ms: u64,
    /// The origin of the controller ([`ControllerOrigin`]): place and boot, in hexadecimal.
    #[serde(default)]
    origin: Option<(String, String)>,
}

impl Life {
    /// Converts a controller to an entry.
    pub fn new(life: &ControllerLife) -> Life {
        Life {
            version: VERSION,
            url: life.url.to_string(),
            name: life.name.map(|name| (name.icid, name.ciu, name.cirn)),
            quiesce_ms: life.quiesce_time.as_millis().try_into().unwrap_or(u64::MAX),
            origin: life.origin.map(|origin| (hex(&origin.place), hex(&origin.boot))),
        }
    }

    /// Converts an entry to a controller. Returns `None` if the entry is malformed.
    pub fn life(&self) -> Option<ControllerLife> {
        let name = self.name.map(|(icid, ciu, cirn)| CrossControllerReset { icid, ciu, cirn });
        let quiesce_time = Duration::from_millis(self.quiesce_ms);
        let origin = self.origin.as_ref().map(|(place, boot)| {
            Some(ControllerOrigin { place: bytes(place)?, boot: bytes(boot)? })
        });
        let origin = origin.map_or(Some(None), |origin| origin.map(Some))?;
        Some(ControllerLife { url: self.url.parse().ok()?, name, quiesce_time, origin })
    }
}
