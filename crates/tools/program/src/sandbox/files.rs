//! Restricts which files the process may open, execute and create, with Landlock.

use super::Paths;
use landlock::{ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr};
use landlock::{RulesetError, RulesetStatus, Scope, path_beneath_rules};

/// The Landlock version that this code handles. Rights that newer versions add stay unrestricted.
const KNOWN: ABI = ABI::V6;

/// The folders that every process may read: libraries, name resolution, device properties and
/// process information.
const SYSTEM: &[&str] =
    &["/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/run", "/opt", "/nix", "/gnu"];
/// The devices that every process may read and write.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/urandom", "/dev/hugepages"];

/// Forbids executing programs and creating device files. With `paths`, also forbids opening files
/// outside of them.
///
/// # Errors
/// The kernel does not support Landlock. The error is a sentence for the user.
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
