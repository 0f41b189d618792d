//! `farblock id`: describes a controller and its namespaces.

use crate::args::{Global, IdArgs};
use crate::error::{Failure, Result};
use crate::output;
use crate::remote;
use crate::table::{self, Align, Table};
use farblock_block::size::Size;
use farblock_host::{Controller, Error};
use farblock_proto::host::{ControllerInfo, NamespaceInfo};
use farblock_wire::identify::IdentifyController;
use farblock_wire::property::Version;
use serde::Serialize;

#[derive(Serialize)]
struct Identified {
    controller: ControllerView,
    namespaces: Vec<NamespaceView>,
    /// Namespaces that the controller lists, but does not describe correctly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedView>,
}

#[derive(Serialize)]
struct FailedView {
    nsid: u32,
    error: String,
}

#[derive(Serialize)]
struct ControllerView {
    address: String,
    nqn: String,
    controller_id: u16,
    serial: String,
    model: String,
    firmware: String,
    nvme_version: String,
    discovery: bool,
    io_queues: u16,
    max_queue_entries: u32,
    max_transfer_bytes: Option<u32>,
    in_capsule_bytes: u32,
    features: Vec<&'static str>,
}

#[derive(Serialize)]
struct NamespaceView {
    nsid: u32,
    bytes: u64,
    used_bytes: u64,
    block_size: u32,
    blocks: u64,
    read_only: bool,
    shared: bool,
    optimal_bytes: u64,
    preferred_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nguid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eui64: Option<String>,
}

pub(crate) fn run(args: &IdArgs, global: &Global) -> Result<()> {
    let options = remote::options(global, &args.digests);
    let controller = remote::connect(&args.url, &options)?;
    let (infos, failed) = match args.url.namespace {
        _ if controller.info().discovery => Default::default(),
        Some(nsid) => {
            let one = remote::namespace(&controller, &args.url, &options, nsid)?;
            (vec![one.info().clone()], Vec::new())
        }
        None => every_namespace(&controller)?,
    };
    let namespaces = infos.iter().map(namespace_view).collect();
    let identified = Identified { controller: controller_view(&controller), namespaces, failed };
    match args.json {
        true => output::print_json(&identified)?,
        false => output::print(&listing(&identified))?,
    }
    let errors: Vec<&str> = identified.failed.iter().map(|one| one.error.as_str()).collect();
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Failure::run(errors.join("; "))),
    }
}

/// Returns the descriptions of all namespaces, and the namespaces for which the controller returns
/// an error or an invalid description.
fn every_namespace(controller: &Controller) -> Result<(Vec<NamespaceInfo>, Vec<FailedView>)> {
    let (mut infos, mut failed) = (Vec::new(), Vec::new());
    for nsid in controller.namespace_ids()? {
        match controller.namespace_info(nsid) {
            Ok(info) => infos.push(info),
            Err(error @ Error::Answer { .. }) => {
                failed.push(FailedView { nsid, error: error.to_string() });
            }
            Err(error @ Error::Command { .. }) => {
                failed.push(FailedView { nsid, error: format!("namespace {nsid}: {error}") });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((infos, failed))
}

fn controller_view(controller: &Controller) -> ControllerView {
    let info = controller.info();
    ControllerView {
        address: controller.address().to_string(),
        nqn: controller.subsystem().to_owned(),
        controller_id: info.cntlid,
        serial: info.serial.clone(),
        model: info.model.clone(),
        firmware: info.firmware.clone(),
        nvme_version: version(info.version),
        discovery: info.discovery,
        io_queues: info.queues,
        max_queue_entries: info.max_queue_entries,
        max_transfer_bytes: info.max_transfer_bytes,
        in_capsule_bytes: info.in_capsule_bytes,
        features: features(info),
    }
}

/// Formats the NVMe version (VS), with the third number only if it is not 0.
fn version(version: Version) -> String {
    match version.tertiary() {
        0 => format!("{}.{}", version.major(), version.minor()),
        _ => version.to_string(),
    }
}

/// Returns the names of the supported optional NVM commands (ONCS), and of the volatile write
/// cache.
fn features(info: &ControllerInfo) -> Vec<&'static str> {
    const COMMANDS: [(u16, &str); 7] = [
        (IdentifyController::ONCS_COMPARE, "compare"),
        (IdentifyController::ONCS_WRITE_UNCORRECTABLE, "write uncorrectable"),
        (IdentifyController::ONCS_DATASET_MANAGEMENT, "deallocate"),
        (IdentifyController::ONCS_WRITE_ZEROES, "write zeroes"),
        (IdentifyController::ONCS_RESERVATIONS, "reservations"),
        (IdentifyController::ONCS_VERIFY, "verify"),
        (IdentifyController::ONCS_COPY, "copy"),
    ];
    let commands = COMMANDS.iter().filter(|(bit, _)| info.oncs & bit != 0).map(|(_, name)| *name);
    commands.chain(info.volatile_cache.then_some("volatile write cache")).collect()
}

fn namespace_view(info: &NamespaceInfo) -> NamespaceView {
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(info.block_size));
    NamespaceView {
        nsid: info.nsid,
        bytes: bytes(info.blocks),
        used_bytes: bytes(info.used_blocks),
        block_size: info.block_size,
        blocks: info.blocks,
        read_only: info.read_only,
        shared: info.shared,
        optimal_bytes: bytes(info.optimal_blocks.into()),
        preferred_bytes: bytes(info.preferred_blocks.into()),
        uuid: info.uuid.map(|uuid| uuid::Uuid::from_bytes(uuid).to_string()),
        nguid: info.nguid.map(|nguid| hex(&nguid)),
        eui64: info.eui64.map(|eui64| hex(&eui64)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listing(identified: &Identified) -> String {
    let one = &identified.controller;
    let transfer = one.max_transfer_bytes;
    let kind = if one.discovery { "discovery controller" } else { "I/O controller" };
    let mut text = table::properties(
        &[
            ("Subsystem", one.nqn.clone()),
            ("Address", one.address.clone()),
            ("Controller", format!("{} ({kind})", one.controller_id)),
            ("Model", one.model.clone()),
            ("Serial number", one.serial.clone()),
            ("Firmware", one.firmware.clone()),
            ("NVMe version", one.nvme_version.clone()),
            ("I/O queues", format!("{} of {} entries", one.io_queues, one.max_queue_entries)),
            (
                "Largest transfer",
                transfer.map_or("no limit".to_owned(), |n| Size(n.into()).to_string()),
            ),
            ("In-capsule data", Size(one.in_capsule_bytes.into()).to_string()),
            ("Features", one.features.join(", ")),
        ],
        0,
    );
    if !identified.namespaces.is_empty() {
        text.push('\n');
        text.push_str(&namespaces(&identified.namespaces).render(0));
    }
    text
}

fn namespaces(views: &[NamespaceView]) -> Table {
    let mut table = Table::new(&[
        ("NS", Align::Right),
        ("SIZE", Align::Right),
        ("USED", Align::Right),
        ("BLOCK", Align::Right),
        ("ACCESS", Align::Left),
        ("BEST I/O", Align::Right),
        ("IDENTIFIER", Align::Left),
    ]);
    for view in views {
        let identifier = [("", &view.uuid), ("nguid.", &view.nguid), ("eui.", &view.eui64)]
            .into_iter()
            .find_map(|(prefix, id)| id.as_ref().map(|id| format!("{prefix}{id}")));
        let best = [view.optimal_bytes, view.preferred_bytes].into_iter().find(|&bytes| bytes > 0);
        table.row(vec![
            view.nsid.to_string(),
            Size(view.bytes).to_string(),
            Size(view.used_bytes).to_string(),
            view.block_size.to_string(),
            if view.read_only { "read only" } else { "read, write" }.to_owned(),
            best.map_or("-".to_owned(), |bytes| Size(bytes).to_string()),
            identifier.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_omit_a_zero_tertiary_number() {
        assert_eq!(version(Version::new(2, 0, 0)), "2.0");
        assert_eq!(version(Version::new(1, 3, 2)), "1.3.2");
    }

    #[test]
    fn optional_features_are_shown_by_name() {
        let info = ControllerInfo { oncs: 0b1000_1100, volatile_cache: true, ..Default::default() };
        let names = ["deallocate", "write zeroes", "verify", "volatile write cache"];
        assert_eq!(features(&info), names);
    }
}
