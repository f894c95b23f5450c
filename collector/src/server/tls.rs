//! HTTPS with a certificate from files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::options::TlsFiles;

/// Why a certificate or its key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub wrong: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.wrong)
    }
}

impl std::error::Error for TlsError {}

/// Reads both files.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let certificates = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
        .map_err(|error| unread(&files.certificate, "certificate", error))?;
    if certificates.is_empty() {
        return Err(unread(&files.certificate, "certificate", pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unread(&files.key, "private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key));
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            wrong(&files.key, format!("the key is not that of the certificate in {}", files.certificate.display()))
        }
        rustls::Error::InvalidCertificate(why) => wrong(&files.certificate, format!("no valid certificate: {why}")),
        other => wrong(&files.key, other.to_string()),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn wrong(file: &Path, wrong: String) -> TlsError {
    TlsError { file: file.to_owned(), wrong }
}

fn unread(file: &Path, what: &str, error: pem::Error) -> TlsError {
    wrong(
        file,
        match error {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => format!("there is no {what} in PEM (-----BEGIN …) in it"),
            error => format!("not a {what} in PEM: {error}"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_do_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("room for it");
            path
        };
        let [one, other] =
            [(); 2].map(|()| rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate"));
        let certificate = write("good.pem", &one.cert.pem());
        let key = write("key.pem", &one.signing_key.serialize_pem());
        let others_key = write("others.pem", &other.signing_key.serialize_pem());
        let garbage = write("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let empty = write("empty.pem", "");
        let absent = folder.path().join("absent.pem");
        let check = |certificate: &Path, key: &Path, at_fault: &Path, why: &str| {
            let files = TlsFiles { certificate: certificate.to_owned(), key: key.to_owned() };
            let error = acceptor(&files).err().expect("it does not do");
            assert_eq!(error.file, at_fault, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        };
        check(&absent, &key, &absent, "No such file");
        check(&certificate, &absent, &absent, "No such file");
        check(&empty, &key, &empty, "no certificate in PEM");
        check(&key, &key, &key, "no certificate in PEM");
        check(&certificate, &certificate, &certificate, "no private key in PEM");
        check(&certificate, &others_key, &others_key, "not that of the certificate");
        check(&garbage, &key, &garbage, "no valid certificate");
        assert!(acceptor(&TlsFiles { certificate, key }).is_ok());
    }
}
