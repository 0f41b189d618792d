//! The floor: the same load on bare sockets, without protocol and disk. Its other end is in this
//! process, or on another machine.

use super::args::BenchArgs;
use farblock_bench::floor::{Floor, Server, probe};
use farblock_bench::{BenchError, Meters, cores};
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result, listening, os};
use farblock_program::output;
use farblock_program::reachable::reachable;
use farblock_program::signals::Stop;
use farblock_program::values::FloorPlace;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The floor to measure, with its server if that runs in this process.
pub(super) struct Open {
    floor: Floor,
    /// The server, which answers until it is dropped.
    _server: Option<Server>,
}

impl Open {
    pub(super) fn side(&self) -> Floor {
        self.floor.clone()
    }
}

/// The measured time of each floor run, if the user did not request the floor. Six patterns then
/// take only nine seconds.
const BRIEFLY: Duration = Duration::from_secs(1);

/// Starts the server, or probes the server on the other machine, before disks are opened and
/// filled. If the user did not request the floor, a failure only omits the floor.
pub(super) fn open(args: &BenchArgs) -> Result<Option<Open>> {
    let Some(place) = args.floor else {
        return Ok(is_shown_unasked(args).then(|| here(Some(BRIEFLY)).ok()).flatten());
    };
    match place {
        FloorPlace::Nowhere => Ok(None),
        FloorPlace::Here => here(None).map(Some),
        FloorPlace::There(_) if args.disks.is_empty() => Err(Failure::usage(
            "without disks the bench stays in this process, so --floor takes no address: name the \
             REMOTE-URL on that machine as well, or omit the address",
        )),
        FloorPlace::There(address) => {
            probe(address)
                .map_err(|error| super::explain(&BenchError::Floor { address, error }))?;
            let (threads, meters) = (cores(), Meters::default());
            let floor = Floor { address, threads, meters, briefly: None };
            Ok(Some(Open { floor, _server: None }))
        }
    }
}

/// Whether to measure the floor although the user did not request it, to show the cost of loopback
/// beside the six patterns. It needs at least two processors, because its threads never sleep.
fn is_shown_unasked(args: &BenchArgs) -> bool {
    args.disks.is_empty() && args.rw.is_none() && cores() > 1
}

/// Starts both ends in this process. Each end has half of the processors.
fn here(briefly: Option<Duration>) -> Result<Open> {
    let threads = (cores() / 2).max(1);
    let server = Server::start((Ipv4Addr::LOCALHOST, 0), threads as usize, &[]);
    let server = server.map_err(|error| {
        Failure::run(format_args!("cannot start the floor's server: {}", os(&error)))
    })?;
    let floor = Floor { address: server.address(), threads, meters: meters()?, briefly };
    Ok(Open { floor, _server: Some(server) })
}

/// Meters of processor time: the server's threads count for the target, all others for the host.
#[cfg(any(target_os = "linux", windows))]
fn meters() -> Result<Meters> {
    let names = [farblock_bench::floor::SERVER_THREAD_PREFIX];
    super::demo::embedded(&names)
}

#[cfg(not(any(target_os = "linux", windows)))]
fn meters() -> Result<Meters> {
    Ok(Meters::default())
}

/// Runs the server for the floor that another machine measures, until a signal arrives.
pub(super) fn serve(address: SocketAddr, stop: &Stop, global: &Global) -> Result<()> {
    let server = Server::start(address, cores() as usize, &[])
        .map_err(|error| listening(address, &error, "--floor-serve"))?;
    let listening = server.address();
    let mut text = String::new();
    if !global.quiet {
        text = format!(
            "the server of a floor for another machine: bare sockets, no disk. Run there\n  \
             farblock bench REMOTE-URL --patterns read --floor {}\n",
            reachable(listening)
        );
    }
    match output::print(&format!("{text}listening on {listening}\n")) {
        // The server continues even if its output is closed.
        Ok(()) | Err(Failure::OutputClosed) => {}
        Err(failure) => return Err(failure),
    }
    stop.wait();
    Ok(())
}
