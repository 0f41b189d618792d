//! Runs the six patterns through fio, to compare farblock's engine and target with SPDK's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use farblock_bench::Pattern;

use super::contest::{self, Entrant, Row};
use super::sides::{self, Client, Endpoint, Means, Server, Target, Times};
use super::work::{Backend, Load};
use super::{DiskFile, Options};

/// The name of the table's file, and the title of the table.
const TABLE: (&str, &str) =
    ("fio", "the six patterns through fio: farblock's engine and SPDK's plugin");

/// The folder of the fio job files in this repository.
const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engines/fio/jobs");

#[derive(Clone, Copy)]
enum Engine {
    Farblock,
    Spdk,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let rows: Vec<Row> = Pattern::six().iter().map(row).collect();
    let rows: Vec<Row> = rows
        .into_iter()
        .filter(|row| options.only.iter().all(|words| row.name.contains(words.as_str())))
        .collect();
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    super::network::enter();
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = super::means(options, &file)?;
    let engine = means.farblock.with_file_name("libfarblock-fio.so");
    if !engine.is_file() {
        let folder = engine.parent().unwrap_or(Path::new(".")).display();
        let missing = engine.display();
        return Err(format!(
            "{missing} does not exist: build it with engines/fio/build.sh {folder}"
        ));
    }
    let mut remarks = vec![
        "The jobs are those in `engines/fio/jobs`. fio runs each job as a thread, on a RAM disk of \
         512 MiB."
            .to_owned(),
    ];
    let ours = means.serve(sides::ADAPTIVE_TARGET, Backend::Mem)?.expect("this side has a target");
    let (theirs, plugin) = match spdk_plugin(&means) {
        Ok(plugin) => (means.serve(Target::Spdk { zero_copy: false }, Backend::Mem)?, plugin),
        Err(sentence) => {
            remarks.push(format!("not measured: {sentence}"));
            (None, PathBuf::new())
        }
    };
    let mut entrants = vec![entrant("farblock", Engine::Farblock, &engine, &ours, false)];
    if let Some(server) = &theirs {
        server.process.pause();
        remarks.push(
            "SPDK's plugin polls, so if there are more jobs than processors, the jobs wait for \
             each other."
                .into(),
        );
        entrants.push(entrant("SPDK", Engine::Spdk, &plugin, server, true));
        let name = "farblock's engine, SPDK's target";
        entrants.push(entrant(name, Engine::Farblock, &engine, server, true));
    }
    contest::hold(TABLE, options, &rows, &entrants, contest::times(options)?, &remarks)
}

/// The path of SPDK's plugin, or the reason why it is missing.
fn spdk_plugin(means: &Means) -> Result<PathBuf, String> {
    if let Some(sentence) = means.lack(sides::SPDK) {
        return Err(sentence);
    }
    let plugin = means.spdk.as_ref().map(|build| build.join("build/fio/spdk_nvme"));
    let plugin = plugin.expect("the check found the plugin");
    match plugin.is_file() {
        true => Ok(plugin),
        false => Err(format!(
            "SPDK: {} does not exist: configure SPDK with --with-fio=SOURCE",
            plugin.display()
        )),
    }
}

fn entrant<'a>(
    name: &'static str,
    engine: Engine,
    plugin: &'a Path,
    server: &'a Server,
    polls: bool,
) -> Entrant<'a> {
    let client = move |row: &Row, times: Times| {
        let command = fio(engine, plugin, &server.endpoint, &row.name, times);
        Client { command, begins: None, parse: sides::nbd::parse }
    };
    Entrant { name, server: Some(&server.process), polls, client: Box::new(client) }
}

fn fio(engine: Engine, plugin: &Path, endpoint: &Endpoint, pattern: &str, times: Times) -> Command {
    let mut command = Command::new("fio");
    // Escape colons, because fio splits file names at colons.
    let escaped = |text: &str| text.replace(':', "\\:");
    let (address, name) = (endpoint.address, escaped(&endpoint.name));
    match engine {
        Engine::Farblock => {
            let url = escaped(&format!("nvme+tcp://{address}/{}?ns=1", endpoint.name));
            command.arg(format!("--ioengine=external:{}", plugin.display()));
            command.arg(format!("--filename={url}"));
        }
        Engine::Spdk => {
            let (ip, port) = (address.ip(), address.port());
            command.env("LD_PRELOAD", plugin).env("SPDK_FIO_NO_HUGE", "1");
            command.args(["--ioengine=spdk", "--mem_size_mb=512"]).arg(format!(
                "--filename=trtype=TCP adrfam=IPv4 traddr={ip} trsvcid={port} subnqn={name} ns=1"
            ));
        }
    }
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    command
        .args(["--thread=1", "--output-format=json"])
        .arg(format!("--ramp_time={}", ms(times.ramp)))
        .arg(format!("--runtime={}", ms(times.runtime)))
        .arg(job_file(pattern));
    command
}

/// The job file of a pattern: `4k-random-read.fio` for `4k random read`.
fn job_file(pattern: &str) -> PathBuf {
    Path::new(JOBS).join(format!("{}.fio", pattern.replace(' ', "-")))
}

fn row(pattern: &Pattern) -> Row {
    Row { name: pattern.name.clone(), load: Load::of(pattern) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_job_files_match_the_six_patterns() {
        for pattern in Pattern::six() {
            let path = job_file(&pattern.name);
            let text = std::fs::read_to_string(&path).expect("a file for each entrant");
            let lines = text.lines().filter(|line| !line.starts_with(';'));
            let values: HashMap<_, _> = lines.filter_map(|line| line.split_once('=')).collect();
            let load = row(&pattern).load;
            let (numjobs, iodepth) = (pattern.numjobs.to_string(), pattern.iodepth.to_string());
            for (key, value) in [
                ("rw", load.rw.name()),
                ("bs", &load.block_size()),
                ("numjobs", &numjobs),
                ("iodepth", &iodepth),
                ("direct", "1"),
            ] {
                let found = values.get(key).copied();
                assert_eq!(found, Some(value), "{key} in {}", path.display());
            }
        }
    }
}
