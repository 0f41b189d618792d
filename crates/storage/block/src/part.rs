//! Remote namespaces that another namespace consists of.

/// A remote namespace that another namespace consists of.
///
/// If a namespace contained itself, directly or through composite namespaces on other machines, its
/// reads would never end. Each target therefore reports the parts of its namespaces to its hosts. A
/// part refuses to connect to a namespace that contains the part's own composite namespace.
pub trait Part: Send + Sync {
    /// Returns the UUIDs of the remote namespace and of every namespace that it consists of, from
    /// the last report of its target.
    fn contents(&self) -> Vec<[u8; 16]>;

    /// Records that this remote namespace is now a part of the namespace `uuid`.
    fn add_whole(&self, uuid: [u8; 16]);
}
