//! Where the report goes: a table on the standard output, JSON and HTML in files.

use crate::args::BenchArgs;
use crate::error::{Failure, Result, os};
use crate::output;
use farblock_bench::{Report, html, table};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The files that were asked for, open for writing. What they held is kept until there is a report.
pub(super) struct Files {
    json: Option<Destination>,
    html: Option<Destination>,
}

enum Destination {
    StandardOutput,
    File(File, String),
}

impl Files {
    pub(super) fn open(args: &BenchArgs) -> Result<Files> {
        let open = |path: &Option<std::path::PathBuf>| path.as_deref().map(destination).transpose();
        let files = Files { json: open(&args.json)?, html: open(&args.html)? };
        match (&files.json, &files.html) {
            (Some(Destination::StandardOutput), Some(Destination::StandardOutput)) => {
                Err(Failure::usage("JSON and HTML cannot both go to the standard output"))
            }
            _ => Ok(files),
        }
    }

    pub(super) fn write(self, report: &Report) -> Result<()> {
        let mut table_wanted = true;
        for (destination, text) in [
            (self.json, &(|| report.to_json() + "\n") as &dyn Fn() -> String),
            (self.html, &|| html::render(report)),
        ] {
            match destination {
                None => {}
                Some(Destination::StandardOutput) => {
                    table_wanted = false;
                    output::print(&text())?;
                }
                Some(Destination::File(mut file, name)) => {
                    let text = text();
                    let written = file
                        .set_len(0)
                        .or_else(|error| if is_regular(&file) { Err(error) } else { Ok(()) })
                        .and_then(|()| file.write_all(text.as_bytes()));
                    written.map_err(|error| {
                        Failure::run(format_args!("cannot write to {name}: {}", os(&error)))
                    })?;
                }
            }
        }
        if table_wanted { output::print(&table::render(report)) } else { Ok(()) }
    }
}

fn destination(path: &Path) -> Result<Destination> {
    if path == Path::new("-") {
        return Ok(Destination::StandardOutput);
    }
    let name = path.display().to_string();
    match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
        Ok(file) => Ok(Destination::File(file, name)),
        Err(error) => Err(Failure::run(format_args!("cannot write to {name}: {}", os(&error)))),
    }
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}
