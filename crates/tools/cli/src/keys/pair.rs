//! `farblock keys pair`: prints the commands that install a key for a host and a subsystem.

use super::{Keys, read};
use crate::args::PairArgs;
use crate::error::Result;
use crate::output;
use crate::serve::key_reference;
use farblock_program::shell::quoted;
use std::fmt::Write as _;
use std::path::Path;

/// Makes the key if the file does not exist, and prints the commands for both ends. The output does
/// not contain the key.
pub(super) fn pair(args: &PairArgs) -> Result<()> {
    // An existing file of the default name may contain the key of another pair. So this command
    // uses such a file only if the user names it.
    let usual = Path::new(if args.tls { "tls.key" } else { "host.key" });
    let file = args.file.as_deref().unwrap_or(usual);
    let advice = match args.file {
        None => "to use it, name it on the command line, or name another file",
        Some(_) => super::NAMED,
    };
    if args.file.is_none() || !file.exists() {
        super::write_new(file, &super::made(args.tls, None, args.hash)?, advice)?;
    }
    let words = Words {
        file: quoted(&file.to_string_lossy()),
        absolute: quoted(&key_reference(file)),
        host: quoted(&args.host),
        subsystem: quoted(&args.subsystem),
        url: quoted(&format!("nvme+tcp://TARGET/{}?hostnqn={}", args.subsystem, args.host)),
    };
    let text = match read(file)? {
        Keys::Secrets(_) => words.secret(),
        Keys::Tls(_) => words.tls(),
    };
    output::print(&text)
}

/// The names, quoted for a shell.
struct Words {
    file: String,
    absolute: String,
    host: String,
    subsystem: String,
    url: String,
}

impl Words {
    fn secret(&self) -> String {
        let Self { file, absolute, host, subsystem, url } = self;
        let show = format!("farblock keys show --secret {file}");
        let folder = format!("/sys/kernel/config/nvmet/hosts/{host}");
        let allowed = format!("/sys/kernel/config/nvmet/subsystems/{subsystem}/allowed_hosts/");
        let mut text = self.begin("a secret for authentication (DH-HMAC-CHAP)");
        let _ = write!(
            text,
            "
At the target, one of these:
  farblock serve DISK --nqn {subsystem} --listen 0.0.0.0:4420 --host-key {host}={file}
  farblock ctl allow-host {subsystem} {host} --key {file}
  Linux (nvmet), as root; the subsystem's attr_allow_any_host must be 0:
    mkdir -p {folder} && {show} > {folder}/dhchap_key
    ln -s {folder} {allowed}
  SPDK:
    rpc.py keyring_file_add_key host0 {absolute}
    rpc.py nvmf_subsystem_add_host {subsystem} {host} --dhchap-key host0

At the host, one of these (TARGET is the target's address):
  farblock id {url} --dhchap-secret {file}
  nvme connect -t tcp -a TARGET -s 4420 -n {subsystem} -q {host} --dhchap-secret \"$({show})\"
  SPDK:
    rpc.py keyring_file_add_key host0 {absolute}
    rpc.py bdev_nvme_attach_controller -b Nvme0 -t tcp -f ipv4 -a TARGET -s 4420 \\
      -n {subsystem} -q {host} --dhchap-key host0
"
        );
        text
    }

    fn tls(&self) -> String {
        let Self { file, absolute, host, subsystem, url } = self;
        let show = format!("farblock keys show --secret {file}");
        let names = format!("--hostnqn={host} --subsysnqn={subsystem}");
        let insert = format!(
            "nvme check-tls-key --insert --identity=1 {names} \\\n      --keydata=\"$({show})\""
        );
        let mut text = self.begin("a key for TLS 1.3");
        let _ = write!(
            text,
            "
At the target, one of these:
  farblock serve DISK --nqn {subsystem} --listen 0.0.0.0:4420 --tls-key {host}={file}
  farblock ctl allow-host {subsystem} {host} --tls-key {file}
  Linux (nvmet), as root, with tlshd running (keyrings=.nvme in tlshd.conf):
    {insert}
    echo tls1.3 > /sys/kernel/config/nvmet/ports/PORT/addr_tsas   (before you link subsystems)
  SPDK:
    rpc.py keyring_file_add_key tls0 {absolute}
    rpc.py nvmf_subsystem_add_listener {subsystem} -t tcp -a TARGET -s 4420 --secure-channel
    rpc.py nvmf_subsystem_add_host {subsystem} {host} --psk tls0

At the host, one of these (TARGET is the target's address):
  farblock id {url} --tls-key {file}
  Linux, as root, with tlshd running (keyrings=.nvme in tlshd.conf):
    {insert}
    nvme connect -t tcp -a TARGET -s 4420 -n {subsystem} -q {host} --tls
  SPDK:
    rpc.py keyring_file_add_key tls0 {absolute}
    rpc.py bdev_nvme_attach_controller -b Nvme0 -t tcp -f ipv4 -a TARGET -s 4420 \\
      -n {subsystem} -q {host} --psk tls0

Both ends have the same key if this command prints the same identities there:
  farblock keys derive {file} --host {host} --subsystem {subsystem}
"
        );
        text
    }

    fn begin(&self, what: &str) -> String {
        let Self { file, host, subsystem, .. } = self;
        format!(
            "{file} is {what} between\n  host       {host}\n  subsystem  {subsystem}\nCopy it to \
             both ends over a secure channel, and let only its owner read it \
             (chmod 600 {file}).\n"
        )
    }
}
