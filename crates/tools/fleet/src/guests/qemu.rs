//! One guest: a QEMU process, which exchanges lines with the controller on the guest's second
//! serial port.
//!
//! The guest has one processor, no network and one disk, a `vhost-user-blk-pci`. It shares its
//! memory with the agent that has the namespace. It boots a kernel and an initial file system from
//! `interop/linux/setup.sh`. `/init` in this file system runs the script [`JOB`], which QEMU passes
//! to the guest as the firmware configuration file `opt/farblock/job`.

use crate::guest_files::GuestFiles;
use crate::limits::{GUEST_LINE_BYTES, GUEST_MEMORY_MIB};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

/// The kernel arguments, the same as for the guests of `interop/linux`. They turn off features that
/// take much time under emulation.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 \
                                apparmor=0 cryptomgr.notests=1 random.trust_cpu=on no_timer_check \
                                tsc=reliable rcupdate.rcu_expedited=1 lpj=4000000";
/// The script that the initial file system runs.
const JOB: &str = include_str!("job.sh");

/// The processor or emulator that executes the instructions of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The processor of this machine executes them.
    Kvm,
    /// A program emulates the processor. The behavior is right, but the speed means nothing.
    Tcg,
}

impl Accelerator {
    /// The accelerator that this machine supports.
    pub(super) fn possible() -> Accelerator {
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if kvm.is_ok() { Accelerator::Kvm } else { Accelerator::Tcg }
    }

    fn argument(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=single",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Accelerator::Kvm => "run by the processor (KVM)",
            Accelerator::Tcg => "emulated",
        }
    }
}

/// A booting or running guest. QEMU is killed when this is dropped, or when this process exits.
pub(super) struct Guest {
    pub(super) name: String,
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
    /// The log files of QEMU and of the guest's kernel.
    logs: [PathBuf; 2],
}

impl Guest {
    /// Boots a guest with the disk behind the socket.
    pub(super) fn start(
        name: &str,
        files: &GuestFiles,
        accelerator: Accelerator,
        socket: &Path,
        folder: &Path,
    ) -> Result<Guest, String> {
        let cannot = |error: io::Error| format!("cannot start QEMU: {error}");
        let of = |what: &str| folder.join(format!("{}-{what}", name.replace(' ', "-")));
        let (job, errors, console) = (of("job"), of("qemu.log"), of("console.log"));
        fs::write(&job, JOB).map_err(cannot)?;
        let complaints = File::create(&errors).map_err(cannot)?;
        let mut program = Command::new(&files.qemu);
        arguments(&mut program, files, accelerator, [socket, &job, &console]);
        let mut command = crate::process::bound(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
        let mut child = command.spawn().map_err(cannot)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, said) = channel();
        let output = output.expect("the child's stream is a pipe");
        let name = name.to_owned();
        let (input, logs) = (input.expect("the child's stream is a pipe"), [errors, console]);
        let guest = Guest { name, child, input, said, logs };
        let read = move || {
            let mut reader = BufReader::new(output);
            while let Some(line) = line(&mut reader) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("fb-fleet-guest".to_owned());
        thread.spawn(read).map_err(cannot)?;
        Ok(guest)
    }

    /// Sends a line to the guest.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), String> {
        let told = self.input.write_all(format!("{line}\n").as_bytes());
        told.and_then(|()| self.input.flush()).map_err(|_| self.gone())
    }

    /// The next word from the guest, and its value. `None` if the guest has sent no further word.
    pub(super) fn heard(&mut self) -> Result<Option<(String, String)>, String> {
        loop {
            let line = match self.said.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty) => return self.goes_on().map(|()| None),
                Err(TryRecvError::Disconnected) => return Err(self.gone()),
            };
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "FAILED" => return Err(rest.to_owned()),
                "READY" | "MEASURED" | "VERIFIED" => {
                    return Ok(Some((word.to_owned(), rest.to_owned())));
                }
                _ => {} // other output of the guest's programs
            }
        }
    }

    /// The process ID of QEMU.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if KVM can no longer run the guest. The guest then stops, but QEMU does not
    /// exit, and its log is the only sign.
    fn goes_on(&self) -> Result<(), String> {
        let complaints = fs::read(&self.logs[0]).unwrap_or_default();
        failed_by_kvm(&String::from_utf8_lossy(&complaints)).map_or(Ok(()), Err)
    }

    fn gone(&mut self) -> String {
        let _ = self.child.wait();
        let last = self.logs.iter().find_map(|log| {
            let text = fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
        });
        match last {
            Some(last) => format!("QEMU has exited: {last}"),
            None => "QEMU has exited without a message".to_owned(),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arguments(
    command: &mut Command,
    files: &GuestFiles,
    accelerator: Accelerator,
    [socket, job, console]: [&Path; 3],
) {
    let memory = format!("memory-backend-memfd,id=mem,size={GUEST_MEMORY_MIB}M,share=on");
    command.args(["-accel", accelerator.argument(), "-cpu", "max"]);
    command.args(["-machine", "q35,usb=off,vmport=off,memory-backend=mem", "-object", &memory]);
    command.args(["-m", &GUEST_MEMORY_MIB.to_string(), "-smp", "1", "-nodefaults"]);
    command.args(["-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]);
    command.arg("-kernel").arg(&files.kernel).arg("-initrd").arg(&files.image);
    command.args(["-append", KERNEL_ARGUMENTS, "-device", "virtio-rng-pci"]);
    command.arg("-chardev").arg(format!("file,id=console,path={}", quoted(console)));
    command.args(["-serial", "chardev:console", "-chardev", "stdio,id=words,signal=off"]);
    command.args(["-serial", "chardev:words", "-serial", "null"]);
    command.arg("-fw_cfg").arg(format!("name=opt/farblock/job,file={}", quoted(job)));
    command.arg("-chardev").arg(format!("socket,id=disk,path={}", quoted(socket)));
    command.args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=1"]);
}

/// Doubles the commas of a path, because a single comma ends a value in QEMU's options.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn failed_by_kvm(complaints: &str) -> Option<String> {
    let line = complaints.lines().find(|line| line.starts_with("KVM internal error"))?;
    Some(format!("the processor cannot run the guest: {line}"))
}

/// Reads a line, or its start if the line exceeds the limit.
fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    match reader.take(GUEST_LINE_BYTES).read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(String::from_utf8_lossy(&line).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_line_is_cut() {
        let endless = vec![b'x'; GUEST_LINE_BYTES as usize + 1];
        let mut reader = endless.as_slice();
        assert_eq!(line(&mut reader).map(|line| line.len() as u64), Some(GUEST_LINE_BYTES));
        assert_eq!(line(&mut &b"READY 1 x\r\n"[..]).as_deref(), Some("READY 1 x"));
        assert_eq!(line(&mut &b""[..]), None);
    }

    #[test]
    fn a_guest_stopped_by_kvm_is_recognized_by_its_message() {
        let complaints = "warning: host lacks it\nKVM internal error. Suberror: 1\nRAX=0";
        let said = failed_by_kvm(complaints);
        assert_eq!(
            said.unwrap(),
            "the processor cannot run the guest: KVM internal error. Suberror: 1"
        );
        assert_eq!(failed_by_kvm("warning: host lacks it\n"), None);
    }

    #[test]
    fn commas_in_qemu_options_are_escaped() {
        assert_eq!(quoted(Path::new("/tmp/a,b/disk")), "/tmp/a,,b/disk");
    }
}
