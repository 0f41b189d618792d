//! Names (NQNs) of hosts and subsystems.

use farblock_wire::nqn;

/// Checks that a name can be sent. Some peers have names that are not valid NQNs, so this checks
/// only that the name fits the field.
pub(crate) fn check(name: &str) -> Result<(), nqn::NqnError> {
    if name.len() > nqn::NQN_MAX_BYTES {
        return Err(nqn::NqnError::TooLong);
    }
    nqn::parse_field_text(&nqn::nqn_field(name)).map(|_| ())
}
