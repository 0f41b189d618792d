//! Real guests: QEMU virtual machines with Linux and fio. Their disks are vhost-user disks of the
//! fleet's agents.
//!
//! After the plan's actions, all guests run the actions for virtual machines at the same time. Then
//! each guest writes a part of its disk, reads it back and compares. The controller sends each
//! guest a line to start the load, so they start within some milliseconds. The ramp covers the
//! difference.

mod fio;
mod qemu;

use crate::error::FleetError;
use crate::fleet::Fleet;
use crate::guest_files::GuestFiles;
use crate::limits::{GUEST_BOOT_TIME, GUEST_MEMORY_MIB, GUEST_RAMP, GUEST_VERIFY_BYTES};
use crate::message::{Ask, Client, Measured, Say};
use crate::plan::{Plan, Wanted};
use crate::report::{ActionReport, GuestsReport};
use crate::sum::Sum;
use farblock_bench::cpu::CpuSource;
use qemu::{Accelerator, Guest};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The interval of checks for messages.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Checks that the plan can have guests, and that this machine has enough memory for them.
pub(crate) fn check(plan: &Plan, files: Option<&GuestFiles>) -> Result<(), FleetError> {
    let wrong = |why: String| Err(FleetError::plan(&plan.name, why));
    if plan.guests == 0 {
        return Ok(());
    }
    if files.is_none() {
        return wrong("has guests, but no kernel and image for them".to_owned());
    }
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = crate::memory::of_machine(&text, "MemAvailable:");
    let wanted = (u64::from(plan.guests) * GUEST_MEMORY_MIB) << 20;
    match available {
        Some(available) if available < wanted => wrong(format!(
            "has {} guests of {GUEST_MEMORY_MIB} MiB, but this machine has only {} MiB of \
             available memory: use fewer guests with --guests",
            plan.guests,
            available >> 20
        )),
        _ => Ok(()),
    }
}

/// The running guests.
struct Guests {
    all: Vec<Guest>,
    accelerator: Accelerator,
    /// The release of the guests' Linux kernel.
    kernel: String,
    disks: Vec<u64>,
}

/// Boots the guests, runs the plan's actions for virtual machines on them, and verifies.
pub(crate) fn run(
    fleet: &mut Fleet<'_>,
) -> Result<(Vec<ActionReport>, Option<GuestsReport>), FleetError> {
    if fleet.plan.guests == 0 {
        return Ok((Vec::new(), None));
    }
    let sockets = offer(fleet)?;
    let mut guests = Guests::boot(fleet, &sockets)?;
    let mut actions = Vec::new();
    for wanted in fleet.plan.loads()?.iter().filter(|wanted| wanted.vm) {
        actions.push(guests.action(fleet, wanted)?);
    }
    let report = guests.verify(fleet)?;
    drop(guests);
    for host in 0..fleet.hosts.len() {
        fleet.hosts[host].ask(&Ask::Offer { clients: Vec::new() })?;
    }
    Ok((actions, Some(report)))
}

/// Makes the hosts offer the disks of the guests, instead of their current connections. Returns the
/// sockets in the order of the guests.
fn offer(fleet: &mut Fleet<'_>) -> Result<Vec<PathBuf>, FleetError> {
    fleet.begin("guests")?;
    fleet.note("connecting their disks")?;
    let count = fleet.plan.guests as usize;
    let hosts = fleet.hosts.len();
    let mut sockets = vec![PathBuf::new(); count];
    for host in 0..hosts {
        fleet.hosts[host].ask(&Ask::Connect { clients: Vec::new() })?;
        let of_host = (host..count).step_by(hosts);
        let clients: Vec<Client> = of_host.clone().map(|guest| fleet.guest(guest)).collect();
        fleet.hosts[host].tell(&Ask::Offer { clients })?;
        let said = fleet.hosts[host].answer(fleet.setting.patience.open);
        let offered = match said.map_err(|error| fleet.cause(error))? {
            Say::Offered { sockets } if sockets.len() == of_host.len() => sockets,
            other => return Err(fleet.hosts[host].surprise(&other)),
        };
        of_host.zip(offered).for_each(|(guest, socket)| sockets[guest] = socket);
    }
    Ok(sockets)
}

impl Guests {
    /// Boots the guests with KVM if possible. If KVM fails before a guest has booted, uses
    /// emulation.
    fn boot(fleet: &mut Fleet<'_>, sockets: &[PathBuf]) -> Result<Guests, FleetError> {
        let accelerator = Accelerator::possible();
        match Guests::boot_with(fleet, sockets, accelerator) {
            Err(FleetError::Agent { agent, .. })
                if accelerator == Accelerator::Kvm && agent.starts_with("guest ") =>
            {
                Guests::boot_with(fleet, sockets, Accelerator::Tcg)
            }
            booted => booted,
        }
    }

    fn boot_with(
        fleet: &mut Fleet<'_>,
        sockets: &[PathBuf],
        accelerator: Accelerator,
    ) -> Result<Guests, FleetError> {
        let files = fleet.setting.guests.clone();
        let files = files.ok_or_else(|| FleetError::plan(&fleet.plan.name, "has no guests"))?;
        let count = sockets.len();
        let mut guests =
            Guests { all: Vec::new(), accelerator, kernel: String::new(), disks: vec![0; count] };
        for (number, socket) in (1..).zip(sockets) {
            let name = format!("guest {number}");
            let folder = &fleet.setting.folder;
            let guest = Guest::start(&name, &files, accelerator, socket, folder);
            guests.all.push(guest.map_err(|why| FleetError::agent(&name, why))?);
        }
        let part = format!("{count} boot, {}", accelerator.words());
        for (guest, said) in guests.all_say(fleet, &part, "READY", GUEST_BOOT_TIME, None)? {
            let (bytes, kernel) = said.split_once(' ').unwrap_or((&said, "unknown"));
            let wrong =
                |_| guests.error(guest, format!("the guest reports a disk of {bytes:?} bytes"));
            guests.disks[guest] = bytes.parse().map_err(wrong)?;
            kernel.clone_into(&mut guests.kernel);
        }
        Ok(guests)
    }

    fn error(&self, guest: usize, why: impl Into<String>) -> FleetError {
        FleetError::agent(&self.all[guest].name, why)
    }

    fn tell(&mut self, guest: usize, line: &str) -> Result<(), FleetError> {
        self.all[guest].tell(line).map_err(|why| self.error(guest, why))
    }

    /// Waits until each guest has sent this word. The first failure of any guest ends the run for
    /// all.
    fn all_say(
        &mut self,
        fleet: &mut Fleet<'_>,
        part: &str,
        word: &str,
        patience: Duration,
        mut used: Option<&mut Used>,
    ) -> Result<Vec<(usize, String)>, FleetError> {
        fleet.note(part)?;
        let until = Instant::now() + patience;
        let mut said: Vec<Option<String>> = vec![None; self.all.len()];
        while said.iter().any(Option::is_none) {
            fleet.check()?;
            fleet.check_all()?;
            for (guest, said) in said.iter_mut().enumerate() {
                match self.all[guest].heard().map_err(|why| self.error(guest, why))? {
                    Some((heard, rest)) if heard == word => *said = Some(rest),
                    Some((heard, _)) => {
                        return Err(
                            self.error(guest, format!("the guest sent {heard} instead of {word}"))
                        );
                    }
                    None if said.is_some() || Instant::now() < until => {}
                    None => {
                        let seconds = patience.as_secs();
                        let why = format!("the guest has not sent {word} for {seconds} s");
                        return Err(self.error(guest, why));
                    }
                }
            }
            if let Some(used) = &mut used {
                used.look();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(said.into_iter().flatten().enumerate().collect())
    }

    fn action(
        &mut self,
        fleet: &mut Fleet<'_>,
        wanted: &Wanted,
    ) -> Result<ActionReport, FleetError> {
        let mut pattern = wanted.pattern.clone();
        let name = pattern.name.strip_prefix("VM ").unwrap_or(&pattern.name);
        pattern.name = format!("guest {name}");
        let runtime = Duration::from_secs_f64(fleet.plan.runtime_seconds);
        let ramp = Duration::from_secs_f64(fleet.plan.ramp_seconds) + GUEST_RAMP;
        let order = format!("run {}", fio::load(&pattern, ramp, runtime));
        fleet.begin(&pattern.name)?;
        let (mut sum, runs) = (Sum::default(), fleet.plan.runs);
        for run in 1..=runs {
            let part = format!("run {run} of {runs}");
            for guest in 0..self.all.len() {
                self.tell(guest, &order)?;
            }
            let begin = Instant::now() + ramp;
            let mut used = Used::new(self.processes(fleet), [begin, begin + runtime]);
            let patience = ramp + runtime + GUEST_BOOT_TIME;
            let said = self.all_say(fleet, &part, "MEASURED", patience, Some(&mut used))?;
            let mut measured: Vec<Measured> = Vec::new();
            for (guest, text) in said {
                measured.push(fio::parse(&text).map_err(|why| self.error(guest, why))?);
            }
            let added = sum.add(&pattern, &measured, &used.between());
            added.map_err(|why| self.error(0, why))?;
        }
        let count = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        Ok(ActionReport { guests: true, ..sum.report(&pattern, count, None) })
    }

    /// The processes of all agents, and QEMU for each guest, by name.
    fn processes(&self, fleet: &Fleet<'_>) -> Vec<(String, u32)> {
        let agents = fleet.peers().filter_map(|it| Some((it.name.clone(), it.process()?)));
        let guests = self.all.iter().map(|guest| (guest.name.clone(), guest.process()));
        agents.chain(guests).collect()
    }

    /// Makes each guest write its own part of a disk, read it back and compare.
    fn verify(&mut self, fleet: &mut Fleet<'_>) -> Result<GuestsReport, FleetError> {
        for guest in 0..self.all.len() {
            let [own, parts] = fleet.guest(guest).part.map(u64::from);
            // Use whole MiB, so that blocks of all sizes fit.
            let part = (self.disks[guest] / parts) & !((1 << 20) - 1);
            if part == 0 {
                return Err(self
                    .error(guest, "the disk is too small for a verification: use at least 1 MiB"));
            }
            let order = fio::verify(own * part, part.min(GUEST_VERIFY_BYTES));
            self.tell(guest, &format!("verify {order}"))?;
        }
        fleet.begin("guests write, read and compare")?;
        let said = self.all_say(fleet, "", "VERIFIED", GUEST_BOOT_TIME, None)?;
        let mut report = GuestsReport {
            count: fleet.plan.guests,
            run_as: self.accelerator.words().to_owned(),
            kernel: self.kernel.clone(),
            memory_mib: GUEST_MEMORY_MIB,
            written: 0,
            compared: 0,
        };
        for (guest, text) in said {
            let found = fio::parse(&text).map_err(|why| self.error(guest, why))?;
            if found.writes == 0 || found.reads == 0 {
                return Err(self.error(guest, "fio compared nothing"));
            }
            report.written += found.writes;
            report.compared += found.reads;
        }
        Ok(report)
    }
}

/// The processor time of processes between two instants.
struct Used {
    meters: Vec<(String, Option<Box<dyn CpuSource>>)>,
    marks: [Instant; 2],
    read: [Option<Vec<u64>>; 2],
}

impl Used {
    fn new(processes: Vec<(String, u32)>, marks: [Instant; 2]) -> Used {
        let meter = |(name, id)| (name, crate::process::meter(id));
        Used { meters: processes.into_iter().map(meter).collect(), marks, read: [None, None] }
    }

    /// Reads all meters twice: at the first call after the start of the measured time, and at the
    /// first call after its end.
    fn look(&mut self) {
        for (mark, read) in self.marks.iter().zip(&mut self.read) {
            if read.is_none() && Instant::now() >= *mark {
                let ns = |meter: &dyn CpuSource| meter.cpu_time().as_nanos() as u64;
                let all = self.meters.iter().map(|(_, it)| it.as_deref().map_or(0, ns));
                *read = Some(all.collect());
            }
        }
    }

    fn between(self) -> Vec<(String, u64)> {
        let [Some(before), Some(after)] = self.read else { return Vec::new() };
        let used = after
            .into_iter()
            .zip(before)
            .map(|(after, before): (u64, u64)| after.saturating_sub(before));
        self.meters.into_iter().map(|(name, _)| name).zip(used).collect()
    }
}
