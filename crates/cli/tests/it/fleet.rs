//! Tests of `vramscope fleet` without a broker. The workspace's tests use a real broker.

use std::fs;
use std::path::Path;

use crate::process::run;

/// Returns a file of the folder.
fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn keys_are_private_and_the_configuration_has_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    let output = keys.to_str().expect("the path is Unicode");
    let finished = run(["fleet", "keys", "run-1", "-o", output, "--ranks", "2"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let names = ["program-0.nk", "program-1.nk", "viewer.nk", "admin.nk"];
    let config = read(&keys, "broker.conf");
    for name in names {
        let seed = read(&keys, name);
        let seed = seed.trim();
        assert!(seed.starts_with("SU") && !config.contains(seed), "{name}");
        assert!(!finished.stderr.contains(seed) && !finished.stdout.contains(seed), "{name}");
    }
    assert_eq!(config.matches("nkey: U").count(), names.len(), "{config}");
    assert!(config.contains("vramscope.run-1.events.1.*"), "{config}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!(mode(&keys), 0o700);
        assert!(names.iter().all(|name| mode(&keys.join(name)) == 0o600));
    }
    // Keys are never replaced.
    let before = read(&keys, "admin.nk");
    let again = run(["fleet", "keys", "run-1", "-o", output]);
    assert_eq!((again.code, read(&keys, "admin.nk")), (Some(2), before), "{}", again.stderr);
}

#[test]
fn unsuitable_arguments_are_errors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("keys");
    let output = output.to_str().expect("the path is Unicode");
    let check = |arguments: &[&str], reason: &str| {
        let finished = run(arguments.iter().copied());
        assert_eq!(finished.code, Some(2), "{arguments:?}");
        assert!(finished.stderr.contains(reason) && !finished.stderr.contains("secret"), "{}", finished.stderr);
    };
    check(&["fleet"], "no command given");
    check(&["fleet", "keys", "run.1", "-o", output], "cannot name a run");
    check(&["fleet", "keys", "run", "-o", output, "--ranks", "0"], "--ranks");
    check(&["fleet", "create", "http://secret@broker/run"], "the scheme must be nats or tls");
    check(&["fleet", "create", "nats://me:secret@127.0.0.1:1/run"], "nats://127.0.0.1:1/run: ");
    check(&["fleet", "create", "nats://127.0.0.1:1/run", "--event-age", "soon"], "--event-age");
    check(&["fleet", "delete", "nats://127.0.0.1:1/run?nkey=missing.nk"], "missing.nk");
}
