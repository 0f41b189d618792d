//! Sends signals on Windows: Ctrl-C for all processes of a console.

use std::os::windows::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::CloseHandle;
use windows_sys::Win32::System::Console::{
    AttachConsole, CTRL_C_EVENT, FreeConsole, GenerateConsoleCtrlEvent, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::{
    CREATE_NO_WINDOW, OpenProcess, PROCESS_TERMINATE, TerminateProcess,
};

/// The variable with the process ID for `press_ctrl_c`.
const WHOSE: &str = "FARBLOCK_PRESS_CTRL_C";

/// Makes the process start on its own console.
pub fn give_its_own(command: &mut Command) {
    command.creation_flags(CREATE_NO_WINDOW);
}

/// Sends Ctrl-C to the console of a process that a test started. The signal name `KILL` kills the
/// process instead.
///
/// Only a process on that console can send Ctrl-C, and changing the console would redirect this
/// process's output. So this function starts the test binary again, to run only `press_ctrl_c`.
pub fn signal(id: u32, name: &str) {
    if name == "KILL" {
        return kill(id);
    }
    let mut presser = Command::new(std::env::current_exe().expect("the test knows its program"));
    presser.args(["--ignored", "--exact", "support::console::press_ctrl_c"]);
    presser.env(WHOSE, id.to_string()).creation_flags(CREATE_NO_WINDOW);
    let status = presser.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let code = status.expect("the process starts").code();
    assert_eq!(code, Some(PRESSED), "{name} {id}");
}

fn kill(id: u32) {
    // SAFETY: plain calls with numbers, and a handle that only this function uses.
    let done = unsafe {
        let process = OpenProcess(PROCESS_TERMINATE, 0, id);
        let done = TerminateProcess(process, 137);
        CloseHandle(process);
        done
    };
    assert!(done != 0, "KILL {id}: {}", std::io::Error::last_os_error());
}

const PRESSED: i32 = 42;

#[test]
#[ignore = "not a test: signal() starts it"]
fn press_ctrl_c() {
    let id = std::env::var(WHOSE)
        .expect("signal() sets the variable")
        .parse()
        .expect("the text is a process id");
    // SAFETY: plain calls with numbers, and a handler without state of its own.
    let done = unsafe {
        SetConsoleCtrlHandler(Some(heard), 1);
        FreeConsole();
        AttachConsole(id) != 0 && GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0) != 0
    };
    // Ctrl-C also reaches this process, so wait until it arrives.
    let until = Instant::now() + Duration::from_secs(10);
    while done && !HEARD.load(Ordering::Relaxed) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(if HEARD.load(Ordering::Relaxed) { PRESSED } else { 1 });
}

static HEARD: AtomicBool = AtomicBool::new(false);

unsafe extern "system" fn heard(_: u32) -> i32 {
    HEARD.store(true, Ordering::Relaxed);
    1
}
