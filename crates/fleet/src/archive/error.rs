//! Errors of reading and writing an archive.

use std::io;

/// Why an archive cannot be read or written. The text shows no secrets.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The object store refused a request or could not be reached.
    #[error("{name}: {}", describe(source))]
    Store {
        /// The name of the object, or the address of the archive.
        name: String,
        /// The error of the object store.
        source: object_store::Error,
    },
    /// There is no archive at the address.
    #[error("{0} is not an archive: it has no manifest.json")]
    NoArchive(String),
    /// The manifest is invalid.
    #[error("manifest.json is invalid: {0}")]
    Manifest(String),
    /// An object's size or content differs from its entry in the manifest.
    #[error("{name} is not what the manifest lists: {reason}")]
    Object {
        /// The name of the object.
        name: String,
        /// How the object differs.
        reason: String,
    },
    /// The archive belongs to another run.
    #[error("the archive is of the run {0}: use another address for each run")]
    OtherRun(String),
    /// Another server writes the archive.
    #[error("another server writes this archive: stop one of them, or use another address")]
    Conflict,
    /// A recording cannot be divided.
    #[error("cannot archive the recording: {0}")]
    Recording(String),
    /// A process or name that the layout does not allow.
    #[error("cannot archive the process: {0}")]
    Process(String),
    /// The archive is incomplete: some data was not stored in time, or was dropped because too much
    /// was waiting.
    #[error("the archive is incomplete: {0}")]
    Incomplete(String),
    /// A local file or thread could not be created.
    #[error("cannot write the archive: {0}")]
    Io(#[from] io::Error),
}

/// Returns the text of an object store's error on one line. Users and queries are removed from
/// addresses in it, because they may contain passwords, signatures and tokens.
fn describe(error: &object_store::Error) -> String {
    let text = error.to_string();
    text.split_whitespace().map(without_secrets).collect::<Vec<_>>().join(" ")
}

/// Returns a word of a text; if it is an address, without its user and query.
fn without_secrets(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?…"));
    let host_end = rest.find('/').unwrap_or(rest.len());
    let host_start = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}{query}", &rest[host_start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_leave_out_users_and_queries_of_addresses() {
        let check = |text: &str, expected: &str| {
            let source = object_store::Error::Generic { store: "test", source: text.into() };
            let error = ArchiveError::Store { name: "manifest.json".to_owned(), source };
            assert_eq!(error.to_string(), format!("manifest.json: Generic test error: {expected}"));
        };
        check(
            "GET https://host/object?sig=secret&x=1\nfailed: try again?",
            "GET https://host/object?… failed: try again?",
        );
        check("GET http://user:secret@host:1/a@b failed", "GET http://host:1/a@b failed");
        check("(http://user:se@cret@host?token=secret)", "(http://host?…");
    }
}
