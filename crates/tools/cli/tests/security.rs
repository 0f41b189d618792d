//! Executes the five-minute setups in `docs/security.md`, line by line.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use support::{Scratch, Server};

/// Returns the text between a heading and the next one.
fn section(title: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/security.md");
    let text = std::fs::read_to_string(path).expect("the file is readable");
    let (_, rest) =
        text.split_once(&format!("\n## {title}\n")).expect("the document has the heading");
    rest.split("\n## ").next().expect("the document has the section").to_owned()
}

/// Returns the code blocks, each with the text after its fence.
fn blocks(section: &str) -> Vec<(&str, &str)> {
    let inside = section.split("```").skip(1).step_by(2);
    inside.map(|block| block.split_once('\n').expect("at least one line")).collect()
}

/// Returns the farblock commands in code blocks, and the `farblock serve` commands in sentences.
/// Leaves out commands of other programs.
fn commands(section: &str) -> Vec<String> {
    let lines = blocks(section).into_iter().filter(|(kind, _)| kind.is_empty());
    let lines = lines.flat_map(|(_, block)| block.lines());
    let spans = section.split('`').filter(|span| span.starts_with("farblock serve "));
    let all = lines.chain(spans).filter(|line| line.starts_with("farblock ") && line.len() < 200);
    let mut commands: Vec<String> =
        all.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned()).collect();
    commands.dedup();
    commands
}

/// Replaces the names in the document by the test's names.
struct Cast {
    scratch: Scratch,
    host: String,
}

impl Cast {
    fn new() -> Cast {
        let scratch = Scratch::new();
        scratch.disk("disk.img", 8 << 20);
        let own = scratch.run(["whoami", "--json"]).ok().json();
        let host = own["host_nqn"].as_str().expect("the JSON contains the name").to_owned();
        Cast { scratch, host }
    }

    /// Returns the words of a command, without the program.
    fn words(&self, line: &str, server: Option<&Server>) -> Vec<String> {
        let mut line = line.replace("HOSTNQN", "HOST").replace("0.0.0.0:4420", "127.0.0.1:0");
        if let Some(server) = server {
            line = line.replace("192.0.2.7", &server.address).replace("NQN", &server.nqn);
        }
        line = line.replace("HOST", &self.host);
        if line.starts_with("farblock attach ") {
            line += " --as nbd --no-device --name document";
        }
        line.split_whitespace().skip(1).map(|word| word.replace('\'', "")).collect()
    }

    fn run(&self, line: &str, server: Option<&Server>) {
        let outcome = self.scratch.run(self.words(line, server));
        assert_eq!(outcome.code, Some(0), "{line}: {}", outcome.stderr);
        if line.starts_with("farblock attach ") {
            self.scratch.run(["detach", "document"]).ok();
        }
    }

    /// Starts a target with the document's configuration file. Adds a subsystem before its hosts.
    fn configured(&self, block: &str) -> Server {
        let subsystem = "[[subsystems]]\nnqn = \"nqn.2026-11.org.farblock:document\"\n\
                         namespaces = [{ path = \"disk.img\" }]\n\n[[subsystems.hosts]]";
        let text = block
            .replace("0.0.0.0:4420", "127.0.0.1:0")
            .replace("127.0.0.1:4421", "127.0.0.2:0")
            .replace("HOSTNQN", &self.host)
            .replace("[[subsystems.hosts]]", subsystem);
        self.scratch.file("target.toml", text.as_bytes());
        self.scratch.serve(["--config", "target.toml"])
    }
}

/// Executes a section. Makes the keys, starts one target with options and one with the section's
/// file, and runs all later commands against each.
fn done(title: &str, expected: &[&str]) {
    let (cast, section) = (Cast::new(), section(title));
    let commands = commands(&section);
    for part in expected {
        let is_said = commands.iter().any(|line| line.starts_with(&format!("farblock {part}")));
        assert!(is_said, "{part} is missing in {commands:#?}");
    }
    let is_first = |line: &&String| {
        ["farblock keys ", "farblock whoami"].iter().any(|begin| line.starts_with(begin))
    };
    let (first, rest): (Vec<_>, Vec<_>) = commands.iter().partition(is_first);
    first.iter().for_each(|line| cast.run(line, None));
    // Make the target's own secret, which the document uses but does not make.
    cast.scratch.keys(["target.key"], &[]);
    let (serve, uses): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|line| line.starts_with("farblock serve "));
    let [serve] = serve[..] else { panic!("targets: {serve:#?}") };
    let server = Server::start(cast.scratch.command(cast.words(serve, None)));
    uses.iter().for_each(|line| cast.run(line, Some(&server)));
    server.stop();
    let toml = blocks(&section).into_iter().find(|(kind, _)| *kind == "toml");
    let server = cast.configured(toml.expect("the section has a configuration").1);
    uses.iter().for_each(|line| cast.run(line, Some(&server)));
}

#[test]
fn the_authentication_guide_works() {
    let expected =
        ["keys new", "whoami", "serve", "id", "attach", "ctl allow-host", "ctl disallow"];
    done("Authentication in five minutes", &expected);
}

#[test]
fn the_tls_guide_works() {
    done("TLS in five minutes", &["keys new --tls", "serve", "discover", "id", "attach"]);
}
