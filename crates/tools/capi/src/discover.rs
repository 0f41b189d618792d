//! Discovery of the disks that a machine shares.

use crate::fork::Process;
use crate::memory::{give, handle, text, write_sized};
use crate::options::{self, fb_options};
use crate::status::{Failure, fb_status, guard};
use farblock_host::url::{RDMA_SCHEME, SCHEME};
use farblock_host::{DiscoveryEntry, Error, Options, Url, discover, entry_url};
use std::ffi::{CString, c_char};
use std::ptr::null;

/// The discovery port, and the port on which `farblock serve` also answers.
const PORTS: [u16; 2] = [8009, 4420];

/// The answer of a discovery service.
pub struct fb_discovery {
    entries: Vec<Texts>,
}

/// The texts of an entry. The structure of the entry points to them.
struct Texts {
    url: Option<CString>,
    nqn: CString,
    address: CString,
    service: CString,
    kind: u32,
    transport: u32,
}

/// A discovery entry: a subsystem or another service. Set `size` to `sizeof(fb_entry)` before the
/// call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_entry {
    /// Set this to `sizeof(fb_entry)`. The library then knows your version of the structure.
    pub size: usize,
    /// The URL for fb_connect, without a namespace. Null if fb_connect cannot use the entry. The
    /// URL is printable ASCII. The other texts come from the remote side and may have any
    /// characters. All texts of the entry are valid until fb_discovery_free.
    pub url: *const c_char,
    /// The subsystem's NQN.
    pub nqn: *const c_char,
    /// The entry's address (TRADDR).
    pub address: *const c_char,
    /// The entry's port (TRSVCID).
    pub service: *const c_char,
    /// The entry's type (SUBTYPE: 1 another discovery service, 2 a subsystem, 3 this service).
    pub kind: u32,
    /// The entry's transport (TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP).
    pub transport: u32,
}

/// Asks the discovery service at `address`, a `host` or `host:port`, for its entries. The prefix
/// `rdma:` selects NVMe/RDMA. Without a port, the call tries port 8009 and then port 4420.
/// `options` may be null; its options for paths have no effect here.
///
/// # Safety
/// Each pointer must be null or valid: `address` for a text, `options` for options, `discovery` for
/// the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_discover(
    address: *const c_char,
    options: *const fb_options,
    discovery: *mut *mut fb_discovery,
) -> fb_status {
    guard(|| {
        Process::current();
        // SAFETY: the caller promises valid pointers.
        let (address, given) = unsafe {
            give(discovery, std::ptr::null_mut(), "discovery")?;
            (text(address, "the address")?, options::read(options)?)
        };
        let address = address.to_owned();
        let entries = given.waiting.run(move || ask(&address, &given.disk.connection))?;
        let found = Box::new(fb_discovery { entries: entries.iter().map(Texts::new).collect() });
        // SAFETY: the caller promises a valid pointer.
        unsafe { give(discovery, Box::into_raw(found), "discovery") }
    })
}

/// Writes the entry with this `index`, which counts from 0. Returns FB_STATUS_RANGE if there is no
/// such entry.
///
/// # Safety
/// Each pointer must be null or valid: `discovery` for a discovery, `entry` for at least `size`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_discovery_entry(
    discovery: *const fb_discovery,
    index: u32,
    entry: *mut fb_entry,
) -> fb_status {
    guard(|| {
        // SAFETY: the caller promises a valid pointer.
        let entries = &unsafe { handle(discovery, "discovery") }?.entries;
        let Some(texts) = entries.get(index as usize) else {
            let text = format!("the discovery has no entry {index}: it has {}", entries.len());
            return Err(Failure::new(fb_status::Range, text));
        };
        // SAFETY: the caller promises a valid pointer.
        unsafe { write_sized(entry, &texts.entry(), "fb_entry") }
    })
}

/// Frees a discovery. Does nothing if `discovery` is null.
///
/// # Safety
/// `discovery` must be null, or a discovery that no call uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_discovery_free(discovery: *mut fb_discovery) {
    guard(|| {
        if !discovery.is_null() {
            // SAFETY: the caller promises a valid discovery.
            unsafe { handle(discovery, "discovery") }?;
            // SAFETY: `fb_discover` made it from a box, and the caller promises that it is not
            // freed yet.
            drop(unsafe { Box::from_raw(discovery) });
        }
        Ok(())
    });
}

fn ask(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Failure> {
    let (scheme, place) = match address.strip_prefix("rdma:") {
        Some(place) => (RDMA_SCHEME, place),
        None => (SCHEME, address),
    };
    let url: Url =
        format!("{scheme}{place}").parse().map_err(|error| Failure::from(Error::Url(error)))?;
    if url.subsystem.is_some() {
        return Err(Failure::argument("the address must be HOST or HOST:PORT, without a name"));
    }
    let mut failure = Failure::argument("the list of discovery ports is empty");
    let ports = url.port.map_or(PORTS.to_vec(), |port| vec![port]);
    for port in ports {
        let place = Url { port: Some(port), ..url.clone() };
        match discover(&place.service(), options) {
            Ok(entries) => return Ok(entries),
            Err(error) => failure = Failure::from(error),
        }
    }
    Err(failure)
}

impl Texts {
    fn new(entry: &DiscoveryEntry) -> Texts {
        let text = |text: &str| CString::new(text.replace('\0', "?")).unwrap_or_default();
        Texts {
            url: entry_url(entry).map(|url| text(&url.to_string())),
            nqn: text(&entry.subnqn),
            address: text(&entry.address),
            service: text(&entry.service),
            kind: entry.kind.0.into(),
            transport: entry.transport.0.into(),
        }
    }

    fn entry(&self) -> fb_entry {
        fb_entry {
            size: size_of::<fb_entry>(),
            url: self.url.as_ref().map_or(null(), |url| url.as_ptr()),
            nqn: self.nqn.as_ptr(),
            address: self.address.as_ptr(),
            service: self.service.as_ptr(),
            kind: self.kind,
            transport: self.transport,
        }
    }
}
