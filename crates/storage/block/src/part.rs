//! Remote namespaces inside another one.

/// A remote namespace that another one consists of.
///
/// If a namespace contained itself, directly or through sets on other machines, its reads would
/// never end. So each target reports to its hosts what its namespaces consist of, and a part
/// refuses to connect to a namespace that contains the namespace it belongs to.
pub trait Part: Send + Sync {
    /// UUIDs of the remote namespace and of every namespace that it consists of, as its target last
    /// reported them.
    fn contents(&self) -> Vec<[u8; 16]>;

    /// Records that this remote namespace is now a part of the namespace `uuid`.
    fn add_whole(&self, uuid: [u8; 16]);
}
