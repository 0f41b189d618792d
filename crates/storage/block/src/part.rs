//! Remote namespaces inside another one.

/// A remote namespace that another one consists of.
///
/// A namespace that contains itself, directly or through the sets of other machines, has reads that
/// never end. So each target reports to its hosts what its namespaces consist of, and a part
/// refuses to connect to a namespace that contains its whole.
pub trait Part: Send + Sync {
    /// UUIDs of the remote namespace and of every namespace that it consists of, as its target last
    /// reported them.
    fn contents(&self) -> Vec<[u8; 16]>;

    /// The UUID of a namespace that it is a part of from now on.
    fn add_whole(&self, uuid: [u8; 16]);
}
