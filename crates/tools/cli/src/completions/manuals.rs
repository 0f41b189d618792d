//! Writes the manual pages, one for the program and one for each command, from clap's help. This
//! module formats the examples itself, because clap_mangen would join their lines into paragraphs.

use super::command;
use crate::error::{Failure, Result, os};
use clap::Command;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Writes `farblock.1`, `farblock-serve.1` and so on.
pub(super) fn write(folder: &Path) -> Result<()> {
    let mut root = command().disable_help_subcommand(true);
    root.build();
    fs::create_dir_all(folder).and_then(|()| write_all(&root, folder)).map_err(|error| {
        let folder = folder.display();
        Failure::run(format_args!("cannot write manual pages into {folder}: {}", os(&error)))
    })
}

fn write_all(command: &Command, folder: &Path) -> io::Result<()> {
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write_all(one, folder)?;
    }
    let man = Man::new(command.clone());
    fs::write(folder.join(man.get_filename()), page(command, &man)?)
}

fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // The pages have no date, so that builds of one version are reproducible.
    let (name, version) = (man.get_filename(), env!("CARGO_PKG_VERSION"));
    let name = name.trim_end_matches(".1");
    writeln!(page, ".TH {name} 1 \"\" \"farblock {version}\" \"User Commands\"")?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        writeln!(page, ".SH EXAMPLES AND NOTES\n.nf\n{}\n.fi", verbatim(&text.to_string()))?;
    }
    Ok(page)
}

/// Escapes lines so that roff prints them as they are.
fn verbatim(text: &str) -> String {
    let line = |line: &str| match line.replace('\\', "\\e").replace('-', "\\-") {
        line if line.is_empty() => ".sp".to_owned(),
        line if line.starts_with(['.', '\'']) => format!("\\&{line}"),
        line => line,
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        write(folder.path()).expect("the file is written");
        let page = |name: &str| {
            fs::read_to_string(folder.path().join(name)).expect("the file is readable")
        };
        assert!(page("farblock.1").contains("farblock\\-serve(1)"));
        assert!(page("farblock-serve.1").contains("  farblock serve \\-\\-config farblock.toml"));
        assert!(
            !folder.path().join("farblock-attachment.1").exists(),
            "a hidden command has a page"
        );
        #[cfg(unix)]
        assert!(page("farblock-ctl-resize.1").contains(".SH SYNOPSIS"));
    }

    #[test]
    fn manual_text_is_escaped_for_roff() {
        assert_eq!(verbatim(".a\n\n'b\n\\c -d"), "\\&.a\n.sp\n\\&'b\n\\ec \\-d");
    }
}
