//! Registers the service with Windows.

use super::super::{settings, system};
use super::NAME;
use farblock_program::error::{Failure, Result, os};
use farblock_program::output;
use std::ffi::OsString;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use windows_service::Error;
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceDependency,
    ServiceErrorControl, ServiceFailureActions, ServiceFailureResetPeriod, ServiceInfo,
    ServiceStartType, ServiceState, ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Win32::Foundation::{
    ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_EXISTS, ERROR_SERVICE_MARKED_FOR_DELETE,
};

/// Time limit for a stop of the service.
const WAIT_LIMIT: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The pause before Windows restarts a dead service.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
const FORGET_FAILURES_AFTER: Duration = Duration::from_secs(24 * 3600);

/// `farblock service install`.
pub(super) fn install() -> Result<()> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::run(format_args!("cannot find the path of this program: {}", os(&error)))
    })?;
    // Create the folder as the administrator who runs this command. Otherwise another user could
    // create it, and choose the disks that the service attaches.
    let folder = settings::restored()?;
    system::make_private(&folder).map_err(|error| {
        Failure::run(format_args!("cannot create {}: {}", folder.display(), os(&error)))
    })?;
    let info = ServiceInfo {
        name: NAME.into(),
        display_name: "farblock remote disks".into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program,
        launch_arguments: ["service", "run"].map(OsString::from).to_vec(),
        dependencies: vec![ServiceDependency::Service("Tcpip".into())],
        account_name: None,
        account_password: None,
    };
    let manager = manager(ServiceManagerAccess::CREATE_SERVICE)?;
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START;
    let service = manager.create_service(&info, access).map_err(|error| explain(&error))?;
    let description = format!("Attaches the disks that {} describes.", folder.display());
    let restarts = ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(FORGET_FAILURES_AFTER),
        reboot_msg: None,
        command: None,
        actions: Some(vec![
            ServiceAction {
                action_type: ServiceActionType::Restart,
                delay: RESTART_PAUSE
            };
            3
        ]),
    };
    let described = service.set_description(description);
    let described = described.and_then(|()| service.update_failure_actions(restarts));
    if let Err(error) = described {
        tracing::warn!("the service is registered, but without all of its settings: {error}");
    }
    output::print(&format!(
        "{NAME} is registered: it attaches the disks in {} at boot; `net start {NAME}` starts it \
         now\n",
        folder.display()
    ))
}

/// `farblock service remove`.
pub(super) fn remove() -> Result<()> {
    let manager = manager(ServiceManagerAccess::empty())?;
    let access = ServiceAccess::QUERY_STATUS | ServiceAccess::STOP | ServiceAccess::DELETE;
    let service = manager.open_service(NAME, access).map_err(|error| explain(&error))?;
    stop(&service)?;
    service.delete().map_err(|error| explain(&error))?;
    output::print(&format!("{NAME} is no longer registered\n"))
}

fn stop(service: &Service) -> Result<()> {
    let state = || service.query_status().map(|status| status.current_state);
    if state().map_err(|error| explain(&error))? == ServiceState::Stopped {
        return Ok(());
    }
    // An error means that the service is already stopping, for which the loop below waits.
    let _ = service.stop();
    let deadline = Instant::now() + WAIT_LIMIT;
    while state().map_err(|error| explain(&error))? != ServiceState::Stopped {
        if Instant::now() >= deadline {
            return Err(Failure::run(format_args!(
                "the service does not stop: see `sc query {NAME}`, then try again"
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn manager(access: ServiceManagerAccess) -> Result<ServiceManager> {
    let access = access | ServiceManagerAccess::CONNECT;
    ServiceManager::local_computer(None::<&str>, access).map_err(|error| explain(&error))
}

/// Converts an error to a sentence, with advice for common errors.
fn explain(error: &Error) -> Failure {
    let Error::Winapi(error) = error else { return Failure::run(error) };
    let code = error.raw_os_error().unwrap_or_default().cast_unsigned();
    match code {
        ERROR_SERVICE_EXISTS => Failure::run(format_args!(
            "{NAME} is already registered: run `farblock service remove` first to register this one"
        )),
        ERROR_SERVICE_DOES_NOT_EXIST => Failure::run(format_args!("{NAME} is not registered")),
        ERROR_SERVICE_MARKED_FOR_DELETE => Failure::run(format_args!(
            "Windows is removing {NAME}: close programs that show services, and try again"
        )),
        _ if error.kind() == io::ErrorKind::PermissionDenied => Failure::run(
            "only administrators can register services: start a console as administrator",
        ),
        _ => Failure::run(format_args!("Windows's service manager reports: {}", os(error))),
    }
}
