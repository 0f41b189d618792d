//! What a target's process cannot do, so that whoever takes it over cannot either.

use serde::{Deserialize, Serialize};
use std::fmt;

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Confinement {
    /// Whether it gave anything up itself (not with `--no-sandbox`).
    pub sandboxed: bool,
    /// No program that it started could have more rights than it has (`no_new_privs`).
    pub no_new_privileges: bool,
    /// The kernel refuses the system calls that it does not need (seccomp).
    pub system_calls_filtered: bool,
    /// The kernel has it run no program, and make no device (Landlock).
    pub runs_no_program: bool,
    /// All that it may open, if that was said (Landlock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_paths: Option<Vec<String>>,
    /// Capabilities that it has.
    pub capabilities: Vec<String>,
    /// Whether its memory goes into core dumps, and to debuggers of the same user.
    pub dumpable: bool,
    /// What could not be given up, a sentence each.
    #[serde(default)]
    pub lacks: Vec<String>,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |is_so, yes, no| if is_so { yes } else { no };
        if !self.sandboxed {
            f.write_str("switched off; ")?;
        }
        f.write_str(said(self.no_new_privileges, "no new privileges", "new privileges possible"))?;
        f.write_str(said(
            self.system_calls_filtered,
            ", system calls filtered",
            ", all system calls",
        ))?;
        f.write_str(said(self.runs_no_program, ", runs no program", ", may run programs"))?;
        match &self.allowed_paths {
            Some(paths) => write!(f, ", opens only what is below {}", paths.join(", "))?,
            None => f.write_str(", opens whatever its user may")?,
        }
        match &self.capabilities[..] {
            [] => f.write_str(", no capabilities")?,
            some => write!(f, ", capabilities {}", some.join(" "))?,
        }
        f.write_str(said(self.dumpable, "", ", memory is not dumped"))?;
        self.lacks.iter().try_for_each(|sentence| write!(f, "; {sentence}"))
    }
}
