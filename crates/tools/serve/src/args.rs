//! The command line of `serve`.

use clap::{Args, ValueHint};
pub(crate) use farblock_program::args::Global;
use farblock_program::values;
use farblock_state::Ana;
use farblock_state::Entrance;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Share files, block devices and RAM disks
///
/// The target has one subsystem, with one namespace for each PATH: the first PATH has ns=1, the
/// next one ns=2, and so on. The target runs until it receives SIGINT (Ctrl-C) or SIGTERM. Then it
/// completes the writes that it has accepted, and stops. A second signal stops it at once.
#[derive(Args, Debug)]
#[command(after_help = "\
What PATH can be:
  disk.img, /dev/sdb            a file or block device (file:PATH if PATH resembles another form)
  mem:1GiB                      a RAM disk (can use twice its size if hosts stop reading)
  null:1GiB                     a null device, which discards writes, for benchmarks
  stripe:64KiB,a.img,b.img      RAID 0 with chunks of 64 KiB
  concat:1GiB@a.img,b.img       a concatenation: 1 GiB of a.img, then b.img
  range:1GiB+64MiB,PATH         64 MiB of PATH, from offset 1 GiB
  mirror:a.img,URL              RAID 1; to create a mirror, append ?create
  rbd:POOL/IMAGE                a Ceph image; append @SNAPSHOT or ?conf=FILE&id=USER if needed
  delay:500us,PATH              PATH with a delay for each operation
  limit:1000/s,PATH             PATH with a rate limit, in operations or bytes (limit:64MiB/s,PATH)
  fault:100,PATH                PATH, where every 100th read and every 100th write fails
A disk inside one of these forms may be remote: nvme+tcp://HOST/NQN?ns=1

Examples:
  truncate -s 10G disk.img && farblock serve disk.img
  farblock serve /dev/sdb --listen 0.0.0.0:4420 --allow-host nqn.2014-08.org.nvmexpress:uuid:...
  farblock serve a.img b.img mem:1GiB --block-size 4096 --cores 0-3,6
  farblock serve --config farblock.toml")]
pub struct ServeArgs {
    /// Disks to share, each as one namespace
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    #[arg(required_unless_present_any = ["config", "check", "spdk_rpc"])]
    pub(crate) paths: Vec<OsString>,

    /// Read subsystems, namespaces, listeners, allowed hosts and cores from this TOML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["paths", "nqn", "read_only", "block_size", "allow_host"])]
    #[arg(conflicts_with_all = ["cores", "host_key", "controller_key"])]
    pub(crate) config: Option<PathBuf>,

    /// Address to listen on (repeatable); replaces the configuration's listeners; port 0 means a
    /// free port; rdma:ADDR:PORT listens over RDMA [default: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::entrance)]
    pub(crate) listen: Vec<Entrance>,

    /// ANA state that this target reports to hosts: optimized, non-optimized, inaccessible,
    /// persistent-loss or change. `farblock ctl set-ana` changes it later [default: optimized]
    #[arg(long, value_name = "STATE", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::ANA_STATES, values::ana))]
    pub(crate) ana: Option<Ana>,

    /// Range of the controller identifiers (CNTLIDs) that this target assigns, such as 1-999.
    /// Targets that share one subsystem need disjoint ranges [default: all identifiers]
    #[arg(long, value_name = "MIN-MAX", value_parser = values::controller_ids)]
    pub(crate) cntlids: Option<RangeInclusive<u16>>,

    /// Name of the subsystem [default: derived from this machine and the paths]
    #[arg(long, value_parser = values::nqn)]
    pub(crate) nqn: Option<String>,

    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Block size in bytes: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::BLOCK_SIZES, values::block_size))]
    pub(crate) block_size: u32,

    /// Accept only this host (repeatable) [default: any host]
    #[arg(long, value_name = "NQN", value_parser = values::nqn)]
    pub(crate) allow_host: Vec<String>,

    /// Accept only this host, which must authenticate with the secret in FILE (repeatable;
    /// `farblock keys new` makes a secret)
    #[arg(long, value_name = "NQN=FILE", value_parser = values::host_key)]
    pub(crate) host_key: Vec<(String, PathBuf)>,

    /// Authenticate this target to the hosts of --host-key, with the secret in FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "host_key")]
    pub(crate) controller_key: Option<PathBuf>,

    /// Accept only this host, which must use TLS 1.3 with the key in FILE (repeatable; `farblock
    /// keys new --tls` makes a key) or with a key in the kernel's keyring (NQN=keyring:). With
    /// --config the key is valid for every subsystem that allows the host
    #[arg(long, value_name = "NQN=FILE", value_parser = values::host_key)]
    pub(crate) tls_key: Vec<(String, PathBuf)>,

    /// TLS policy: required (all hosts must use TLS), allowed (hosts with a TLS key must use TLS)
    /// or plain (TLS is off). `farblock ctl set-tls` changes it later [default: required with
    /// --tls-key; otherwise the configuration's policy, or allowed]
    #[arg(long, value_name = "POLICY", hide_possible_values = true)]
    #[arg(value_parser = values::one_of(values::TLS_POLICIES, values::tls_policy))]
    pub(crate) tls: Option<farblock_state::Tls>,

    /// Processors to run on, such as 0-3,6. The target pins its threads to them [default: the
    /// processors of the NUMA node that has all disks and network cards; otherwise all processors,
    /// without pinning]
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    pub(crate) cores: Option<Cores>,

    /// Memory limit for the buffers of all hosts together, such as 64MiB [default: 512MiB, or a
    /// quarter of the process's memory limit]
    #[arg(long, value_name = "SIZE", value_parser = values::memory)]
    pub(crate) memory: Option<u64>,

    /// Check a configuration file without opening its disks, and exit
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["paths", "config", "listen", "nqn", "persist", "state_dir"])]
    pub(crate) check: Option<PathBuf>,

    /// Save run-time changes to this file, and load the file at the next start
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) persist: Option<PathBuf>,

    /// Folder for the reservations of disks that cannot store them (block devices, stripe sets,
    /// mirrors, Ceph images), and for the journals of remote disks in sets and mirrors. With this
    /// folder, reservations survive a power loss, and a late write of a killed target cannot
    /// overwrite newer data. Each target needs its own folder [default: $STATE_DIRECTORY, which
    /// systemd sets; otherwise none]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,

    /// Control socket, for farblock status, ctl and reload [default: a new socket in
    /// /run/farblock-serve or $XDG_RUNTIME_DIR/farblock-serve]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) control: Option<PathBuf>,

    /// Open no control socket
    #[arg(long, conflicts_with_all = ["control", "persist"])]
    pub(crate) no_control: bool,

    /// Socket for SPDK's RPC clients, such as spdk-rpc -s PATH, which can configure the whole
    /// target
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) spdk_rpc: Option<PathBuf>,

    /// Serve metrics in Prometheus' format at http://ADDR:PORT/metrics (with --https-cert at
    /// https://), without authentication
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::service_address)]
    pub(crate) metrics: Option<SocketAddr>,

    #[cfg(target_os = "linux")]
    #[command(flatten)]
    pub(crate) group: GroupArgs,

    #[command(flatten)]
    pub(crate) ui: UiArgs,

    #[command(flatten)]
    pub(crate) api: ApiArgs,

    #[cfg(target_os = "linux")]
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Print one line of JSON when listening, instead of a table
    #[arg(long)]
    pub json: bool,

    /// Stop when the standard input ends: for programs that run farblock as a child process
    #[arg(long, hide = true)]
    pub(crate) end_with_input: bool,
}

/// Options of a group of targets.
#[cfg(target_os = "linux")]
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct GroupArgs {
    /// Share the disks as a member of this group: two to sixteen targets with the same disks. One
    /// member at a time, the leader, does I/O on a disk; hosts with paths to several members follow
    /// it. Every member names the same disks in the same order: files on a shared file system,
    /// shared block devices or Ceph images
    #[arg(long, value_name = "NAME", requires = "etcd", value_parser = group_name)]
    #[arg(conflicts_with_all = ["config", "check", "spdk_rpc", "persist", "ana", "cntlids"])]
    pub(crate) group: Option<String>,

    /// Addresses of etcd, which keeps the group's records
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', requires = "group")]
    pub(crate) etcd: Vec<String>,

    /// Name of this member, the same after each restart [default: this machine's name]
    #[arg(long, value_name = "NAME", requires = "group", value_parser = group_name)]
    pub(crate) member: Option<String>,

    /// Address at which hosts reach this member (repeatable) [default: the addresses of --listen]
    #[arg(long, value_name = "HOST:PORT", requires = "group")]
    pub(crate) advertise: Vec<String>,

    /// Longest time for which a submitted write can still reach the disk. A new leader waits this
    /// long before it starts, because these disks cannot reject late writes of the earlier leader
    #[arg(long, value_name = "SECONDS", requires = "group")]
    #[arg(value_parser = values::seconds, default_value = "5")]
    pub(crate) disk_flight: std::time::Duration,

    #[command(flatten)]
    pub(crate) etcd_access: EtcdArgs,
}

/// Options for access to etcd.
#[cfg(target_os = "linux")]
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct EtcdArgs {
    /// User of etcd
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    pub(crate) etcd_user: Option<String>,

    /// File with the password of the user of etcd (mode 600), or credential:NAME
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "etcd_user")]
    pub(crate) etcd_password_file: Option<PathBuf>,

    /// File with the certificates of the authorities that sign etcd's certificates (PEM), for
    /// https:// addresses of etcd
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "etcd")]
    pub(crate) etcd_ca: Option<PathBuf>,

    /// File with this member's certificate for etcd (PEM: the certificate first, then its
    /// intermediates)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["etcd_key", "etcd_ca"])]
    pub(crate) etcd_cert: Option<PathBuf>,

    /// File with the private key of --etcd-cert (mode 600), or credential:NAME
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
}

#[cfg(target_os = "linux")]
pub(crate) fn group_name(text: &str) -> Result<String, String> {
    match farblock_group::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 63 lower-case letters, digits, dots and hyphens".to_owned()),
    }
}

/// Options of the dashboard.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct UiArgs {
    /// Serve a dashboard at this address, and print its URL. Without --https-cert the address must
    /// be on the loopback
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::service_address)]
    pub(crate) ui: Option<SocketAddr>,

    /// File with the dashboard's token, mode 600 [default: make a new token]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "ui")]
    pub(crate) ui_token: Option<PathBuf>,

    /// Allow changes to the target from the dashboard
    #[arg(long, requires = "ui")]
    pub(crate) ui_steer: bool,
}

/// Options of the control interface on TCP.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ApiArgs {
    /// Also serve the control socket's interface at this address, to clients with a token. Without
    /// --https-cert the address must be on the loopback
    #[arg(long, value_name = "ADDR:PORT", requires = "api_tokens")]
    #[arg(value_parser = values::service_address)]
    pub(crate) api: Option<SocketAddr>,

    /// File with the tokens (mode 600), or credential:NAME; each line is NAME read-only|admin TOKEN
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "api")]
    pub(crate) api_tokens: Option<PathBuf>,

    /// Serve --api, --ui and --metrics over HTTPS, with the certificate in this file (PEM: the
    /// certificate first, then its intermediates). The target reloads the file when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_key")]
    pub(crate) https_cert: Option<PathBuf>,

    /// File with the certificate's private key (mode 600), or credential:NAME
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "https_cert")]
    pub(crate) https_key: Option<PathBuf>,
}

/// The rights that the process gives up when it starts.
#[cfg(target_os = "linux")]
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct SandboxArgs {
    /// Confine the target: it can open only files below this folder, or only this device, at start
    /// and at run time (repeatable). It can also read the folders of the configuration file and of
    /// key files on the command line. If the configuration names key files in other folders, allow
    /// those folders, too [default: every file that this user may open]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) allow_path: Vec<PathBuf>,

    /// Keep all rights, for debugging: system calls, capabilities, and the right to start programs
    #[arg(long, conflicts_with = "allow_path")]
    pub(crate) no_sandbox: bool,
}

/// A list of processors. With a plain `Vec`, clap would define a repeatable option.
#[derive(Clone, Debug)]
pub(crate) struct Cores(pub(crate) Vec<usize>);

fn parse_cores(text: &str) -> Result<Cores, String> {
    values::cores(text).map(Cores)
}
