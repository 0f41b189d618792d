//! The group of which a target is a member.

use farblock_admin_api::GroupOrder;
use serde_json::Value;

/// The group of a target.
pub trait Grouped: Send + Sync {
    /// Returns the group as this member sees it.
    fn status(&self) -> Value;

    /// Returns the ANA groups whose disks this member uses now.
    fn leads(&self) -> Vec<u32>;

    /// Passes an operator's order, such as a move of an ANA group, to the group. May take seconds.
    ///
    /// # Errors
    /// One sentence with the reason why the group refused the order.
    fn order(&self, order: &GroupOrder) -> Result<(), String>;
}
