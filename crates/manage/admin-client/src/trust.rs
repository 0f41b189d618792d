//! The certificates that a client trusts.

use std::io;
use std::sync::Arc;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// The certificates that a client trusts.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts the certificates in `pem`, and the certificates that they signed. For a single
    /// target, a copy of its own certificate suffices.
    ///
    /// # Errors
    /// The problem, without the name of the file.
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
            .expect("the provider supports these TLS versions");
        let verifier = Arc::new(Verifier { web, known });
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        Ok(Self(Arc::new(config.with_no_client_auth())))
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }
}

/// Verifies like WebPKI, but also accepts a trusted certificate as the server's own certificate.
/// `openssl req -x509` marks a self-signed certificate as an authority's, and WebPKI refuses such a
/// certificate from a server.
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

/// Whether WebPKI refused the certificate because no trusted certificate signed it.
fn is_strange(reason: &CertificateError) -> bool {
    match reason {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => true,
        CertificateError::Other(other) => is_authority(other),
        _ => false,
    }
}

/// The reason why TLS with `name` failed, without the server's address.
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

/// The cryptography library for TLS, which clients and servers use.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The problem of a certificate, without the name of the file.
#[must_use]
pub fn fault(error: &Error) -> String {
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

/// The certificates in a PEM file.
///
/// # Errors
/// The problem, without the name of the file.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err("the file contains no certificate (PEM: -----BEGIN CERTIFICATE-----)".to_owned()),
    }
}
