//! Each kind of credentials: a rank and a server log in with it, and wrong ones are refused.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use vramscope_collector::Aggregator;
use vramscope_fleet::{FleetAddress, Follower, FollowerOptions};
use vramscope_tests::Broker;
use vramscope_tests::fleet::{FollowingServer, PushingRank, print_log};

use super::harness::wait_until;

/// Checks that a summary of a rank reaches a server if both use the address `right`, and that the
/// broker refuses each address in `wrong`.
#[track_caller]
fn check(right: &str, wrong: &[String]) {
    print_log();
    let mut rank = PushingRank::start(0, right);
    let server = FollowingServer::start(right);
    rank.program.run(100);
    wait_until("a summary arrives", || !server.view().ranks.is_empty());
    for url in wrong {
        let address = FleetAddress::parse(url).expect("a valid address");
        assert!(Follower::connect(&address, Aggregator::new(), FollowerOptions::default()).is_err(), "{url}");
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn token_admits() {
    let broker = Broker::with_config("authorization { token: right }");
    let url = |token: &str| format!("nats://{token}@{}/run", broker.socket());
    check(&url("right"), &[url("wrong"), broker.address("run")]);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn password_admits() {
    let broker = Broker::with_config("authorization { users = [{ user: me, password: \"ri/ght\" }] }");
    let url = |user: &str, password: &str| broker.address_for(user, password, "run");
    check(&url("me", "ri%2Fght"), &[url("me", "wrong"), url("you", "ri%2Fght"), broker.address("run")]);
}

/// Returns a JSON Web Token of a NATS broker, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, claims: &Value) -> String {
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let body = json!({ "jti": "1", "iat": 1_700_000_000, "iss": iss, "sub": sub, "name": "test", "nats": claims });
    let signed = format!("{}.{}", encode(&header), encode(&body));
    let signature = issuer.sign(signed.as_bytes()).expect("the pair has a seed");
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// Writes a credentials file of a user of an account, and returns its path.
fn write_credentials(folder: &Path, name: &str, account: &KeyPair, user: &KeyPair, seed: &str) -> PathBuf {
    let claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
        token(account, user, &claims)
    );
    let path = folder.join(name);
    fs::write(&path, text).expect("the folder is writable");
    path
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn credentials_file_admits() {
    let operator = KeyPair::new_operator();
    let [system, account, stranger] = std::array::from_fn(|_| KeyPair::new_account());
    let [user, other] = std::array::from_fn(|_| KeyPair::new_user());
    let account_token = |account: &KeyPair, disk_bytes: i64| {
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": 0, "disk_storage": disk_bytes, "streams": -1, "consumer": -1
        });
        token(&operator, account, &json!({ "type": "account", "version": 2, "limits": limits }))
    };
    let broker = Broker::with_config(&format!(
        "operator: {}\nresolver: MEMORY\nsystem_account: {system}\nresolver_preload {{\n  {system}: {}\n  \
         {account}: {}\n}}\n",
        token(&operator, &operator, &json!({ "type": "operator", "version": 2 })),
        account_token(&system, 0),
        account_token(&account, 4 << 30),
        system = system.public_key(),
        account = account.public_key(),
    ));
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let seed = |pair: &KeyPair| pair.seed().expect("a new pair has a seed");
    let address = |name: &str, account: &KeyPair, seed: &str| {
        let path = write_credentials(folder.path(), name, account, &user, seed);
        format!("{}?creds={}", broker.address("run"), path.display())
    };
    check(
        &address("right.creds", &account, &seed(&user)),
        &[
            address("stranger.creds", &stranger, &seed(&user)),
            address("other.creds", &account, &seed(&other)),
            format!("{}?creds={}", broker.address("run"), folder.path().join("missing.creds").display()),
            broker.address("run"),
        ],
    );
}

/// A certificate authority, and the folder with the certificates it has signed.
struct Authority {
    folder: TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names are valid");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key can be generated");
        let certificate = params.self_signed(&key).expect("a certificate can be made");
        fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("the folder is writable");
        Self { folder, issuer: rcgen::Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes `NAME.pem` and `NAME.key`: a certificate for this machine, and its key.
    fn sign(&self, name: &str) {
        let names = vec!["127.0.0.1".to_owned()];
        let params = rcgen::CertificateParams::new(names).expect("a valid name");
        let key = rcgen::KeyPair::generate().expect("a key can be generated");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate can be made");
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).expect("the folder is writable");
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("the folder is writable");
    }

    /// Returns the `tls` block of a broker with the certificate `broker`.
    fn broker_block(&self, options: &str) -> String {
        self.sign("broker");
        let [certificate, key, ca] = ["broker.pem", "broker.key", "ca.pem"].map(|name| self.path(name));
        format!("tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", ca_file: \"{ca}\"\n{options} }}")
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn broker_needs_a_certificate_of_a_known_authority() {
    let [authority, stranger] = std::array::from_fn(|_| Authority::new());
    let broker = Broker::with_config(&authority.broker_block(""));
    let url = |options: &str| format!("tls://{}/run{options}", broker.socket());
    check(
        &url(&format!("?ca={}", authority.path("ca.pem"))),
        &[
            url(&format!("?ca={}", stranger.path("ca.pem"))),
            url(&format!("?ca={}", authority.path("missing.pem"))),
            // The certificates of the system do not have this authority.
            url(""),
        ],
    );
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn tls_is_required_of_the_broker() {
    let broker = Broker::with_config("");
    let address = FleetAddress::parse(&format!("tls://{}/run", broker.socket())).expect("a valid address");
    assert!(Follower::connect(&address, Aggregator::new(), FollowerOptions::default()).is_err());
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn client_certificate_admits() {
    let [authority, stranger] = std::array::from_fn(|_| Authority::new());
    authority.sign("client");
    stranger.sign("client");
    let broker = Broker::with_config(&authority.broker_block("verify: true"));
    let url = |client: &Authority| {
        let [ca, certificate, key] = [authority.path("ca.pem"), client.path("client.pem"), client.path("client.key")];
        format!("tls://{}/run?ca={ca}&cert={certificate}&key={key}", broker.socket())
    };
    let without = format!("tls://{}/run?ca={}", broker.socket(), authority.path("ca.pem"));
    check(&url(&authority), &[url(&stranger), without]);
}
