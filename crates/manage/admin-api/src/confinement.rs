//! The rights that the process of a target has dropped. An attacker who takes over the process does
//! not get them either.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The rights that the process of a target has dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Confinement {
    /// Whether the process has dropped rights itself. With `--no-sandbox`, it does not.
    pub sandboxed: bool,
    /// Whether programs that the process starts can gain no rights (`no_new_privs`).
    pub no_new_privileges: bool,
    /// Whether the kernel refuses the system calls that the process does not need (seccomp).
    pub system_calls_filtered: bool,
    /// Whether the kernel forbids the process to run programs and to create device files
    /// (Landlock).
    pub runs_no_program: bool,
    /// The only paths that the process may open, if they are restricted (Landlock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_paths: Option<Vec<String>>,
    /// The capabilities that the process has kept.
    pub capabilities: Vec<String>,
    /// Whether core dumps and debuggers of the same user can read the memory of the process.
    pub dumpable: bool,
    /// The rights that the process could not drop, one sentence each.
    #[serde(default)]
    pub lacks: Vec<String>,
}

impl Confinement {
    /// Whether the process is confined, in a few words. [`fmt::Display`] gives the details.
    #[must_use]
    pub fn brief(&self) -> String {
        let lacks = self.lacks.len();
        match (self.sandboxed, lacks) {
            (false, _) => "off (--no-sandbox)".to_owned(),
            (true, 0) => "on".to_owned(),
            (true, _) => format!("on, but {lacks} of its parts failed (see status --verbose)"),
        }
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |is_so, yes, no| if is_so { yes } else { no };
        if !self.sandboxed {
            f.write_str("off; ")?;
        }
        f.write_str(said(self.no_new_privileges, "no new privileges", "new privileges possible"))?;
        f.write_str(said(
            self.system_calls_filtered,
            ", system calls filtered",
            ", all system calls allowed",
        ))?;
        f.write_str(said(self.runs_no_program, ", cannot run programs", ", may run programs"))?;
        match &self.allowed_paths {
            Some(paths) => write!(f, ", opens only files below {}", paths.join(", "))?,
            None => f.write_str(", opens any file that its user can open")?,
        }
        match &self.capabilities[..] {
            [] => f.write_str(", no capabilities")?,
            some => write!(f, ", capabilities {}", some.join(" "))?,
        }
        f.write_str(said(self.dumpable, "", ", no core dumps"))?;
        self.lacks.iter().try_for_each(|sentence| write!(f, "; {sentence}"))
    }
}
