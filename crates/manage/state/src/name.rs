//! Names of hosts and subsystems that an operator chooses.

use farblock_wire::nqn;

/// Checks a name of a host or subsystem. No peer has a name that fails this.
///
/// # Errors
/// One sentence that names the mistake and the likely name.
pub fn check_name(name: &str) -> Result<(), String> {
    nqn::validate_name(name).map_err(|error| {
        format!("{error}; a valid name is for example nqn.2026-11.org.example:disks")
    })?;
    if name.contains(char::is_whitespace) {
        return Err(format!(
            "{name:?} contains a space, and no name does; a valid name is for example \
             nqn.2026-11.org.example:disks"
        ));
    }
    match meant(name) {
        Some(meant) => Err(format!("{name} is misspelt: did you mean {meant}?")),
        None => Ok(()),
    }
}

/// The NQN that a misspelt `nqn.` prefix suggests.
fn meant(name: &str) -> Option<String> {
    /// A longer first word is not a misspelt `nqn`.
    const LONGEST: usize = 4;
    let (word, rest) = name.split_once(['.', ':', ',', '-'])?;
    let is_near =
        (2..=LONGEST).contains(&word.len()) && word.bytes().all(|c| c.is_ascii_alphabetic());
    let meant = format!("nqn.{rest}");
    // The rest must make a valid NQN.
    (is_near && meant != name && nqn::validate(&meant).is_ok()).then_some(meant)
}
