//! Attaches a namespace through the kernel's NVMe host, or detaches it.
//!
//!     nvme_attach ADDRESS PORT NQN NSID [--hostnqn NQN] [--hostid UUID] [--nr-io-queues N]
//!                 [--queue-size N] [--keep-alive-tmo S] [--reconnect-delay S] [--ctrl-loss-tmo S]
//!                 [--fast-io-fail-tmo S] [--hdr-digest] [--data-digest]
//!     nvme_attach --detach INSTANCE NQN NSID DEVICE [--force]
//!
//! Prints the controller's number and the block device: `3 /dev/nvme3n1`.

use farblock_daemon::nvme_fabrics::{self, Connection, Options};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        Some("--detach") => detach(&words[1..]),
        _ => attach(&words),
    };
    // Format with `Display`, not `Debug`: users read this error.
    result.map_err(|error| error.to_string().into())
}

fn attach(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [address, port, nqn, nsid, rest @ ..] = words else {
        return Err("ADDRESS PORT NQN NSID are required".into());
    };
    let mut options = Options::new(address.parse()?, port.parse()?, nqn, nsid.parse()?);
    let mut rest = rest.iter();
    while let Some(option) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{option} needs a value"));
        match option.as_str() {
            "--hostnqn" => options.hostnqn = Some(value()?.clone()),
            "--hostid" => options.hostid = Some(value()?.clone()),
            "--nr-io-queues" => options.nr_io_queues = Some(value()?.parse()?),
            "--queue-size" => options.queue_size = Some(value()?.parse()?),
            "--keep-alive-tmo" => options.keep_alive_tmo = Some(value()?.parse()?),
            "--reconnect-delay" => options.reconnect_delay = Some(value()?.parse()?),
            "--ctrl-loss-tmo" => options.ctrl_loss_tmo = Some(value()?.parse()?),
            "--fast-io-fail-tmo" => options.fast_io_fail_tmo = Some(value()?.parse()?),
            "--hdr-digest" => options.hdr_digest = true,
            "--data-digest" => options.data_digest = true,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let connection = nvme_fabrics::connect(&options)?;
    println!("{} {}", connection.instance, connection.device.display());
    Ok(())
}

fn detach(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [instance, nqn, nsid, device, rest @ ..] = words else {
        return Err("INSTANCE NQN NSID DEVICE are required".into());
    };
    let device = Path::new(device);
    let connection = Connection::find(instance.parse()?, nqn, nsid.parse()?, device)?;
    connection.disconnect(rest.iter().any(|word| word == "--force"))?;
    Ok(())
}
