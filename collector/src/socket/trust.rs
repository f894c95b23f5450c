//! Whose certificates a client believes: those that the system vouches for, and those that are named.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Believes who the system believes, and whom the file `ca` names: those who vouch for others, and servers themselves.
pub(super) fn config(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // Those that cannot be read are simply not believed; where none can, the handshake says so.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut named = Vec::new();
    if let Some(path) = ca {
        let wrong = |why: &dyn fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate.clone()).map_err(|error| wrong(&error))?;
            named.push(certificate);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let config = versions.map_err(io::Error::other)?;
    if named.is_empty() {
        return Ok(config.with_root_certificates(roots).with_no_client_auth());
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = Arc::new(Named { usual: usual.map_err(io::Error::other)?, named });
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The usual rules, but that a server's own certificate may be one of those that are named though it says that it vouches for others. `openssl req
/// -x509`, by which most are made at home, makes such.
#[derive(Debug)]
struct Named {
    usual: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.usual.verify_server_cert(certificate, others, name, ocsp, now) {
            // No other of the kinds of errors that have names: one that has expired stays that. Who has its key is looked at beside.
            Err(Error::InvalidCertificate(CertificateError::Other(_))) if self.named.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
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
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
