//! The service's process. It attaches the disks that configuration files describe, retries until
//! this succeeds, and detaches them when it stops. Each disk has its own daemon. If the service
//! dies, the daemons continue, and a restarted service finds them.

use super::super::system;
use super::NAME;
use super::restorer::Restorer;
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_service::{define_windows_service, service_dispatcher};

/// The pause between attempts to attach.
const ATTACH_EVERY: Duration = Duration::from_secs(5);
const DETACH_EVERY: Duration = Duration::from_millis(500);
/// The time for which a stopping service retries to detach disks that are in use. Disks that are
/// still in use after this time stay attached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(30);
/// While the service stops, Windows expects a report within this time. One attempt to detach the
/// disks takes less.
const STOP_HINT: Duration = Duration::from_secs(60);

define_windows_service!(service_main, serve);

/// The command-line options. Windows starts the service on another thread, which reads them here.
static GLOBAL: OnceLock<Global> = OnceLock::new();

/// `farblock service run`, the entry point for Windows.
pub(super) fn run(global: &Global) -> Result<()> {
    let _ = GLOBAL.set(global.clone());
    service_dispatcher::start(NAME, service_main).map_err(|_| {
        Failure::usage(format_args!(
            "only Windows can run this command: `net start {NAME}` starts the service"
        ))
    })
}

/// Maximum size of the log, in bytes. A longer log is moved to `service.log.old`.
const MAX_LOG_BYTES: u64 = 1 << 20;

pub(super) fn log() -> Option<File> {
    let base = system::base().ok()?;
    system::make_private(&base).ok()?;
    let path = base.join("service.log");
    if fs::metadata(&path).is_ok_and(|log| log.len() > MAX_LOG_BYTES) {
        let _ = fs::rename(&path, base.join("service.log.old"));
    }
    system::append(&path).ok()
}

fn serve(_: Vec<OsString>) {
    let Some(global) = GLOBAL.get() else { return };
    if let Err(sentence) = serve_until_stopped(global) {
        tracing::error!("{sentence}");
    }
}

fn serve_until_stopped(global: &Global) -> Result<(), String> {
    let (sender, stop) = mpsc::channel();
    let stopping = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stopping);
    let handler = move |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            stopped.store(true, Ordering::Relaxed);
            let _ = sender.send(());
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    let registered = service_control_handler::register(NAME, handler);
    let status = Status(registered.map_err(|error| error.to_string())?);
    status.tell(ServiceState::Running, 0, 0);
    let ended = restore(global, &stop, &stopping, &status);
    // Exit code 1: the log has the reason.
    status.tell(ServiceState::Stopped, 0, u32::from(ended.is_err()));
    ended.map_err(|failure| failure.sentence().to_owned())
}

fn restore(
    global: &Global,
    stop: &Receiver<()>,
    stopping: &AtomicBool,
    status: &Status,
) -> Result<()> {
    let mut restorer = Restorer::new(global)?;
    loop {
        restorer.attach(|| stopping.load(Ordering::Relaxed));
        match stop.recv_timeout(ATTACH_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let deadline = Instant::now() + DETACH_TIMEOUT;
    for checkpoint in 1.. {
        status.tell(ServiceState::StopPending, checkpoint, 0);
        let left = restorer.detach();
        if left == 0 {
            break;
        }
        if Instant::now() >= deadline {
            tracing::warn!("{left} disks stay attached because they are in use");
            break;
        }
        std::thread::sleep(DETACH_EVERY);
    }
    Ok(())
}

struct Status(ServiceStatusHandle);

impl Status {
    fn tell(&self, state: ServiceState, checkpoint: u32, code: u32) {
        let controls_accepted = match state {
            ServiceState::Running => ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN,
            _ => ServiceControlAccept::empty(),
        };
        let wait_hint = if state == ServiceState::StopPending { STOP_HINT } else { Duration::ZERO };
        let told = self.0.set_service_status(ServiceStatus {
            service_type: ServiceType::OWN_PROCESS,
            current_state: state,
            controls_accepted,
            exit_code: match code {
                0 => ServiceExitCode::NO_ERROR,
                code => ServiceExitCode::ServiceSpecific(code),
            },
            checkpoint,
            wait_hint,
            process_id: None,
        });
        if let Err(error) = told {
            tracing::warn!("cannot report the state of the service to Windows: {error}");
        }
    }
}
