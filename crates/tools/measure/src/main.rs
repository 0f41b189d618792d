//! `farblock bench` as a separate program, for `make demo`: compiling all of farblock would take
//! longer than the whole measurement.

use clap::Parser;
use farblock_measure::BenchArgs;
use farblock_program::args::Global;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "farblock-bench", version, max_term_width = 100)]
struct Alone {
    #[command(flatten)]
    global: Global,

    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    let Alone { global, bench } = Alone::parse();
    farblock_program::signals::survive_file_size_limit();
    let open = |spec: &_, block_size, read_only| {
        farblock_backends::Spec::open(spec, block_size, read_only)
    };
    match farblock_measure::run(bench, false, &global, open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
