//! HTTPS with a certificate from files.

use std::io;
use std::path::{Path, PathBuf};
#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use rustls::ServerConfig;
#[cfg(feature = "tls")]
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio_rustls::server::TlsStream;

use super::options::TlsFiles;

/// Why a certificate or key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    /// The unusable file.
    pub path: PathBuf,
    /// Why the file cannot be used.
    pub reason: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Returns the error that the file at `path` cannot be used for this reason.
fn tls_error(path: &Path, reason: String) -> TlsError {
    TlsError { path: path.to_owned(), reason, source: None }
}

/// Performs TLS handshakes with clients, with one certificate.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(super) struct TlsAcceptor(tokio_rustls::TlsAcceptor);

#[cfg(feature = "tls")]
impl TlsAcceptor {
    /// Creates the acceptor from the files with the certificate and its key.
    pub(super) fn from_files(files: &TlsFiles) -> Result<Self, TlsError> {
        let certificates = CertificateDer::pem_file_iter(&files.certificate)
            .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
            .map_err(|error| pem_error(&files.certificate, "certificate", error))?;
        if certificates.is_empty() {
            return Err(pem_error(&files.certificate, "certificate", pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key);
        let key = key.map_err(|error| pem_error(&files.key, "private key", error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key));
        let mut config = config.map_err(|error| rustls_error(files, error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(tokio_rustls::TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the TLS handshake on a new connection.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

/// Converts the TLS library's error into one that names the file at fault: the certificate or the
/// key.
#[cfg(feature = "tls")]
fn rustls_error(files: &TlsFiles, error: rustls::Error) -> TlsError {
    let (path, reason) = match &error {
        rustls::Error::InconsistentKeys(_) => {
            let certificate = files.certificate.display();
            (&files.key, format!("the key does not belong to the certificate in {certificate}"))
        }
        rustls::Error::InvalidCertificate(reason) => (&files.certificate, format!("invalid certificate: {reason}")),
        other => (&files.key, other.to_string()),
    };
    TlsError { source: Some(Box::new(error)), ..tls_error(path, reason) }
}

/// Converts an error of reading the PEM file at `path` into one that names the file. `expected` is
/// what the file should contain: "certificate" or "private key".
#[cfg(feature = "tls")]
fn pem_error(path: &Path, expected: &str, error: pem::Error) -> TlsError {
    let reason = match &error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("the file has no {expected} in PEM (-----BEGIN …)"),
        error => format!("not a {expected} in PEM: {error}"),
    };
    TlsError { source: Some(Box::new(error)), ..tls_error(path, reason) }
}

/// Replaces the TLS acceptor in a build without TLS. The type has no values.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(super) enum TlsAcceptor {}

#[cfg(not(feature = "tls"))]
impl TlsAcceptor {
    /// Fails, because this build has no TLS.
    pub(super) fn from_files(files: &TlsFiles) -> Result<Self, TlsError> {
        Err(tls_error(&files.certificate, "HTTPS needs the `tls` feature of vramscope-collector".to_owned()))
    }

    /// Never called, because the type has no values in a build without TLS.
    pub(super) async fn accept(&self, _: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_reported_by_path_and_reason() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the temporary folder is writable");
            path
        };
        let [one, other] = [(); 2].map(|()| {
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate can be generated")
        });
        let certificate = write("good.pem", &one.cert.pem());
        let key = write("key.pem", &one.signing_key.serialize_pem());
        let other_key = write("other-key.pem", &other.signing_key.serialize_pem());
        let garbage = write("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let empty = write("empty.pem", "");
        let absent = folder.path().join("absent.pem");
        let check = |certificate: &Path, key: &Path, path_at_fault: &Path, reason: &str| {
            let files = TlsFiles { certificate: certificate.to_owned(), key: key.to_owned() };
            let error = TlsAcceptor::from_files(&files).err().expect("the files are unusable");
            assert_eq!(error.path, path_at_fault, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        };
        check(&absent, &key, &absent, "No such file");
        check(&certificate, &absent, &absent, "No such file");
        check(&empty, &key, &empty, "no certificate in PEM");
        check(&key, &key, &key, "no certificate in PEM");
        check(&certificate, &certificate, &certificate, "no private key in PEM");
        check(&certificate, &other_key, &other_key, "does not belong to the certificate");
        check(&garbage, &key, &garbage, "invalid certificate");
        assert!(TlsAcceptor::from_files(&TlsFiles { certificate, key }).is_ok());
    }
}
