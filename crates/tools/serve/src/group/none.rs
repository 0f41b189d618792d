//! Stubs for systems other than Linux, on which `serve` has no options for groups.

use super::document::{Led, Shares};
use crate::args::ServeArgs;
use crate::error::Result;
use crate::signals::Stop;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Target, TargetConfig};
use std::collections::BTreeMap;

/// A request to join a group. This enum has no variant, because no target on this system joins one.
pub(super) enum Wished {}

/// A member of a group. This enum has no variant, because no target on this system joins one.
pub(super) enum Member {}

pub(super) fn prepare(_: &ServeArgs) -> Result<Option<Wished>> {
    Ok(None)
}

pub(super) fn is_wished(_: &ServeArgs) -> bool {
    false
}

pub(super) fn nqn(_: &ServeArgs) -> Option<String> {
    None
}

pub(super) fn described(
    _: &ServeArgs,
    _: u32,
    namespace: farblock_state::Namespace,
) -> farblock_state::Namespace {
    namespace
}

pub(super) fn uuid(_: &str, _: &str) -> uuid::Uuid {
    uuid::Uuid::nil()
}

pub(super) fn absent(_: &mut Shares, _: (usize, NamespaceId), _: Led) -> Result<()> {
    Ok(())
}

pub(super) fn join(
    _: Option<Wished>,
    config: TargetConfig,
    _: (&ServeArgs, BTreeMap<(String, u32), Led>),
    _: &Stop,
) -> Result<(TargetConfig, Option<Member>)> {
    Ok((config, None))
}

impl Member {
    pub(super) fn attach(&self, _: &Target) {
        match *self {}
    }

    #[cfg(unix)]
    pub(super) fn grouped(&self) -> std::sync::Arc<dyn farblock_admin::Grouped> {
        match *self {}
    }

    pub(super) fn leave(self, _: bool) -> bool {
        match self {}
    }
}
