//! Names (NQNs) of hosts and subsystems.

use farblock_wire::nqn;

/// Checks that a name fits the field of a command. The name need not be a valid NQN, because some
/// peers use other names.
pub(crate) fn check(name: &str) -> Result<(), nqn::NqnError> {
    if name.len() > nqn::NQN_MAX_BYTES {
        return Err(nqn::NqnError::TooLong);
    }
    nqn::parse_field_text(&nqn::nqn_field(name)).map(|_| ())
}
