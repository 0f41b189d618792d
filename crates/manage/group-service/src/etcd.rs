//! The settings for the connection to etcd.

use serde::{Deserialize, Serialize};

/// Certificates for TLS to etcd, as PEM.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct EtcdTls {
    /// The certificates of the authorities that signed etcd's certificates.
    pub authorities: Vec<u8>,
    /// The member's own certificate, with its intermediates, and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// The settings for the connection to etcd.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct EtcdConfig {
    /// The addresses of etcd's members: `http://HOST:PORT` or `https://HOST:PORT`. One suffices;
    /// with all of them, the member can connect after any of them has failed.
    pub endpoints: Vec<String>,
    /// The name of a user of etcd, and its password.
    pub user: Option<(String, String)>,
    /// TLS; necessary for `https://`.
    pub tls: Option<EtcdTls>,
}
