//! Runs the conformance suite of RDMA verbs on a real device: `verbs_suite ADDRESS`, with the
//! device's IP address.
#![allow(missing_docs)]

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match suite() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs_suite: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn suite() -> Result<(), Box<dyn std::error::Error>> {
    use farblock_verbs::conformance::{NAMES, Stand, run};
    use farblock_verbs::{System, Verbs};

    let address = std::env::args().nth(1).ok_or("usage: verbs_suite ADDRESS")?.parse()?;
    let system = System::load()?;
    for device in system.devices()? {
        println!("{device:?}");
    }
    // Fails with a reason if this machine cannot use RDMA.
    system.create_event_channel()?;
    for name in NAMES {
        run(&Stand { host: system, target: system, address }, name);
        println!("ok: {name}");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("RDMA devices can be used on Linux only");
}
