//! `farblock fleet`: runs many hosts against many targets.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod args;
mod folder;

use args::{AgentArgs, FleetArgs, FleetCommand, RunArgs};
use farblock_admin::{Server, serve_fleet};
use farblock_admin_api::places;
use farblock_admin_api::{FleetHost, FleetStatus};
use farblock_bench::{Cancel, cores};
use farblock_fleet::{
    Allowed, Board, FleetError, FleetTimeouts, GuestFiles, Launcher, Listener, Live, LiveHost,
    Memory, Plan, Report, Secret, Setting, Step,
};
use farblock_fleet::{agent, html, network, run as carry_out, text};
use farblock_host::key_file;
use farblock_host::readable::Readable;
use farblock_measure::Destination;
use farblock_program::args::Global;
use farblock_program::error::{self, Failure, Result, listening, os};
use farblock_program::signals::Stop;
use farblock_program::{output, values};
use folder::Folder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read, Stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An environment variable that marks a process in its own network namespace. Its value is the
/// folder for the process's socket.
const INSIDE: &str = "FARBLOCK_FLEET_INSIDE";
/// The time limit for an agent to stop after its controller has disconnected.
const END_TIME: Duration = Duration::from_secs(2);
/// The size limit of a plan, or of a report with a plan.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// Runs the command.
///
/// # Errors
/// The plan is invalid, an agent or a peer fails, or data were lost.
pub fn run(args: &FleetArgs, json: bool, global: &Global) -> Result<()> {
    match &args.command {
        FleetCommand::Run(args) => run_plan(args, json, global),
        FleetCommand::Agent(args) => be_agent(args),
        FleetCommand::Plans => {
            let line = |plan: &Plan| format!("{:<14}{}\n", plan.name, plan.about);
            output::print(&Plan::built_in().iter().map(line).collect::<String>())
        }
    }
}

fn be_agent(args: &AgentArgs) -> Result<()> {
    if args.stdio {
        // The parent process, at the other end of the pipes, reports errors.
        let (input, output) = (Parent(std::io::stdin()), std::io::stdout());
        let memory = Memory::unlimited();
        let served = agent::serve(input, output, None, Allowed::All, memory, || {});
        return served.map_err(|error| Failure::run(os(&error)));
    }
    let (Some(address), Some(file)) = (args.listen, &args.token_file) else {
        return Err(Failure::usage("an agent needs --listen ADDR:PORT and --token-file FILE"));
    };
    if !address.ip().to_canonical().is_loopback() && !args.unencrypted {
        return Err(Failure::usage(format_args!(
            "other machines can reach --listen {address}, and would send the token unencrypted: \
             use --listen 127.0.0.1:{} and a tunnel (ssh -L), or --unencrypted if the network is \
             private",
            address.port()
        )));
    }
    let stop = Stop::install()?;
    let secret = secret(file)?;
    let allowed = Allowed::Only(args.drives.clone());
    let memory = args.memory.map_or_else(Memory::by_default, Memory::limited);
    let listener = Listener::start(address, secret, allowed, memory)
        .map_err(|error| listening(address, &error, "--listen"))?;
    output::print(&format!("listening on {}\n", listener.address()))?;
    stop.wait();
    Ok(())
}

/// The stream of the controller's requests. When the stream ends, the agent exits even if a disk or
/// a target no longer answers: waiting for an answer could take minutes.
struct Parent(Stdin);

impl Read for Parent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer);
        if matches!(read, Ok(0) | Err(_)) {
            std::thread::spawn(|| {
                std::thread::sleep(END_TIME);
                std::process::exit(1);
            });
        }
        read
    }
}

fn secret(file: &Path) -> Result<Secret> {
    let text = key_file::text(file).map_err(Failure::Run)?;
    Secret::new(&text).map_err(|why| {
        Failure::run(format_args!("{} contains no valid token: {why}", file.display()))
    })
}

fn run_plan(args: &RunArgs, json: bool, global: &Global) -> Result<()> {
    let plan = plan(args)?;
    plan.check().map_err(explain)?;
    let named = if args.allow_writes { None } else { plan.writes_to().map_err(explain)? };
    if let Some(disk) = named {
        return Err(Failure::usage(format_args!(
            "the plan {} overwrites {disk}, which it did not make: use --allow-writes to allow \
             this",
            plan.name
        )));
    }
    let guests = guests(&plan, args)?;
    let has_network = has_network(&plan, args)?;
    let stop = Stop::install_with_hangup()?;
    let files = Files::open(args, json)?;
    if !global.quiet {
        plan.scaled.iter().for_each(|scaled| output::note(scaled));
        let time = plan.duration().map_err(explain)?;
        output::note(&format!("this takes about {}", farblock_measure::words(time)));
    }
    let cancel = Cancel::new();
    farblock_measure::watch(&stop, &cancel)?;
    let folder = Folder::new()?;
    let mut progress = Progress::new(global.quiet);
    let program = std::env::current_exe().map_err(|error| {
        Failure::run(format_args!("cannot find the file of this program: {}", os(&error)))
    })?;
    let words = ["--quiet", "fleet", "agent", "--stdio"];
    let mut show = |step: &Step<'_>| progress.show(step);
    let board = Board::default();
    let shown = watched(&board);
    let setting = Setting {
        launcher: Launcher { program, args: words.map(Into::into).to_vec() },
        has_network,
        folder: folder.path().to_path_buf(),
        guests,
        secrets: secrets(&plan)?,
        patience: FleetTimeouts::default(),
        cancel,
        board,
        progress: &mut show,
    };
    let report = carry_out(&plan, setting);
    drop(shown);
    progress.finish();
    let report = report.map_err(explain)?;
    drop(folder);
    files.write(&report)?;
    match report.has_errors() {
        true => Err(Failure::run("an operation failed or data was lost; see the report")),
        false => Ok(()),
    }
}

/// Returns the plan, with the changes from the command line.
fn plan(args: &RunArgs) -> Result<Plan> {
    let cores = if args.unscaled { u32::MAX } else { cores() };
    let mut plan = match Plan::named(&args.plan, cores) {
        Some(plan) => plan,
        None => from_file(Path::new(&args.plan))?,
    };
    plan.runtime_seconds = args.runtime.map_or(plan.runtime_seconds, |time| time.as_secs_f64());
    plan.verify_seconds = args.verify.map_or(plan.verify_seconds, |time| time.as_secs_f64());
    plan.runs = args.runs.unwrap_or(plan.runs);
    plan.clients_per_node = args.clients.unwrap_or(plan.clients_per_node);
    plan.guests = args.guests.unwrap_or(plan.guests);
    if !args.drives.is_empty() {
        plan.drives.clone_from(&args.drives);
    }
    leave_out(&mut plan, &args.without)?;
    Ok(plan)
}

fn guests(plan: &Plan, args: &RunArgs) -> Result<Option<GuestFiles>> {
    if plan.guests == 0 {
        return Ok(None);
    }
    let folder = std::env::var_os("FARBLOCK_VM_DIR").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from)?;
        Some(home.join(".cache/farblock-vm"))
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (kernel, image) = (args.guest_kernel.as_deref(), args.guest_image.as_deref());
    let files = GuestFiles::find(&path, folder.as_deref(), kernel, image);
    files.map(Some).map_err(|why| Failure::usage(format_args!("the plan {} {why}", plan.name)))
}

fn leave_out(plan: &mut Plan, names: &[String]) -> Result<()> {
    for name in names {
        let count = plan.iscsi.len();
        plan.iscsi.retain(|target| target.name() != name);
        if plan.iscsi.len() == count {
            return Err(Failure::usage(format_args!(
                "the plan {} has no iSCSI target {name}: omit --without {name}",
                plan.name
            )));
        }
        plan.scaled.push(format!("without {name}, because of --without {name}"));
    }
    if !names.is_empty() && plan.iscsi.is_empty() {
        return Err(Failure::usage(format_args!(
            "the plan {} has no iSCSI target left to compare with NVMe: omit one --without",
            plan.name
        )));
    }
    Ok(())
}

fn from_file(path: &Path) -> Result<Plan> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let names = Plan::built_in().into_iter().map(|plan| plan.name).collect::<Vec<_>>();
        let names = names.join(", ");
        Failure::usage(format_args!(
            "cannot read the plan {shown}: {}; the built-in plans are {names}",
            os(&error)
        ))
    };
    let file = Readable::open(path).map_err(cannot)?;
    let mut text = String::new();
    file.take(MAX_PLAN_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Plan::parse(&shown.to_string(), &text).map_err(explain)
}

fn explain(error: FleetError) -> Failure {
    match error {
        FleetError::Plan { .. } => Failure::usage(error),
        FleetError::Cancelled => Failure::Interrupted(error.to_string()),
        _ => Failure::run(error),
    }
}

/// Whether nodes can have their own network namespaces. If this needs more rights, runs this
/// program again in a user namespace.
fn has_network(plan: &Plan, args: &RunArgs) -> Result<bool> {
    if args.loopback || !plan.agents.is_empty() || !plan.targets.is_empty() {
        return Ok(false);
    }
    // farblock's iSCSI target serves only the loopback, so the plan measures all targets there.
    if !plan.iscsi.is_empty() {
        return Ok(false);
    }
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let Some(mut command) = network::inside() else {
        output::note(
            "note: all nodes use the loopback, because this user cannot create network namespaces \
             (or unshare, nsenter, ip or tc is missing)",
        );
        return Ok(false);
    };
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::run(os(&error)))?;
    let place = places::fleet_sockets().unwrap_or_default();
    command.arg(program).args(std::env::args_os().skip(1)).env(INSIDE, place);
    Err(Failure::run(format_args!("cannot run unshare: {}", os(&command.exec()))))
}

/// Serves the status of the fleet to `farblock ui` and `farblock top`. If this fails, the fleet
/// runs nevertheless.
fn watched(board: &Board) -> Option<Server> {
    // In a user namespace this process runs as root, and cannot derive the user's folder of
    // sockets. So the process outside of the namespace has passed the folder.
    let place = std::env::var_os(INSIDE).map(PathBuf::from).or_else(places::fleet_sockets);
    let place = place.filter(|place| place.is_absolute())?;
    places::remove_left_behind(&place);
    let board = board.clone();
    let read = Arc::new(move || status(board.read()));
    let served = serve_fleet(&place.join(std::process::id().to_string()), read);
    let cannot = |(what, error): &(String, std::io::Error)| {
        output::note(&format!(
            "note: cannot serve the status of this fleet at {what}: {}",
            os(error)
        ));
    };
    served.inspect_err(cannot).ok()
}

fn status(live: Live) -> FleetStatus {
    let host = |host: LiveHost| FleetHost {
        name: host.name,
        iops: host.iops.round(),
        latency_us: host.latency_us,
        is_done: host.is_done,
        failed: host.failed,
        lost: host.lost,
        paths: host.paths,
    };
    FleetStatus {
        plan: live.plan,
        phase: live.phase,
        part: live.part,
        hosts: live.hosts.into_iter().map(host).collect(),
        failed: live.ended.and_then(Result::err),
    }
}

fn secrets(plan: &Plan) -> Result<BTreeMap<String, Secret>> {
    let files = plan.agents.iter().map(|place| &place.token_file);
    files.map(|file| Ok((file.clone(), secret(Path::new(file))?))).collect()
}

/// Shows the progress: on a terminal, one line with the current step; elsewhere, one line per step.
struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    last: String,
}

impl Progress {
    fn new(quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed}  {wide_msg}");
            let bar = ProgressBar::new_spinner().with_style(style.expect("the template is valid"));
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            bar
        });
        Progress { bar, quiet, last: String::new() }
    }

    fn show(&mut self, step: &Step<'_>) {
        let iops = farblock_bench::group(&format!("{:.0}", step.iops));
        match &self.bar {
            Some(bar) => {
                match iops.as_str() {
                    "0" => bar.set_message(step.to_string()),
                    iops => bar.set_message(format!("{iops} IOPS  {step}")),
                }
                bar.tick();
            }
            None if self.quiet || self.last == step.what => {}
            None => output::note(step.what),
        }
        if self.last != step.what {
            step.what.clone_into(&mut self.last);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The destinations of the report.
struct Files {
    json: Option<Destination>,
    html: Option<Destination>,
    md: Option<Destination>,
    columns: usize,
}

impl Files {
    fn open(args: &RunArgs, json: bool) -> Result<Files> {
        let open = |path: Option<&Path>| path.map(Destination::open).transpose();
        let dash = json.then(|| Path::new("-"));
        let files = Files {
            json: open(args.json.as_deref().or(dash))?,
            html: open(args.html.as_deref())?,
            md: open(args.md.as_deref())?,
            columns: if args.wide { usize::MAX } else { output::columns() },
        };
        let all = [&files.json, &files.html, &files.md];
        match all.into_iter().flatten().filter(|it| it.is_standard_output()).count() {
            0 | 1 => Ok(files),
            _ => Err(Failure::usage("only one report can go to the standard output")),
        }
    }

    fn write(self, report: &Report) -> Result<()> {
        let mut table_wanted = true;
        for (destination, text) in [
            (self.json, &(|| report.to_json() + "\n") as &dyn Fn() -> String),
            (self.html, &|| html::render(report)),
            (self.md, &|| text::markdown(report)),
        ] {
            let Some(destination) = destination else { continue };
            table_wanted &= !destination.is_standard_output();
            destination.write(&text())?;
        }
        match table_wanted {
            true => output::print(&text::render_within(report, self.columns)),
            false => Ok(()),
        }
    }
}
