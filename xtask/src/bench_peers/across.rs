//! Measures a disk file locally, over loopback, and over a network device. The device is a veth
//! pair between two network namespaces, with added latency.
//!
//! Loopback is not a real network: the sender's processor also receives the data, within the send
//! call. Over the veth pair, frames pass through the queue of a device. A forwarder ([`delay`])
//! adds the latency of a network to another rack or building. This needs root.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farblock_bench::{Pattern, Rw};

use super::contest::{self, Entrant, Row};
use super::process::describe;
use super::sides::{Client, Endpoint, Means, Times, farblock};
use super::work::{Backend, Load};
use super::{DiskFile, Options, delay, network};

/// The name of the table's file, and the title of the table.
const TABLE: (&str, &str) =
    ("network", "a disk file locally, over loopback, and across a veth pair with added delay");

/// The addresses of the two ends, in a block that is reserved for documentation.
const TARGET: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HOST: &str = "192.0.2.2/30";
const TARGET_DEVICE: &str = "fb-target";
const HOST_DEVICE: &str = "fb-host";
/// The measured configurations with added latency: the name, and the latency to add to each round
/// trip.
const DELAYS: [(&str, Duration); 2] =
    [("veth + 100 µs", Duration::from_micros(100)), ("veth + 500 µs", Duration::from_micros(500))];
/// The warm-up time of each measurement. It is short, because only farblock runs here.
const RAMP: Duration = Duration::from_millis(300);

/// A network namespace on the other side of the veth pair. The process `keeper` keeps it alive, and
/// exits when its input is closed.
struct Beyond {
    keeper: Child,
}

impl Beyond {
    /// Creates the network namespace, and the veth pair that leads to it.
    fn create() -> Result<Beyond, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "echo there; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", describe(&command)))?;
        let mut said = [0; 1];
        let output = keeper.stdout.as_mut().expect("the child's stream is a pipe");
        let there = std::io::Read::read_exact(output, &mut said);
        let beyond = Beyond { keeper };
        there
            .map_err(|_| "cannot create a second network namespace: run this as root".to_owned())?;
        beyond.connect()?;
        Ok(beyond)
    }

    fn connect(&self) -> Result<(), String> {
        let id = self.keeper.id().to_string();
        let (near, far) = (TARGET_DEVICE, HOST_DEVICE);
        run(ip(&format!("link add {near} type veth peer name {far} netns {id}")))?;
        run(ip(&format!("addr add {TARGET}/30 dev {near}")))?;
        run(ip(&format!("link set {near} up")))?;
        run(self.within(ip(&format!("addr add {HOST} dev {far}"))))?;
        run(self.within(ip(&format!("link set {far} up"))))?;
        let mut choose = Command::new("sh");
        let congestion = network::congestion_control();
        choose.args(["-c", &format!("echo {congestion} > {}", network::SETTING)]);
        run(self.within(choose))
    }

    /// Wraps a command, so that it runs in the namespace.
    fn within(&self, command: Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg("--");
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn ip(words: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    command
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{}: {error}", describe(&command)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", describe(&command), said.trim()))
}

/// The loads: random reads at four depths, which show how depth hides latency, and the six
/// patterns.
fn rows(only: &[String]) -> Vec<Row> {
    let depths = [1, 8, 32, 128].map(|depth| Load::new(Rw::RandRead, 4096, depth, 1));
    let six = Pattern::six().into_iter().map(|pattern| Load::of(&pattern));
    let loads = depths.into_iter().chain(six);
    let is_asked = |load: &Load| {
        only.is_empty() || only.iter().any(|words| load.slug().contains(words.as_str()))
    };
    loads.filter(is_asked).map(|load| Row { name: load.words(), load }).collect()
}

pub(crate) fn compare(options: &Options) -> Result<(), String> {
    let rows = rows(&options.only);
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.load.slug()));
        return Ok(());
    }
    network::enter();
    let beyond = Beyond::create()?;
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = super::means(options, &file)?;
    let listen = ["127.0.0.1:0".to_owned(), format!("{TARGET}:0")];
    let (server, endpoints) = farblock::serve_at(&means, Backend::File, &listen)?;
    let [loopback, veth] = &endpoints[..] else {
        return Err("farblock does not listen on both addresses".to_owned());
    };
    let local = |row: &Row, times| farblock::local(&means, Backend::File, &row.load, times);
    let mut entrants = vec![
        Entrant { name: contest::LOCAL, server: None, polls: false, client: Box::new(local) },
        entrant("loopback", &means, loopback.clone(), None),
        entrant("veth", &means, veth.clone(), Some(&beyond)),
    ];
    for (name, added) in DELAYS {
        let address = forward(veth.address, added)?;
        let endpoint = Endpoint { address, name: veth.name.clone() };
        entrants.push(entrant(name, &means, endpoint, Some(&beyond)));
    }
    entrants.iter_mut().skip(1).for_each(|entrant| entrant.server = Some(&server));
    let remarks =
        ["The disk is a file, without the page cache. A delay is added to each round trip. The \
         forwarder that adds it uses the same two processors, for longer than the delay."
            .to_owned()];
    let times = Times { ramp: RAMP, ..contest::times(options)? };
    contest::hold(TABLE, options, &rows, &entrants, times, &remarks)
}

fn forward(to: SocketAddr, added: Duration) -> Result<SocketAddr, String> {
    delay::forward(IpAddr::V4(TARGET), to, added / 2)
        .map_err(|error| format!("cannot forward to {to}: {error}"))
}

fn entrant<'a>(
    name: &'static str,
    means: &'a Means,
    endpoint: Endpoint,
    beyond: Option<&'a Beyond>,
) -> Entrant<'a> {
    let client = move |row: &Row, times: Times| {
        let client = farblock::remote(means, &endpoint, (false, false), &row.load, times);
        match beyond {
            Some(beyond) => Client { command: beyond.within(client.command), ..client },
            None => client,
        }
    };
    Entrant { name, server: None, polls: false, client: Box::new(client) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_whose_names_have_all_words_are_chosen() {
        assert_eq!(rows(&[]).len(), 10);
        let few = rows(&["64k".to_owned()]);
        assert!(few.len() == 2 && few.iter().all(|row| row.load.block_bytes == 64 << 10));
    }

    #[test]
    fn host_and_target_addresses_are_in_one_network() {
        let (host, bits) = HOST.split_once('/').expect("the address has a prefix length");
        let host: Ipv4Addr = host.parse().expect("the address is valid");
        let mask = u32::MAX << (32 - bits.parse::<u32>().expect("the prefix length is a number"));
        assert_eq!(u32::from(host) & mask, u32::from(TARGET) & mask);
        assert_ne!(host, TARGET);
    }
}
