//! The certificate of a TCP listener, and the certificates that a client trusts.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};

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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
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
            .expect("the provider supports these versions");
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

/// The problem of a certificate, as the end of a sentence.
fn fault(error: &Error) -> String {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return format!("the certificate cannot be used: {error}");
    };
    match other.0.downcast_ref() {
        Some(webpki::Error::UnsupportedCertVersion) => {
            "the certificate has X.509 version 1 or 2, but clients accept only version 3: create \
             one with openssl req -x509 … -addext subjectAltName=DNS:NAME,IP:ADDRESS"
                .to_owned()
        }
        Some(inner) => format!("the certificate is malformed or of an unsupported kind ({inner})"),
        None => format!("the certificate cannot be used: {other}"),
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

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err("the file contains no certificate (PEM: -----BEGIN CERTIFICATE-----)".to_owned()),
    }
}

/// The certificates that a client trusts.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts the certificates in `pem`, and the certificates that they signed. For a single
    /// target, a copy of its own certificate suffices.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub fn new(pem: &[u8]) -> Result<Self, String> {
        let known = certificates(pem)?;
        let mut roots = RootCertStore::empty();
        for certificate in &known {
            let added = roots.add(certificate.clone());
            added.map_err(|error| {
                format!("a certificate in the file is invalid: {}", fault(&error))
            })?;
        }
        let web = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        let web = web.map_err(|error| format!("the certificate cannot be used: {error}"))?;
        let config = ClientConfig::builder_with_provider(provider());
        let config = config
            .with_safe_default_protocol_versions()
            .expect("the provider supports these versions");
        let verifier = Arc::new(Verifier { web, known });
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        Ok(Self(Arc::new(config.with_no_client_auth())))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// Verifies like WebPKI, but also accepts a trusted certificate as the server's own certificate.
/// `openssl req -x509` marks its certificates as those of an authority, and WebPKI refuses these.
#[derive(Debug)]
struct Verifier {
    web: Arc<WebPkiServerVerifier>,
    known: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.web.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        match verified {
            // WebPKI checks the dates before it returns this error, so the dates are valid.
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if is_authority(&other) && self.known.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.web.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.web.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.web.supported_verify_schemes()
    }
}

fn is_authority(other: &rustls::OtherError) -> bool {
    other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

/// Whether the reason is that no trusted certificate signed the certificate.
fn is_strange(reason: &CertificateError) -> bool {
    match reason {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => true,
        CertificateError::Other(other) => is_authority(other),
        _ => false,
    }
}

/// The reason why TLS with `name` failed, as the end of a sentence.
pub(crate) fn words(name: &str, error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(error) = inner else { return format!("the TLS handshake failed: {error}") };
    let Error::InvalidCertificate(reason) = error else {
        return match error {
            Error::InvalidMessage(_) => {
                "the server does not use TLS: write http://, or start the target with --https-cert"
                    .to_owned()
            }
            error => format!("the TLS handshake failed: {error}"),
        };
    };
    use CertificateError as Bad;
    match reason {
        Bad::Expired | Bad::ExpiredContext { .. } => {
            "the server's certificate has expired: renew it, or correct this machine's clock"
                .to_owned()
        }
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: check the clocks of both machines"
                .to_owned()
        }
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => format!(
            "the server's certificate is not for {name}: use a name that the certificate contains, \
             or create one for this name (openssl req … -addext subjectAltName=DNS:NAME,IP:ADDRESS)"
        ),
        reason if is_strange(reason) => {
            "no certificate in the file of --api-ca (farblock ui: --node-ca) signed the server's \
             certificate: check the address and the file"
                .to_owned()
        }
        other => {
            let fault = fault(&Error::InvalidCertificate(other.clone()));
            format!("the server's certificate is not valid: {fault}")
        }
    }
}
