//! The roles of a run's users, their permissions at a broker, and the broker's configuration for
//! them.
//!
//! A user is identified by an NKey, a pair of Ed25519 keys: the broker knows the public key, the
//! user's file has the seed. Permissions are lists of subjects that a user may publish to and
//! subscribe to; the broker refuses all others.

use std::fmt::{self, Write as _};

use nkeys::KeyPair;

use crate::subjects;

/// Maximum number of ranks for which keys can be made.
pub const MAX_RANKS: u32 = 65_536;

/// The role of a user, which decides the user's permissions for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A process that pushes its recording, of the given rank or of any: it publishes on its own
    /// subjects, and reads nothing but requests for its events.
    Program(Option<u32>),
    /// A server that shows the run: it reads everything, asks processes for their events, and
    /// publishes nothing else.
    Viewer,
    /// A person who creates, changes and deletes the streams of the run, and may read it.
    Admin,
}

impl fmt::Display for Role {
    /// Writes the role's name, which is also that of its key file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(None) => f.write_str("program"),
            Self::Program(Some(rank)) => write!(f, "program-{rank}"),
            Self::Viewer => f.write_str("viewer"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

/// The subjects that a user may publish to and subscribe to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Permissions {
    publish: Vec<String>,
    subscribe: Vec<String>,
}

impl Role {
    /// Returns the permissions of a user whose replies arrive below `inbox`.
    fn permissions(self, run: &str, inbox: &str) -> Permissions {
        let replies = format!("{inbox}.>");
        let streams = subjects::streams(run);
        match self {
            Self::Program(rank) => {
                let rank = rank.map_or_else(|| "*".to_owned(), |rank| rank.to_string());
                let own = |kind: &str| format!("vramscope.{run}.{kind}.{rank}.*");
                Permissions {
                    publish: ["events", "summaries", "processes"].map(own).to_vec(),
                    subscribe: vec![own("control"), replies],
                }
            }
            Self::Viewer => {
                let read = streams.iter().flat_map(|stream| read_requests(stream));
                let publish = read.chain([subjects::all_controls(run)]).collect();
                Permissions { publish, subscribe: vec![subjects::all_controls(run), replies] }
            }
            Self::Admin => {
                let mut permissions = Self::Viewer.permissions(run, inbox);
                permissions.publish.extend(streams.iter().flat_map(|stream| {
                    ["CREATE", "UPDATE", "DELETE", "PURGE"].map(|action| format!("$JS.API.STREAM.{action}.{stream}"))
                }));
                permissions
            }
        }
    }
}

/// Returns the subjects of JetStream's interface with which a client reads a stream.
fn read_requests(stream: &str) -> [String; 4] {
    [
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}.>"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.*"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"),
    ]
}

/// Returns the prefix of the subjects on which a user's replies arrive. Each user has a different
/// prefix, so that no user receives another's replies.
pub(crate) fn inbox(user: &str) -> String {
    format!("_INBOX.{user}")
}

/// The key of a user. `{:?}` does not show the seed.
pub struct UserKey {
    role: Role,
    pair: KeyPair,
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserKey").field("role", &self.role).finish_non_exhaustive()
    }
}

impl UserKey {
    /// Makes a random key.
    #[must_use]
    pub fn random(role: Role) -> Self {
        Self { role, pair: KeyPair::new_user() }
    }

    /// Returns the role of the user.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the content of the user's key file, which is secret.
    #[must_use]
    pub fn seed(&self) -> String {
        self.pair.seed().expect("a new pair has a seed")
    }
}

/// Returns the part of a broker's configuration that gives these users of a run the permissions of
/// their roles, and refuses all other clients.
#[must_use]
pub fn broker_authorization(run: &str, keys: &[UserKey]) -> String {
    let mut text = String::from("authorization {\n  users = [\n");
    for UserKey { role, pair } in keys {
        let user = pair.public_key();
        let Permissions { publish, subscribe } = role.permissions(run, &inbox(&user));
        let list = |subjects: &[String]| {
            subjects.iter().map(|subject| format!("\"{subject}\"")).collect::<Vec<_>>().join(", ")
        };
        let (publish, subscribe) = (list(&publish), list(&subscribe));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "    # {role}\n    {{ nkey: {user}, permissions: {{\n      publish: {{ allow: [{publish}] }}\n      \
             subscribe: {{ allow: [{subscribe}] }}\n    }} }}"
        );
    }
    text + "  ]\n}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_the_permissions_they_need() {
        let check = |role: Role, publish: &[&str], subscribe: &[&str]| {
            let permissions = role.permissions("r", "_INBOX.U");
            assert_eq!(permissions.publish, publish, "{role}");
            assert_eq!(permissions.subscribe, subscribe, "{role}");
        };
        check(
            Role::Program(Some(3)),
            &["vramscope.r.events.3.*", "vramscope.r.summaries.3.*", "vramscope.r.processes.3.*"],
            &["vramscope.r.control.3.*", "_INBOX.U.>"],
        );
        check(
            Role::Program(None),
            &["vramscope.r.events.*.*", "vramscope.r.summaries.*.*", "vramscope.r.processes.*.*"],
            &["vramscope.r.control.*.*", "_INBOX.U.>"],
        );
        let viewer = Role::Viewer.permissions("r", "_INBOX.U");
        let is_reading = |subject: &String| {
            subject.starts_with("$JS.API.CONSUMER.")
                || subject.starts_with("$JS.API.STREAM.INFO.")
                || subject == "vramscope.r.control.>"
        };
        assert!(viewer.publish.iter().all(is_reading), "{viewer:?}");
        let admin = Role::Admin.permissions("r", "_INBOX.U");
        assert!(viewer.publish.iter().all(|subject| admin.publish.contains(subject)));
        assert!(admin.publish.contains(&"$JS.API.STREAM.DELETE.vramscope-r-events".to_owned()));
    }

    #[test]
    fn configuration_has_public_keys_only() {
        let keys = [Role::Program(Some(0)), Role::Viewer, Role::Admin].map(UserKey::random);
        let config = broker_authorization("run", &keys);
        for key in &keys {
            assert!(config.contains(&format!("# {}\n    {{ nkey: {},", key.role(), key.pair.public_key())), "{config}");
            assert!(key.seed().starts_with("SU") && !config.contains(&key.seed()));
            assert!(!format!("{key:?}").contains(&key.seed()));
        }
    }
}
