//! The certificate of a TCP listener.

use farblock_admin_client::trust::{certificates, fault, provider};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};

/// Certificates in PEM format, and the private key of the first one.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The certificate, followed by its intermediate certificates.
    pub certificates: Vec<u8>,
    /// The private key of the certificate.
    pub key: Vec<u8>,
}

/// A function that reads the certificate and key files again.
pub type ReadPem = Box<dyn Fn() -> Result<Pem, String> + Send + Sync>;

/// A certificate with its private key. It can be replaced while it is in use.
#[derive(Clone)]
pub struct Certificate(Arc<Renewed>);

struct Renewed {
    read: ReadPem,
    now: RwLock<(Pem, Arc<CertifiedKey>)>,
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewed")
    }
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).1))
    }
}

impl Certificate {
    /// Uses the certificate that `read` returns, now and at each renewal.
    ///
    /// # Errors
    /// One sentence with the reason, which contains no part of the key.
    pub fn new(read: ReadPem) -> Result<Self, String> {
        let pem = read()?;
        let key = certified(&pem)?;
        Ok(Self(Arc::new(Renewed { read, now: RwLock::new((pem, Arc::new(key))) })))
    }

    /// Replaces the certificate if `read` returns a new valid one. Returns whether it was replaced.
    ///
    /// # Errors
    /// One sentence with the reason.
    pub(crate) fn renew(&self) -> Result<bool, String> {
        let pem = (self.0.read)()?;
        let now =
            |now: &RwLock<(Pem, _)>| now.read().unwrap_or_else(PoisonError::into_inner).0.clone();
        if now(&self.0.now) == pem {
            return Ok(false);
        }
        let key = Arc::new(certified(&pem)?);
        *self.0.now.write().unwrap_or_else(PoisonError::into_inner) = (pem, key);
        Ok(true)
    }

    /// The reason why clients refuse the certificate today because of its dates; `None` if its
    /// dates are valid.
    #[must_use]
    pub fn doubt(&self) -> Option<&'static str> {
        let key = Arc::clone(&self.0.now.read().unwrap_or_else(PoisonError::into_inner).1);
        match dates(&key.cert) {
            Err(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => Some(
                "the certificate has expired, so clients refuse it: renew it, or correct this \
                 machine's clock",
            ),
            Err(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                Some(
                    "the certificate is not valid yet, so clients refuse it: check this machine's \
                     clock",
                )
            }
            _ => None,
        }
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let config = ServerConfig::builder_with_provider(provider());
        let config = config
            .with_safe_default_protocol_versions()
            .expect("the provider supports these TLS versions");
        let resolver = Arc::clone(&self.0) as Arc<dyn ResolvesServerCert>;
        let mut config = config.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// Checks the dates of the first certificate like a client that trusts all of these certificates.
/// Clients check the dates first, so the results of later checks do not matter here.
fn dates(chain: &[CertificateDer<'static>]) -> Result<(), CertificateError> {
    let Some((first, rest)) = chain.split_first() else { return Ok(()) };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain.iter().cloned());
    let web = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let Ok(web) = web else { return Ok(()) };
    let name = ServerName::try_from("localhost").expect("localhost is a valid name");
    match web.verify_server_cert(first, rest, &name, &[], UnixTime::now()) {
        Err(Error::InvalidCertificate(error)) => Err(error),
        _ => Ok(()),
    }
}

fn certified(pem: &Pem) -> Result<CertifiedKey, String> {
    let certificates = certificates(&pem.certificates)?;
    let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|_| {
        "the file contains no usable private key (if the key has a passphrase, remove it with \
         openssl pkey -in FILE)"
            .to_owned()
    })?;
    CertifiedKey::from_der(certificates, key, &provider()).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            "the private key does not belong to the certificate".to_owned()
        }
        error => fault(&error),
    })
}
