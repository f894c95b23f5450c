//! Which server certificates a client trusts: the system's, and those in a file.

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

/// Returns a TLS configuration that trusts the system's CA certificates and the certificates in the
/// PEM file `ca`, which may be those of CAs or of servers.
pub(super) fn config(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // Unreadable system certificates are skipped; without any valid one, the handshake fails.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let mut additional = Vec::new();
    if let Some(path) = ca {
        let file_error = |reason: &dyn fmt::Display| io::Error::other(format!("{}: {reason}", path.display()));
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| file_error(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| file_error(&error))?;
            roots.add(certificate.clone()).map_err(|error| file_error(&error))?;
            additional.push(certificate);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let config = versions.map_err(io::Error::other)?;
    if additional.is_empty() {
        return Ok(config.with_root_certificates(roots).with_no_client_auth());
    }
    let web_pki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = Arc::new(Verifier { web_pki: web_pki.map_err(io::Error::other)?, additional });
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Verifies a server's certificate by the usual rules (WebPKI), but also accepts a CA certificate
/// as the server's own if the user's CA file has it. `openssl req -x509`, with which most
/// self-signed certificates are made, makes CA certificates.
#[derive(Debug)]
struct Verifier {
    web_pki: Arc<WebPkiServerVerifier>,
    additional: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.web_pki.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // WebPKI reports a CA certificate as `Other`. Errors such as an expired certificate
            // have their own variants and remain errors. The signature is verified separately.
            Err(Error::InvalidCertificate(CertificateError::Other(_))) if self.additional.contains(certificate) => {
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
        self.web_pki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.web_pki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.web_pki.supported_verify_schemes()
    }
}
