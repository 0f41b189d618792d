//! Calls that create, list and delete bdevs.

use super::bdevs::{Bdev, BdevKind, invalid, parse};
use super::message::{Answer, Errno, PARSE_ERROR, Params, RpcError};
use super::view::View;
use super::{Method, SpdkRpc, Table, method, qos_calls, refused};
use farblock_admin::{Cause, Opened};
use farblock_admin_api::{Aside, OpenTimeouts};
use farblock_backends::stripe::Stripe;
use farblock_block::Namespace as _;
use farblock_state::Namespace;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

pub(super) const METHODS: &[Method] = &[
    method("bdev_malloc_create", malloc_create),
    method("bdev_malloc_delete", |rpc, table, params| delete(rpc, table, BdevKind::Malloc, params)),
    method("bdev_null_create", null_create),
    method("bdev_null_delete", |rpc, table, params| delete(rpc, table, BdevKind::Null, params)),
    method("bdev_aio_create", aio_create),
    method("bdev_aio_delete", |rpc, table, params| delete(rpc, table, BdevKind::Aio, params)),
    method("bdev_aio_rescan", aio_rescan),
    method("bdev_uring_create", uring_create),
    method("bdev_uring_delete", |rpc, table, params| delete(rpc, table, BdevKind::Uring, params)),
    method("bdev_raid_create", raid_create),
    method("bdev_raid_delete", raid_delete),
    method("bdev_get_bdevs", get_bdevs),
];

fn parse_raid<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let error = RpcError::new(PARSE_ERROR, "spdk_json_decode_object failed");
    params.parse().map_err(|sentence| error.because(sentence))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "accepted for compatibility, and ignored")]
struct MallocCreate {
    name: Option<String>,
    block_size: u32,
    num_blocks: u64,
    uuid: Option<Uuid>,
    #[serde(default)]
    md_size: u32,
    #[serde(default)]
    dif_type: i32,
    optimal_io_boundary: Option<IgnoredAny>,
    md_interleave: Option<IgnoredAny>,
    dif_is_head_of_md: Option<IgnoredAny>,
    physical_block_size: Option<IgnoredAny>,
    dif_pi_format: Option<IgnoredAny>,
    numa_id: Option<IgnoredAny>,
}

fn malloc_create(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: MallocCreate = parse(params)?;
    check_metadata(asked.md_size, asked.dif_type)?;
    let name = match asked.name {
        Some(name) => name,
        None => free_name(rpc, table),
    };
    let namespace = sized("mem", asked.block_size, asked.num_blocks)?;
    create(rpc, table, BdevKind::Malloc, name, namespace, asked.uuid)
}

/// A free name for a bdev whose client gave no name.
fn free_name(rpc: &SpdkRpc, table: &mut Table) -> String {
    loop {
        let name = format!("Malloc{}", table.named);
        table.named += 1;
        if rpc.bdevs.find(&name).is_none() {
            return name;
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "accepted for compatibility, and ignored")]
struct NullCreate {
    name: String,
    block_size: u32,
    num_blocks: u64,
    uuid: Option<Uuid>,
    #[serde(default)]
    md_size: u32,
    #[serde(default)]
    dif_type: i32,
    physical_block_size: Option<IgnoredAny>,
    dif_pi_format: Option<IgnoredAny>,
    dif_is_head_of_md: Option<IgnoredAny>,
    preferred_write_granularity: Option<IgnoredAny>,
    preferred_write_alignment: Option<IgnoredAny>,
    optimal_write_size: Option<IgnoredAny>,
    preferred_unmap_granularity: Option<IgnoredAny>,
    preferred_unmap_alignment: Option<IgnoredAny>,
}

fn null_create(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: NullCreate = parse(params)?;
    check_metadata(asked.md_size, asked.dif_type)?;
    let namespace = sized("null", asked.block_size, asked.num_blocks)?;
    create(rpc, table, BdevKind::Null, asked.name, namespace, asked.uuid)
}

fn check_metadata(md_size: u32, dif_type: i32) -> Result<(), RpcError> {
    match (md_size, dif_type) {
        (0, 0) => Ok(()),
        _ => Err(invalid("md_size, dif_type: farblock has no metadata: omit them")),
    }
}

fn check_block_size(block_size: u32) -> Result<(), RpcError> {
    match block_size {
        512 | 4096 => Ok(()),
        other => Err(invalid(format!("block_size: {other} is not a block size: use 512 or 4096"))),
    }
}

/// The namespace settings of a RAM or null disk.
fn sized(kind: &str, block_size: u32, num_blocks: u64) -> Result<Namespace, RpcError> {
    check_block_size(block_size)?;
    let bytes = num_blocks.checked_mul(u64::from(block_size));
    let bytes = bytes.filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok());
    let bytes =
        bytes.ok_or_else(|| invalid(format!("num_blocks: {num_blocks} is not a valid size")))?;
    Ok(Namespace { block_size, ..Namespace::new(format!("{kind}:{bytes}")) })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "accepted for compatibility, and ignored")]
struct AioCreate {
    name: String,
    filename: String,
    block_size: Option<u32>,
    #[serde(default)]
    readonly: bool,
    uuid: Option<Uuid>,
    fallocate: Option<IgnoredAny>,
    nowait: Option<IgnoredAny>,
}

fn aio_create(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AioCreate = parse(params)?;
    let patience = &table.patience;
    let namespace = file(patience, &asked.filename, asked.block_size, asked.readonly)?;
    create(rpc, table, BdevKind::Aio, asked.name, namespace, asked.uuid)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rescan {
    name: String,
}

/// Applies the current size of a bdev's file or device. If a namespace uses the bdev, the target
/// notifies its hosts.
fn aio_rescan(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: Rescan = parse(params)?;
    let view = rpc.view();
    let bdev = view.bdev(&asked.name).filter(|bdev| bdev.kind == BdevKind::Aio);
    let bdev = bdev.ok_or(RpcError::from(Errno::NoDevice))?;
    let file = bdev.opened.as_ref().and_then(|opened| opened.file.clone());
    let file = file.ok_or_else(|| invalid(format!("{}: the bdev is not open", asked.name)))?;
    let measure = move || Ok(file.measure().map_err(|error| error.to_string()));
    let measured = table.patience.with(Aside::File, &asked.name, measure);
    measured.map_err(|sentence| RpcError::from(Errno::Busy).because(sentence))?.map_err(invalid)?;
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UringCreate {
    name: String,
    filename: String,
    block_size: Option<u32>,
    uuid: Option<Uuid>,
}

fn uring_create(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: UringCreate = parse(params)?;
    let namespace = file(&table.patience, &asked.filename, asked.block_size, false)?;
    create(rpc, table, BdevKind::Uring, asked.name, namespace, asked.uuid)
}

/// The namespace settings of a file or block device. Returns an error if it cannot be opened.
fn file(
    patience: &OpenTimeouts,
    name: &str,
    block_size: Option<u32>,
    read_only: bool,
) -> Result<Namespace, RpcError> {
    let path = std::path::absolute(Path::new(name)).map_err(invalid)?;
    let aside = path.clone();
    // Do not open a FIFO or a character device: that could hang or have side effects.
    let open = move |found: Metadata| match found.is_file() || found.file_type().is_block_device() {
        true => OpenOptions::new().read(true).write(!read_only).open(&aside)?.metadata(),
        false => Err(io::Error::other("the path is neither a file nor a block device")),
    };
    let at = path.clone();
    let found = patience.with(Aside::Disk, name, move || Ok(std::fs::metadata(at).and_then(open)));
    let found = found.map_err(|sentence| RpcError::from(Errno::Busy).because(sentence))?;
    let found = found.map_err(|error| {
        let errno = match error.kind() {
            io::ErrorKind::NotFound => Errno::NotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Errno::AccessDenied
            }
            _ => Errno::Invalid,
        };
        RpcError::from(errno).because(format!("{name}: {error}"))
    })?;
    let block_size = match block_size.filter(|&size| size > 0) {
        Some(size) => size,
        None if found.is_file() => {
            return Err(invalid("block_size: a file has no block size: give 512 or 4096"));
        }
        None => 512,
    };
    check_block_size(block_size)?;
    let path = path.to_str().ok_or_else(|| invalid("filename: must be UTF-8"))?;
    // With this prefix, the file name may contain a colon.
    let path = format!("file:{path}");
    Ok(Namespace { block_size, read_only, ..Namespace::new(path) })
}

/// Opens the storage of a bdev, and registers the bdev.
fn create(
    rpc: &SpdkRpc,
    table: &mut Table,
    kind: BdevKind,
    name: String,
    mut namespace: Namespace,
    uuid: Option<Uuid>,
) -> Answer {
    rpc.bdevs.check_name(&name)?;
    let (opener, named) = (Arc::clone(&table.opener), namespace.clone());
    let open = move || Ok(opener.open(&named));
    let opened = table.patience.with(Aside::Disk, &namespace.path, open);
    let opened = opened.map_err(|sentence| RpcError::from(Errno::Busy).because(sentence))?;
    let opened =
        opened.map_err(|why| RpcError::from(errno(kind, why.cause)).because(why.sentence))?;
    let uuid = uuid.unwrap_or_else(|| identity(&opened.identity, &name));
    namespace.uuid = Some(uuid);
    let opened = Some(opened);
    let bases = Vec::new();
    let bdev = Bdev { name: name.clone(), kind, uuid, namespace, opened, bases, strip_kib: 0 };
    rpc.bdevs.add(bdev)?;
    Ok(json!(name))
}

/// SPDK's errno for a disk that cannot be opened.
fn errno(kind: BdevKind, cause: Cause) -> Errno {
    match cause {
        Cause::InUse => Errno::Busy,
        Cause::NotFound => Errno::NotFound,
        Cause::Denied => Errno::AccessDenied,
        // The caller has already checked the size, so the memory is exhausted.
        Cause::Invalid if kind == BdevKind::Malloc => Errno::OutOfMemory,
        Cause::Invalid => Errno::Invalid,
    }
}

/// The UUID that is stored with the data, or one derived from the storage's identity and the bdev's
/// name.
fn identity(identity: &str, name: &str) -> Uuid {
    Uuid::parse_str(identity).unwrap_or_else(|_| {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{identity}\n{name}").as_bytes())
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RaidCreate {
    name: String,
    raid_level: String,
    base_bdevs: Vec<String>,
    strip_size_kb: Option<u32>,
    uuid: Option<Uuid>,
    #[serde(default)]
    superblock: bool,
}

fn raid_create(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: RaidCreate = parse_raid(params)?;
    rpc.bdevs.check_name(&asked.name)?;
    let failed = |errno: Errno, sentence: &str| {
        let what = format!("Failed to create RAID bdev {}", asked.name);
        Err(errno.within(&what).because(sentence))
    };
    if !matches!(asked.raid_level.as_str(), "raid0" | "0") || asked.superblock {
        return failed(Errno::Invalid, "farblock supports only raid0 without a superblock");
    }
    let strip_kib = asked.strip_size_kb.unwrap_or_default();
    if !strip_kib.is_power_of_two() {
        return failed(Errno::Invalid, "strip_size_kb: must be a power of two");
    }
    let view = rpc.view();
    let mut bases = Vec::new();
    for name in &asked.base_bdevs {
        let base = match view.bdev(name) {
            None => return failed(Errno::NoDevice, &format!("bdev {name} does not exist")),
            Some(base) if is_claimed(&view, base) => {
                return failed(Errno::NotPermitted, &format!("{name} is in use"));
            }
            Some(base) => base.clone(),
        };
        if base.kind == BdevKind::Raid || base.namespace.path.contains(',') {
            let sentence = format!(
                "{name}: a base bdev cannot be a RAID bdev, or a file with a comma in its name"
            );
            return failed(Errno::Invalid, &sentence);
        }
        // A namespace may have locked the file after this bdev opened it.
        if let Some(file) = base.opened.as_ref().and_then(|opened| opened.file.clone()) {
            let lock = move || file.lock().map_err(|error| error.to_string());
            if let Err(sentence) = table.patience.with(Aside::File, name, lock) {
                return failed(Errno::Busy, &sentence);
            }
        }
        if bases.iter().any(|other: &Bdev| other.name == base.name) {
            return failed(Errno::Invalid, &format!("{name} is listed twice"));
        }
        bases.push(base);
    }
    match striped(&asked, strip_kib, bases) {
        Ok(bdev) => rpc.bdevs.add(bdev).map(|()| json!(true)),
        Err(sentence) => failed(Errno::Invalid, &sentence),
    }
}

fn striped(asked: &RaidCreate, strip_kib: u32, bases: Vec<Bdev>) -> Result<Bdev, String> {
    let stores = bases.iter().filter_map(|base| base.opened.as_ref());
    let stores: Vec<_> = stores.map(|opened| Arc::clone(&opened.namespace)).collect();
    let stripe = Stripe::new(stores, u64::from(strip_kib) << 10);
    let stripe = stripe.map_err(|error| error.to_string())?;
    let geometry = stripe.geometry();
    let paths: Vec<_> = bases.iter().map(|base| base.namespace.path.as_str()).collect();
    let path = format!("stripe:{strip_kib}KiB,{}", paths.join(","));
    let uuids: Vec<_> = bases.iter().map(|base| base.uuid.to_string()).collect();
    let uuid = asked.uuid.unwrap_or_else(|| identity(&uuids.join("\n"), &path));
    let namespace = Namespace {
        block_size: geometry.block_size,
        read_only: geometry.read_only,
        uuid: Some(uuid),
        ..Namespace::new(path)
    };
    let namespace_of = Arc::new(stripe);
    let identity = uuid.to_string();
    let opened = Opened::alone(namespace_of, identity);
    Ok(Bdev {
        name: asked.name.clone(),
        kind: BdevKind::Raid,
        uuid,
        namespace,
        opened: Some(opened),
        bases: bases.into_iter().map(|base| base.name).collect(),
        strip_kib,
    })
}

pub(super) fn is_claimed(view: &View, bdev: &Bdev) -> bool {
    view.uses_of(&bdev.name).next().is_some() || view.raid_over(&bdev.name).is_some()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    name: String,
}

fn delete(rpc: &SpdkRpc, table: &Table, kind: BdevKind, params: Params) -> Answer {
    let asked: Delete = parse(params)?;
    let view = rpc.view();
    match view.bdev(&asked.name).filter(|bdev| bdev.kind == kind).cloned() {
        Some(bdev) => remove(rpc, table, view, bdev),
        None => Err(Errno::NoDevice.into()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "farblock writes no superblocks")]
struct RaidDelete {
    name: String,
    clear_sb: Option<IgnoredAny>,
}

fn raid_delete(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: RaidDelete = parse_raid(params)?;
    let view = rpc.view();
    match view.bdev(&asked.name).filter(|bdev| bdev.kind == BdevKind::Raid).cloned() {
        Some(bdev) => remove(rpc, table, view, bdev),
        None => Err(RpcError::new(-19, format!("raid bdev {} not found", asked.name))),
    }
}

/// Deletes a bdev, after the namespaces and the RAID bdev that use it.
fn remove(rpc: &SpdkRpc, table: &Table, view: View, bdev: Bdev) -> Answer {
    let mut names = vec![bdev.name.clone()];
    names.extend(view.raid_over(&bdev.name).map(|raid| raid.name.clone()));
    let uses: Vec<_> = names.iter().flat_map(|name| view.uses_of(name)).collect();
    if !uses.is_empty() {
        let edit = |document: &mut farblock_state::Document| {
            for one in uses {
                if let Some(subsystem) = document.subsystems.get_mut(&one.nqn) {
                    subsystem.namespaces.remove(&one.nsid);
                }
            }
        };
        rpc.change(edit).map_err(refused(Errno::Busy.into()))?;
    }
    let (removed, name) = (rpc.bdevs.remove(&names), bdev.name.clone());
    table.patience.close(&name, (removed, view, bdev));
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "no bdev of farblock appears asynchronously")]
struct GetBdevs {
    name: Option<String>,
    timeout: Option<IgnoredAny>,
}

fn get_bdevs(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: GetBdevs = parse(params)?;
    let view = rpc.view();
    match &asked.name {
        None => Ok(view.bdevs.iter().map(|bdev| shown(&view, bdev)).collect()),
        Some(name) => match view.bdev(name) {
            Some(bdev) => Ok(json!([shown(&view, bdev)])),
            None => Err(Errno::NoDevice.into()),
        },
    }
}

fn shown(view: &View, bdev: &Bdev) -> Value {
    let namespace = &bdev.namespace;
    let claimed = is_claimed(view, bdev);
    let mut shown = json!({
        "name": bdev.name,
        "aliases": [bdev.uuid.to_string()],
        "product_name": bdev.kind.product(),
        "block_size": namespace.block_size,
        "num_blocks": view.blocks(bdev),
        "uuid": bdev.uuid.to_string(),
        "assigned_rate_limits": qos_calls::shown(view, bdev),
        "claimed": claimed,
        "zoned": false,
        "supported_io_types": {
            "read": true, "write": !namespace.read_only, "unmap": !namespace.read_only,
            "flush": true, "reset": true, "write_zeroes": !namespace.read_only,
            "zcopy": false, "compare": true, "abort": true,
        },
        "driver_specific": specific(bdev),
    });
    if claimed {
        shown["claim_type"] = json!("exclusive_write");
    }
    shown
}

/// The fields of an answer that are specific to the kind of bdev.
fn specific(bdev: &Bdev) -> Value {
    let path = &bdev.namespace.path;
    let filename = path.strip_prefix("file:").unwrap_or(path);
    match bdev.kind {
        BdevKind::Malloc | BdevKind::Null | BdevKind::Other => json!({}),
        BdevKind::Aio => json!({ "aio": {
            "filename": filename,
            "block_size_override": true,
            "readonly": bdev.namespace.read_only,
            "fallocate": false,
        } }),
        BdevKind::Uring => json!({ "uring": { "filename": filename } }),
        BdevKind::Raid => json!({ "raid": {
            "uuid": bdev.uuid.to_string(),
            "strip_size_kb": bdev.strip_kib,
            "state": "online",
            "raid_level": "raid0",
            "superblock": false,
            "num_base_bdevs": bdev.bases.len(),
            "num_base_bdevs_discovered": bdev.bases.len(),
            "num_base_bdevs_operational": bdev.bases.len(),
"base_bdevs_list": base_list(bdev),
        } }),
    }
}

fn base_list(bdev: &Bdev) -> Value {
    bdev.bases.iter().map(|name| json!({ "name": name })).collect()
}
