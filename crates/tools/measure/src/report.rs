//! The destinations of the report: a table on the standard output, and JSON and HTML in files.

use super::args::BenchArgs;
use farblock_bench::{Report, html, table};
use farblock_program::error::{Failure, Result};
use farblock_program::output;
use farblock_program::replace::{Replacement, cannot};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The files that the user requested. Existing files keep their contents until the report is
/// complete.
pub(super) struct Files {
    json: Option<Destination>,
    html: Option<Destination>,
    columns: usize,
}

/// The destination of one form of the report.
pub enum Destination {
    /// The standard output, if the user named no file.
    StandardOutput,
    /// A regular file. The report is written beside the old file, and then replaces it.
    File(Replacement),
    /// A pipe or device, and its name.
    Stream(File, String),
}

impl Files {
    pub(super) fn open(args: &BenchArgs) -> Result<Files> {
        let open =
            |path: &Option<std::path::PathBuf>| path.as_deref().map(Destination::open).transpose();
        let columns = if args.wide { usize::MAX } else { output::columns() };
        let files = Files { json: open(&args.json)?, html: open(&args.html)?, columns };
        match (&files.json, &files.html) {
            (Some(Destination::StandardOutput), Some(Destination::StandardOutput)) => {
                Err(Failure::usage("the standard output can get either JSON or HTML, not both"))
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
            let Some(destination) = destination else { continue };
            table_wanted &= !destination.is_standard_output();
            destination.write(&text())?;
        }
        match table_wanted {
            true => output::print(&table::render_within(report, self.columns)),
            false => Ok(()),
        }
    }
}

impl Destination {
    /// Checks before any measurement that the report can be written to `path`.
    ///
    /// # Errors
    /// The reason why the report cannot be written there.
    pub fn open(path: &Path) -> Result<Destination> {
        if path == Path::new("-") {
            return Ok(Destination::StandardOutput);
        }
        let special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        if !special {
            return Replacement::begin(path, false).map(Destination::File);
        }
        let name = path.display().to_string();
        match OpenOptions::new().write(true).open(path) {
            Ok(file) => Ok(Destination::Stream(file, name)),
            Err(error) => Err(cannot("write to", &name, &error)),
        }
    }

    /// Whether the report uses the standard output, so that no other output may be printed there.
    pub fn is_standard_output(&self) -> bool {
        matches!(self, Destination::StandardOutput)
    }

    /// Writes the report to this destination.
    ///
    /// # Errors
    /// The reason why the report could not be written. An existing file is then unchanged.
    pub fn write(self, text: &str) -> Result<()> {
        match self {
            Destination::StandardOutput => output::print_exact(text),
            Destination::File(new) => {
                new.fill(text.as_bytes())?;
                new.commit()
            }
            Destination::Stream(mut file, name) => {
                let written = file.write_all(text.as_bytes());
                written.map_err(|error| cannot("write to", &name, &error))
            }
        }
    }
}
