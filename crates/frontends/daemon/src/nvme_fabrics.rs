//! Attaches a remote namespace as `/dev/nvmeXnY` through the kernel's own NVMe host. The disk needs
//! no farblock process.
//!
//! **Purpose.** [`connect`] writes connection options to `/dev/nvme-fabrics`, as nvme-cli does, and
//! finds the namespace's block device. The kernel reconnects without help, and the disk outlives
//! the calling process. This module requires root and the kernel module `nvme-tcp`.
//!
//! **Contract.** The functions validate all options before they write anything, because a comma or
//! line break in a value could add options that the user did not request. Errors are sentences for
//! users. Linux 5.17 and later list the options that they support. An option that is not on this
//! list is an error. [`Connection::disconnect`] fails while the disk is in use, unless forced, and
//! names the users. [`Connection::find`] finds an existing connection.
//!
//! With multipath, the kernel makes one block device of a namespace, even over several connections.
//! Disconnecting one of these connections removes only a path. Disconnecting fails even then if the
//! disk is in use, because the user may need every path.
//!
//! **Not implemented:** TLS, discovery, and transports other than TCP.

use farblock_frontend::modules;
use farblock_frontend::users::{self, Listed, User};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use zeroize::{Zeroize, Zeroizing};

const DEVICE: &str = "/dev/nvme-fabrics";
const MODULE: &str = "nvme-tcp";
const TRANSPORT: &str = "/sys/module/nvme_tcp";
const CONTROLLERS: &str = "/sys/class/nvme";

/// Maximum length of an NQN in bytes (NVMe Base 2.3, 4.7).
pub const MAX_NQN_BYTES: usize = 223;
/// Maximum size in bytes of the kernel's answer to a connect, and of its list of options.
const MAX_ANSWER_BYTES: u64 = 4096;
/// Time limit for a new controller's namespace to appear.
const APPEAR_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for programs such as udev, which open a new disk only briefly, to close it.
const LOOKING: Duration = Duration::from_secs(2);
/// Time limit for a controller's removal.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval.
const STEP: Duration = Duration::from_millis(20);

/// A DH-HMAC-CHAP secret (`DHHC-1:…:`). `Debug` does not show it, and the drop clears it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a secret, which must have nvme-cli's text form (`DHHC-1:…:`). Does not check the form.
    #[must_use]
    pub fn new(text: Zeroizing<String>) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The address and options of a connection, with the names of nvme-cli and the kernel. The kernel
/// chooses a value for each option that is `None`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The target's address.
    pub traddr: IpAddr,
    /// The target's port.
    pub trsvcid: u16,
    /// The subsystem's NQN.
    pub nqn: String,
    /// The namespace ID of the block device.
    pub nsid: u32,
    /// This host's NQN; by default the kernel generates one.
    pub hostnqn: Option<String>,
    /// This host's ID, a UUID. Requires `hostnqn`.
    pub hostid: Option<String>,
    /// The local address to connect from.
    pub host_traddr: Option<IpAddr>,
    /// Number of I/O queues.
    pub nr_io_queues: Option<u32>,
    /// Entries of an I/O queue.
    pub queue_size: Option<u32>,
    /// Seconds between keep-alives; 0 for none.
    pub keep_alive_tmo: Option<u32>,
    /// Seconds between reconnect attempts.
    pub reconnect_delay: Option<u32>,
    /// Seconds until the kernel gives up a lost controller; -1 for never.
    pub ctrl_loss_tmo: Option<i32>,
    /// Seconds after which requests to a lost controller fail; -1 for never.
    pub fast_io_fail_tmo: Option<i32>,
    /// Whether to use header digests.
    pub hdr_digest: bool,
    /// Whether to use data digests.
    pub data_digest: bool,
    /// This host's secret (DH-HMAC-CHAP).
    pub dhchap_secret: Option<Secret>,
    /// The controller's secret, for mutual authentication. Requires `dhchap_secret`.
    pub dhchap_ctrl_secret: Option<Secret>,
}

impl Options {
    /// Creates options with the required values, and the kernel's defaults for all others.
    #[must_use]
    pub fn new(traddr: IpAddr, trsvcid: u16, nqn: impl Into<String>, nsid: u32) -> Options {
        Options {
            traddr,
            trsvcid,
            nqn: nqn.into(),
            nsid,
            hostnqn: None,
            hostid: None,
            host_traddr: None,
            nr_io_queues: None,
            queue_size: None,
            keep_alive_tmo: None,
            reconnect_delay: None,
            ctrl_loss_tmo: None,
            fast_io_fail_tmo: None,
            hdr_digest: false,
            data_digest: false,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
        }
    }

    /// Returns the options as the kernel expects them. Fails if an option is invalid.
    fn words(&self) -> Result<Words, Error> {
        check_nqn("nqn", &self.nqn)?;
        self.hostnqn.as_deref().map_or(Ok(()), |nqn| check_nqn("hostnqn", nqn))?;
        self.hostid.as_deref().map_or(Ok(()), check_hostid)?;
        let invalid =
            |name, value: &dyn fmt::Display, why| Err(Error::Option(name, value.to_string(), why));
        if self.trsvcid == 0 {
            return invalid("trsvcid", &0, "is not a port");
        }
        // The kernel's limits from `fabrics.h`.
        if let Some(size) = self.queue_size.filter(|size| !(16..=1024).contains(size)) {
            return invalid("queue_size", &size, "is not in 16 to 1024");
        }
        if self.nr_io_queues == Some(0) {
            return invalid("nr_io_queues", &0, "is not a number of queues");
        }
        if self.reconnect_delay == Some(0) {
            return invalid("reconnect_delay", &0, "is not a number of seconds");
        }
        for (name, seconds) in
            [("ctrl_loss_tmo", self.ctrl_loss_tmo), ("fast_io_fail_tmo", self.fast_io_fail_tmo)]
        {
            if let Some(seconds) = seconds.filter(|seconds| *seconds < -1) {
                return invalid(name, &seconds, "is neither a number of seconds nor -1");
            }
        }
        let mut words = vec![
            ("transport", "tcp".to_owned()),
            ("traddr", self.traddr.to_string()),
            ("trsvcid", self.trsvcid.to_string()),
            ("nqn", self.nqn.clone()),
        ];
        let mut push = |name, value: Option<String>| words.extend(value.map(|value| (name, value)));
        push("hostnqn", self.hostnqn.clone());
        push("hostid", self.hostid.clone());
        push("host_traddr", self.host_traddr.map(|address| address.to_string()));
        push("nr_io_queues", self.nr_io_queues.map(|value| value.to_string()));
        push("queue_size", self.queue_size.map(|value| value.to_string()));
        push("keep_alive_tmo", self.keep_alive_tmo.map(|value| value.to_string()));
        push("reconnect_delay", self.reconnect_delay.map(|value| value.to_string()));
        push("ctrl_loss_tmo", self.ctrl_loss_tmo.map(|value| value.to_string()));
        push("fast_io_fail_tmo", self.fast_io_fail_tmo.map(|value| value.to_string()));
        push("hdr_digest", self.hdr_digest.then(String::new));
        push("data_digest", self.data_digest.then(String::new));
        for (name, secret) in [
            ("dhchap_secret", &self.dhchap_secret),
            ("dhchap_ctrl_secret", &self.dhchap_ctrl_secret),
        ] {
            let Some(Secret(text)) = secret else { continue };
            if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
                let hidden = "(a secret)".to_owned();
                return Err(Error::Option(name, hidden, "is not of the form DHHC-1:hh:BASE64:"));
            }
            words.push((name, text.to_string()));
        }
        Ok(Words(words))
    }
}

/// Options as the kernel expects them. The drop clears all values, because some are secrets.
#[derive(PartialEq, Eq)]
struct Words(Vec<(&'static str, String)>);

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|(_, value)| value.zeroize());
    }
}

/// The reason why the kernel's host failed. `Display` includes the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An invalid option: its name, its value, and the reason.
    Option(&'static str, String, &'static str),
    /// The kernel's NVMe over Fabrics host is missing or not loaded.
    NoModule,
    /// The caller is not root.
    NotAllowed,
    /// This kernel does not support an option.
    UnknownOption(&'static str),
    /// The kernel already has this connection.
    Connected(String),
    /// The target is unreachable, or refused the connection.
    Target(String, io::Error),
    /// The subsystem has no namespace with this ID that the kernel can use.
    NoNamespace(String, u32),
    /// The kernel has no connection to this subsystem or controller.
    NoConnection(String),
    /// The disk is in use by these users, as far as they are visible. Nothing has changed.
    InUse(PathBuf, Vec<User>),
    /// Another kernel error, with the failed action.
    System(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Option(name, value, why) => write!(f, "{name} cannot be {value:?}: it {why}"),
            Error::NoModule => write!(
                f,
                "the kernel has not loaded NVMe over TCP: run 'modprobe {MODULE}' as root, or \
                 choose another --as if there is no such module"
            ),
            Error::NotAllowed => {
                f.write_str("only root can use the kernel's NVMe host: run this as root")
            }
            Error::UnknownOption(name) => write!(
                f,
                "this kernel's NVMe host does not support the option {name}: leave it out, or \
                 choose another --as"
            ),
            Error::Connected(nqn) => write!(
                f,
                "the kernel is already connected to {nqn} at that address: 'nvme list-subsys' \
                 shows the device"
            ),
            Error::Target(nqn, error) => write!(
                f,
                "the kernel cannot connect to {nqn}: {error}; its log ('dmesg') may say more"
            ),
            Error::NoNamespace(nqn, nsid) => {
                write!(
                    f,
                    "{nqn} has no namespace {nsid} for the kernel: check the target's namespaces"
                )
            }
            Error::NoConnection(what) => write!(f, "the kernel has no connection to {what}"),
            Error::InUse(path, users) => {
                write!(f, "{} is in use: {}", path.display(), Listed(users))
            }
            Error::System(what, error) => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// A connection of the kernel. The connection survives a drop of this value;
/// [`Connection::disconnect`] closes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The controller's number; for example, 3 is `/dev/nvme3`.
    pub instance: u32,
    /// The NQN of the subsystem. The kernel may reuse the number for another subsystem.
    pub nqn: String,
    /// The namespace ID.
    pub nsid: u32,
    /// The namespace's block device.
    pub device: PathBuf,
}

/// Makes the kernel connect, and waits until the namespace's block device exists.
///
/// # Errors
/// After an error no new connection remains.
pub fn connect(options: &Options) -> Result<Connection, Error> {
    let words = options.words()?;
    modules::load_for(Path::new(DEVICE), MODULE);
    let mut file = open()?;
    check_known(&words, &known_options()?)?;
    let text = Zeroizing::new(emit(&words));
    file.write_all(text.as_bytes()).map_err(|error| refusal(&options.nqn, error))?;
    let read = "read the kernel's answer about the connection";
    let mut answer = String::new();
    file.take(MAX_ANSWER_BYTES)
        .read_to_string(&mut answer)
        .map_err(|error| Error::System(read, error))?;
    let instance = parse_answer(&answer).ok_or_else(|| {
        Error::System(read, io::Error::other(format!("the answer is {answer:?}")))
    })?;
    let deadline = Instant::now() + APPEAR_TIMEOUT;
    loop {
        if let Some(device) = device_of(instance, options.nsid) {
            let (nqn, nsid) = (options.nqn.clone(), options.nsid);
            return Ok(Connection { instance, nqn, nsid, device });
        }
        if Instant::now() > deadline {
            if let Err(error) = remove(instance) {
                tracing::warn!("{error}");
            }
            return Err(Error::NoNamespace(options.nqn.clone(), options.nsid));
        }
        thread::sleep(STEP);
    }
}

impl Connection {
    /// Finds a connection by its controller's number and subsystem. If the namespace has no block
    /// device at present, the result contains `device`.
    ///
    /// # Errors
    /// Fails if the controller does not exist, or its number now belongs to another subsystem.
    pub fn find(instance: u32, nqn: &str, nsid: u32, device: &Path) -> Result<Connection, Error> {
        if shown(instance, "subsysnqn").as_deref() != Some(nqn) {
            return Err(Error::NoConnection(nqn.to_owned()));
        }
        let device = device_of(instance, nsid).unwrap_or_else(|| device.to_path_buf());
        Ok(Connection { instance, nqn: nqn.to_owned(), nsid, device })
    }

    /// The controller's state in the kernel's words (`live`, `connecting`, …); `None` if the kernel
    /// has removed the controller.
    #[must_use]
    pub fn state(&self) -> Option<String> {
        self.is_there().then(|| shown(self.instance, "state")).flatten()
    }

    fn is_there(&self) -> bool {
        shown(self.instance, "subsysnqn").as_deref() == Some(&self.nqn)
    }

    /// The disk's users: mounts, stacked devices, swap, and processes that have the disk open.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        users::of_block_device(&self.device)
    }

    /// Flushes the device's writes to the target and makes the kernel disconnect, unless the disk
    /// is in use.
    ///
    /// With `force`, does not check for users. Users of the disk then get errors and lose unwritten
    /// data.
    ///
    /// # Errors
    /// Fails if the disk is in use, or no longer exists.
    pub fn disconnect(&self, force: bool) -> Result<(), Error> {
        if !self.is_there() {
            return Err(Error::NoConnection(self.nqn.clone()));
        }
        // While this process has the device open exclusively, no process can mount it.
        let claim = if force { None } else { self.claim()? };
        if let Some(device) = &claim {
            rustix::fs::fsync(device)
                .map_err(|error| Error::System("flush the disk", error.into()))?;
        }
        remove(self.instance)
    }

    /// Opens the device exclusively. Returns `None` if the device no longer exists.
    fn claim(&self) -> Result<Option<rustix::fd::OwnedFd>, Error> {
        let deadline = Instant::now() + LOOKING;
        // Retry: programs such as udev may close the device soon.
        loop {
            match self.users() {
                users if users.is_empty() => break,
                users if Instant::now() > deadline => {
                    return Err(Error::InUse(self.device.clone(), users));
                }
                _ => thread::sleep(STEP),
            }
        }
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&self.device, flags, Mode::empty()) {
            Ok(device) => Ok(Some(device)),
            Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(None),
            Err(_) => Err(Error::InUse(self.device.clone(), self.users())),
        }
    }
}

fn open() -> Result<File, Error> {
    File::options().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoModule,
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        _ => Error::System("open the kernel's NVMe host", error),
    })
}

/// The kernel's list of options, or an empty text if the kernel has no such list.
fn known_options() -> Result<String, Error> {
    let mut known = String::new();
    match open()?.take(MAX_ANSWER_BYTES).read_to_string(&mut known) {
        Ok(_) => Ok(known),
        // Before Linux 5.17 this file cannot be read before a connect.
        Err(error) => {
            tracing::debug!("the kernel does not list its options: {error}");
            Ok(String::new())
        }
    }
}

/// Checks the options against the kernel's list, which is `instance=-1,transport=%s,…,hdr_digest`.
/// A kernel without a list (before Linux 5.17) does not support authentication.
fn check_known(Words(words): &Words, known: &str) -> Result<(), Error> {
    let known: Vec<&str> =
        known.trim().split(',').map(|word| word.split('=').next().unwrap_or_default()).collect();
    let is_unknown = |name: &str| match known.contains(&"transport") {
        true => !known.contains(&name),
        false => name.starts_with("dhchap"),
    };
    match words.iter().find(|(name, _)| is_unknown(name)) {
        Some((name, _)) => Err(Error::UnknownOption(name)),
        None => Ok(()),
    }
}

fn emit(Words(words): &Words) -> String {
    let word = |(name, value): &(&str, String)| match value.as_str() {
        "" => (*name).to_owned(),
        value => format!("{name}={value}"),
    };
    words.iter().map(word).collect::<Vec<_>>().join(",")
}

/// Parses the controller's number in the kernel's answer, such as `instance=3,cntlid=1`.
fn parse_answer(answer: &str) -> Option<u32> {
    let word = |word: &str| word.strip_prefix("instance=")?.parse().ok();
    answer.trim().split(',').find_map(word)
}

fn refusal(nqn: &str, error: io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(Errno::ALREADY) => Error::Connected(nqn.to_owned()),
        Some(Errno::PERM | Errno::ACCESS) => Error::NotAllowed,
        // The kernel has the fabrics module, but cannot find the transport's module.
        Some(Errno::INVAL) if !Path::new(TRANSPORT).exists() => Error::NoModule,
        _ => Error::Target(nqn.to_owned(), error),
    }
}

fn check_nqn(name: &'static str, nqn: &str) -> Result<(), Error> {
    let why = if nqn.is_empty() || nqn.len() > MAX_NQN_BYTES {
        "must have 1 to 223 bytes"
    } else if nqn.contains(',') {
        "has a comma, which separates the kernel's options"
    } else if nqn.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "has spaces or control characters"
    } else {
        return Ok(());
    };
    Err(Error::Option(name, nqn.to_owned(), why))
}

fn check_hostid(id: &str) -> Result<(), Error> {
    let groups: Vec<usize> = id.split('-').map(str::len).collect();
    let digits = id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    if digits && groups == [8, 4, 4, 4, 12] {
        return Ok(());
    }
    Err(Error::Option("hostid", id.to_owned(), "is not a UUID"))
}

/// The value of a controller's attribute in sysfs.
fn shown(instance: u32, attribute: &str) -> Option<String> {
    let path = Path::new(CONTROLLERS).join(format!("nvme{instance}")).join(attribute);
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

/// The block device of a controller's namespace, or `None` if it does not exist yet.
fn device_of(instance: u32, nsid: u32) -> Option<PathBuf> {
    let controller = Path::new(CONTROLLERS).join(format!("nvme{instance}"));
    for entry in fs::read_dir(controller).ok()?.flatten() {
        let name = entry.file_name();
        let Some(disk) = name.to_str().and_then(|name| disk_name(name, instance)) else { continue };
        let shown = fs::read_to_string(entry.path().join("nsid")).ok();
        if shown.and_then(|nsid| nsid.trim_end().parse().ok()) != Some(nsid) {
            continue;
        }
        let device = Path::new("/dev").join(disk);
        return fs::metadata(&device)
            .is_ok_and(|file| file.file_type().is_block_device())
            .then_some(device);
    }
    None
}

/// Returns the disk's name for an entry in a controller's sysfs folder. With multipath, that folder
/// has paths: `nvme0c1n2` is the path of disk `nvme0n2` over controller 1.
fn disk_name(name: &str, instance: u32) -> Option<String> {
    let (front, namespace) = name.strip_prefix("nvme")?.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (subsystem, controller) = front.split_once('c').unwrap_or((front, front));
    let ours = is_number(controller) && controller.parse() == Ok(instance);
    (ours && is_number(subsystem) && is_number(namespace))
        .then(|| format!("nvme{subsystem}n{namespace}"))
}

/// Makes the kernel remove a controller, and waits until the controller has disappeared.
fn remove(instance: u32) -> Result<(), Error> {
    let controller = Path::new(CONTROLLERS).join(format!("nvme{instance}"));
    fs::write(controller.join("delete_controller"), "1").map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        io::ErrorKind::NotFound => Error::NoConnection(format!("nvme{instance}")),
        _ => Error::System("make the kernel disconnect", error),
    })?;
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    while controller.exists() && Instant::now() < deadline {
        thread::sleep(STEP);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(IpAddr::from([10, 0, 2, 2]), 4420, "nqn.2026-11.org.farblock:a", 1)
    }

    fn secret(text: &str) -> Secret {
        Secret::new(Zeroizing::new(text.to_owned()))
    }

    #[test]
    fn options_have_the_format_of_the_kernel() {
        let least = emit(&options().words().expect("valid words"));
        assert_eq!(
            least,
            "transport=tcp,traddr=10.0.2.2,trsvcid=4420,nqn=nqn.2026-11.org.farblock:a"
        );
        let all = Options {
            traddr: "fe80::1".parse().expect("an address"),
            hostnqn: Some("nqn.2026-11.org.farblock:host".into()),
            hostid: Some("01234567-89ab-cdef-0123-456789abcdef".into()),
            host_traddr: Some(IpAddr::from([10, 0, 2, 15])),
            nr_io_queues: Some(2),
            queue_size: Some(64),
            keep_alive_tmo: Some(5),
            reconnect_delay: Some(1),
            ctrl_loss_tmo: Some(-1),
            fast_io_fail_tmo: Some(30),
            hdr_digest: true,
            data_digest: true,
            dhchap_secret: Some(secret("DHHC-1:00:QUFB:")),
            dhchap_ctrl_secret: Some(secret("DHHC-1:00:QkJC:")),
            ..options()
        };
        assert!(!format!("{all:?}").contains("DHHC"), "{all:?}");
        assert_eq!(
            emit(&all.words().expect("valid words")),
            "transport=tcp,traddr=fe80::1,trsvcid=4420,nqn=nqn.2026-11.org.farblock:a,\
             hostnqn=nqn.2026-11.org.farblock:host,hostid=01234567-89ab-cdef-0123-456789abcdef,\
             host_traddr=10.0.2.15,nr_io_queues=2,queue_size=64,keep_alive_tmo=5,reconnect_delay=1,\
             ctrl_loss_tmo=-1,fast_io_fail_tmo=30,hdr_digest,data_digest,\
             dhchap_secret=DHHC-1:00:QUFB:,dhchap_ctrl_secret=DHHC-1:00:QkJC:"
        );
    }

    #[test]
    fn names_cannot_inject_options() {
        let refused = |options: &Options, word: &str| {
            let text = options.words().expect_err("the options are refused").to_string();
            assert!(text.contains(word), "{text}");
        };
        for nqn in ["", "a,trsvcid=1", "a\nb", "a b", "a\u{85}b", &"n".repeat(224)] {
            refused(&Options { nqn: nqn.into(), ..options() }, "nqn cannot be");
            refused(&Options { hostnqn: Some(nqn.into()), ..options() }, "hostnqn cannot be");
        }
        for id in
            ["", "x", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcde,"]
        {
            refused(&Options { hostid: Some(id.into()), ..options() }, "hostid cannot be");
        }
        for text in ["DHHC-1:00:QUFB:,nqn=b", "DHHC-1:00:\n"] {
            let options = Options { dhchap_secret: Some(secret(text)), ..options() };
            refused(&options, "dhchap_secret cannot be \"(a secret)\"");
        }
        refused(&Options { trsvcid: 0, ..options() }, "trsvcid");
        refused(&Options { queue_size: Some(15), ..options() }, "queue_size");
        refused(&Options { nr_io_queues: Some(0), ..options() }, "nr_io_queues");
        refused(&Options { reconnect_delay: Some(0), ..options() }, "reconnect_delay");
        refused(&Options { ctrl_loss_tmo: Some(-2), ..options() }, "ctrl_loss_tmo");
        refused(&Options { fast_io_fail_tmo: Some(-2), ..options() }, "fast_io_fail_tmo");
    }

    #[test]
    fn unknown_options_are_refused() {
        let known = "instance=-1,cntlid=-1,transport=%s,traddr=%s,trsvcid=%s,nqn=%s,hdr_digest\n";
        let words = options().words().expect("valid words");
        assert!(check_known(&words, known).is_ok());
        let words = Options { hdr_digest: true, ..options() }.words().expect("valid words");
        assert!(check_known(&words, known).is_ok());
        let words = Options { data_digest: true, ..options() }.words().expect("valid words");
        let refused = check_known(&words, known).expect_err("the options are refused");
        assert!(matches!(refused, Error::UnknownOption("data_digest")), "{refused}");
        // A kernel without a list of options is too old for authentication.
        assert!(check_known(&words, "").is_ok());
        let words = Options { dhchap_secret: Some(secret("DHHC-1:00:A:")), ..options() }.words();
        let refused =
            check_known(&words.expect("valid words"), "").expect_err("the options are refused");
        assert!(matches!(refused, Error::UnknownOption("dhchap_secret")), "{refused}");
    }

    #[test]
    fn answers_of_the_kernel_are_parsed() {
        assert_eq!(parse_answer("instance=3,cntlid=1\n"), Some(3));
        assert_eq!(parse_answer("cntlid=1,instance=12"), Some(12));
        for none in ["", "instance=", "instance=-1,cntlid=-1", "cntlid=1", "xinstance=1"] {
            assert_eq!(parse_answer(none), None, "{none}");
        }
    }

    #[test]
    fn disk_names_are_derived_from_sysfs_names() {
        assert_eq!(disk_name("nvme3n1", 3).as_deref(), Some("nvme3n1"));
        assert_eq!(disk_name("nvme0c3n12", 3).as_deref(), Some("nvme0n12"));
        for other in
            ["nvme0n1", "nvme0c0n1", "nvme3", "nvme3n", "nvmecn1", "nvme3n1p1", "ng3n1", "hwmon3"]
        {
            assert_eq!(disk_name(other, 3), None, "{other}");
        }
    }

    #[test]
    fn a_missing_kernel_connection_is_reported() {
        let found = Connection::find(u32::MAX, "nqn.a", 1, Path::new("/dev/none"));
        let error = found.expect_err("no such controller").to_string();
        assert_eq!(error, "the kernel has no connection to nqn.a");
    }
}
