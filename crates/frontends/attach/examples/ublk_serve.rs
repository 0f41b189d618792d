//! Serves a disk as /dev/ublkbN until standard input ends or has the line `stop`.
//!
//!     ublk_serve SPEC|URL [--id N] [--recover N] [--identifier TEXT] [--block 512] [--queues N]
//!                [--depth N] [--engine auto|uring|portable] [--read-only]
//!     ublk_serve --detach N [--force]
//!
//! SPEC is a disk as in `farblock serve`: `mem:64MiB`, `disk.img`, `delay:1ms,mem:1GiB`. URL is a
//! disk of another server: `nvme+tcp://HOST:PORT/NQN?ns=1`. Such a disk keeps its block size, and
//! its server may be unreachable for a while.
//!
//! The program prints `ready /dev/ublkbN …` when it serves the disk, and `refused: …` after a
//! failure. It reads these input lines: `resize BYTES` shrinks the disk, or restores its size.
//! `stop` and `force` stop the server. `leave`, or the end of the input, leaves the device to
//! another server.

mod served;

use farblock_attach::ublk::{self, Config, Server};
use farblock_block::Namespace;
use served::ShownPart;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
    let disk = word("SPEC or URL")?;
    if disk == "--detach" {
        let id = word("a number")?.parse()?;
        return Ok(ublk::detach(id, word("--force").is_ok()).map_err(|error| error.to_string())?);
    }
    let (mut config, mut block_size, mut recover) = (Config::default(), 512, None);
    while let Ok(option) = word("option") {
        match option.as_str() {
            "--id" => config.id = Some(word("a number")?.parse()?),
            "--recover" => recover = Some(word("a number")?.parse()?),
            "--identifier" => config.identifier = word("a text")?,
            "--block" => block_size = word("a size")?.parse()?,
            "--queues" => config.queues = word("a number")?.parse()?,
            "--depth" => config.depth = word("a number")?.parse()?,
            "--engine" => config.engine = word("an engine")?.parse()?,
            "--read-only" => config.read_only = true,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    let (lines, input) = mpsc::channel();
    let changes = lines.clone();
    let resized = move || drop(changes.send("resized".into()));
    let (part, watch) =
        ShownPart::open(&disk, block_size, config.read_only, config.engine, resized)?;
    let namespace = Arc::clone(&part) as Arc<dyn Namespace>;
    let started = match recover {
        Some(id) => Server::recover(id, &config, namespace),
        None => Server::start(&config, namespace),
    };
    let server = started.map_err(|error| error.to_string())?;
    let (path, recoverable) = (server.path().display(), server.is_recoverable());
    println!("ready {path} queues={} recoverable={recoverable}", server.queues());
    std::thread::spawn(move || read_lines(&lines));
    let result = obey(server, &part, &input);
    drop(watch);
    result
}

/// Sends each line of the input. At the end of the input, sends `leave`.
fn read_lines(lines: &Sender<String>) {
    for line in io::stdin().lines().map_while(Result::ok) {
        let _ = lines.send(line);
    }
    let _ = lines.send("leave".into());
}

fn obey(
    mut server: Server,
    part: &ShownPart,
    input: &mpsc::Receiver<String>,
) -> Result<(), Box<dyn Error>> {
    for line in input {
        match line.as_str() {
            "leave" => return Ok(server.leave()?),
            "stop" | "force" => match server.stop(line == "force") {
                Ok(()) => return Ok(()),
                Err(error) => println!("refused: {error}"),
            },
            _ => {
                if let Some(bytes) = line.strip_prefix("resize ") {
                    part.resize(bytes.parse()?);
                }
                match server.resized() {
                    Ok(()) => println!("resized"),
                    Err(error) => println!("refused: {error}"),
                }
            }
        }
    }
    Ok(())
}
