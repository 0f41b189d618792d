//! The changes that a target refuses while it is a member of a group. The group decides about ANA
//! states, disks and listeners, so that all members agree.

use farblock_state::{Namespace, Step};

/// Refuses the steps that only the group may make.
///
/// # Errors
/// One sentence that names the command to use instead.
pub(crate) fn check(steps: &[Step]) -> Result<(), String> {
    steps.iter().find_map(refused).map_or(Ok(()), |sentence| Err(sentence.to_owned()))
}

fn refused(step: &Step) -> Option<&'static str> {
    match step {
        Step::ChangeListener { from, to, .. }
            if (from.ana, &from.ana_groups) != (to.ana, &to.ana_groups) =>
        {
            Some(
                "this target is a member of a group, which sets the ANA states: use farblock ctl \
                 group move, drain or pause",
            )
        }
        Step::AddListener(..) | Step::RemoveListener(..) => Some(
            "this target is a member of a group, whose addresses are fixed at the start: \
             restart the target with other listeners",
        ),
        Step::AddNamespace { .. } | Step::RemoveNamespace { .. } => Some(DISKS),
        Step::ChangeNamespace { from, to, .. } if disk(from) != disk(to) => Some(DISKS),
        _ => None,
    }
}

const DISKS: &str = "this target is a member of a group, whose disks are fixed at the start: \
                     restart all members with other disks";

/// The settings of a namespace that all members must share.
fn disk(namespace: &Namespace) -> (&str, u32, bool, u32, Option<uuid::Uuid>) {
    let Namespace { path, block_size, read_only, ana_group, uuid, .. } = namespace;
    (path, *block_size, *read_only, *ana_group, *uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_state::{Ana, Listener, Tls};

    #[test]
    fn a_member_refuses_changes_of_states_and_disks_and_allows_others() {
        let change = |to: Listener| Step::ChangeListener {
            address: ([127, 0, 0, 1], 4420).into(),
            from: Listener::default(),
            to,
        };
        let ana = change(Listener { ana: Ana::Inaccessible, ..Listener::default() });
        assert!(check(&[ana]).expect_err("refused").contains("group move"));
        assert!(check(&[change(Listener { tls: Tls::Required, ..Listener::default() })]).is_ok());
        let namespace = |ana_group| Namespace { ana_group, ..Namespace::new("a.img") };
        let moved = |to| Step::ChangeNamespace {
            nqn: "nqn.2026-11.a:b".to_owned(),
            nsid: 1,
            from: namespace(1),
            to,
        };
        assert!(check(&[moved(namespace(2))]).expect_err("refused").contains("all members"));
        let hidden = Namespace { visible_to: Some(Default::default()), ..namespace(1) };
        assert!(check(&[moved(hidden)]).is_ok());
    }
}
