//! Restricts opening, executing and creating files, by Landlock.

use super::Paths;
use landlock::{ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr};
use landlock::{RulesetError, RulesetStatus, Scope, path_beneath_rules};

/// The ABI that this code knows: a newer kernel's additional rights stay unrestricted.
const KNOWN: ABI = ABI::V6;

/// Folders with libraries, names, device properties and the process itself.
const SYSTEM: &[&str] =
    &["/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/run", "/opt", "/nix", "/gnu"];
/// Devices that every process reads and writes.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/urandom", "/dev/hugepages"];

/// Forbids executing programs and making devices; with `paths`, also opening files elsewhere.
///
/// # Errors
/// One sentence for people.
pub(super) fn restrict(paths: Option<&Paths>) -> Result<(), String> {
    let status = ruled(paths).map_err(|error| format!("Landlock: {error}"))?;
    match status {
        RulesetStatus::NotEnforced => Err("this kernel has no Landlock".to_owned()),
        _ => Ok(()),
    }
}

fn ruled(paths: Option<&Paths>) -> Result<RulesetStatus, RulesetError> {
    let never = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
    let all = AccessFs::from_all(KNOWN);
    let handled = if paths.is_some() { all } else { never };
    let mut rules = Ruleset::default().handle_access(handled)?.scope(Scope::Signal)?.create()?;
    if let Some(paths) = paths {
        let every: BitFlags<_> = all & !never;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        rules = rules
            .add_rules(path_beneath_rules(SYSTEM, read))?
            .add_rules(path_beneath_rules(&paths.read, read))?
            .add_rules(path_beneath_rules(DEVICES, every))?
            .add_rules(path_beneath_rules(&paths.own, every))?
            .add_rules(path_beneath_rules(&paths.shared, every))?;
    }
    Ok(rules.restrict_self()?.ruleset)
}
