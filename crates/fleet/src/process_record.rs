//! The description of a process at the broker.

use serde::{Deserialize, Serialize};
use vramscope_collector::Process;
use vramscope_insight::fleet::{Mesh, ProcessDescription};

use crate::address::PushMode;
use crate::subjects;

/// Environment variable with the run's device mesh, such as `pp=4,dp=2,tp=8`; see [`Mesh`].
const MESH_VARIABLE: &str = "VRAMSCOPE_MESH";

/// Maximum length of the text of a mesh, in bytes.
const MAX_MESH_BYTES: usize = 256;

/// The description of a process that it stores at the broker: its identity, rank and machine, and
/// the position of its newest start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ProcessRecord {
    #[serde(flatten)]
    pub(crate) process: Process,
    #[serde(flatten)]
    pub(crate) details: Details,
}

/// The changing part of a [`ProcessRecord`]: position of the newest start, mesh, and state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    /// Sequence number, in the stream of events, of the message with the newest start; 0 if there
    /// is none.
    pub(crate) start_sequence: u64,
    /// When the message with the newest start was sent, in milliseconds since 1970 by the process's
    /// clock.
    pub(crate) start_unix_ms: u64,
    /// When this description was sent, in milliseconds since 1970 by the process's clock.
    pub(crate) sent_unix_ms: u64,
    /// The mesh of the run, such as `pp=4,dp=2,tp=8`; empty if it is unknown.
    pub(crate) mesh: String,
    /// True if the process sends all events, false if it sends events only while a server requests
    /// them.
    pub(crate) sends_all: bool,
    /// True once the recording is complete.
    pub(crate) has_ended: bool,
}

impl Details {
    /// Returns the details of a process that has sent no messages yet.
    pub(crate) fn new(mode: PushMode) -> Self {
        let mesh = std::env::var(MESH_VARIABLE).ok().filter(|mesh| mesh.parse::<Mesh>().is_ok());
        Self { sends_all: mode == PushMode::All, mesh: mesh.unwrap_or_default(), ..Self::default() }
    }

    /// Returns a sort key by which too many processes are forgotten, the smallest first: ended
    /// processes, then processes with the oldest description.
    pub(crate) fn forget_first(&self) -> (bool, u64) {
        (!self.has_ended, self.sent_unix_ms)
    }
}

impl ProcessRecord {
    /// Returns the record as JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers always serialize")
    }

    /// Returns the description of the process for the fleet view.
    pub(crate) fn description(&self) -> ProcessDescription {
        let process = &self.process;
        let mesh: Mesh = self.details.mesh.parse().unwrap_or_default();
        ProcessDescription {
            rank: process.rank,
            host: process.host.clone(),
            program: process.program.clone(),
            pid: process.pid,
            coordinates: process.rank.and_then(|rank| mesh.coordinates(rank)),
            has_ended: self.details.has_ended,
        }
    }

    /// Converts the time of the newest start to the broker's clock, by which this record was stored
    /// at `stored_unix_ms`. The process's clock may be wrong, so only the duration between start
    /// and record is taken from it.
    pub(crate) fn use_broker_clock(&mut self, stored_unix_ms: u64) {
        let details = &mut self.details;
        let age_ms = details.sent_unix_ms.saturating_sub(details.start_unix_ms);
        (details.start_unix_ms, details.sent_unix_ms) = (stored_unix_ms.saturating_sub(age_ms), stored_unix_ms);
    }

    /// Parses the record in a message on `subject`.
    ///
    /// # Errors
    /// If it is not JSON of this shape, or describes another process than the subject: a process
    /// may only describe itself.
    pub(crate) fn parse(subject: &str, json: &[u8]) -> Result<Self, String> {
        let json = std::str::from_utf8(json).map_err(|_| "the description of the process is not text".to_owned())?;
        let process = Process::parse(json)?;
        let details: Details = serde_json::from_str(json)
            .map_err(|error| format!("the description of the process is invalid: {error}"))?;
        if details.mesh.len() > MAX_MESH_BYTES {
            return Err(format!("the mesh has more than {MAX_MESH_BYTES} bytes"));
        }
        if subjects::parse_process(subject) != Some((process.rank, process.identity.as_str())) {
            return Err("the description is of another process than its subject".to_owned());
        }
        Ok(Self { process, details })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_clock_does_not_move_the_start() {
        let details = Details { start_unix_ms: 9_000, sent_unix_ms: 9_700, ..Details::default() };
        let mut record = ProcessRecord { details, ..ProcessRecord::default() };
        record.use_broker_clock(100_000);
        assert_eq!((record.details.start_unix_ms, record.details.sent_unix_ms), (99_300, 100_000));
        // The clock was set back in between.
        record.details.sent_unix_ms = 5;
        record.use_broker_clock(200_000);
        assert_eq!(record.details.start_unix_ms, 200_000);
    }

    #[test]
    fn records_survive_json_and_match_their_subject() {
        let identity = "0123456789abcdef0123456700000003".to_owned();
        let process =
            Process { identity: identity.clone(), rank: Some(3), program: "train.py".to_owned(), ..Process::default() };
        let details = Details {
            start_sequence: 9,
            start_unix_ms: 10,
            sent_unix_ms: 11,
            mesh: "dp=8".to_owned(),
            sends_all: true,
            has_ended: false,
        };
        let record = ProcessRecord { process, details };
        let json = record.to_json();
        let parse = |subject: &str| ProcessRecord::parse(subject, json.as_bytes());
        assert_eq!(parse(&subjects::process("run", Some(3), &identity)), Ok(record));
        for forged in [
            subjects::process("run", Some(4), &identity),
            subjects::process("run", None, &identity),
            subjects::process("run", Some(3), "fedcba9876543210fedcba9876543210"),
            "vramscope.run.processes".to_owned(),
        ] {
            assert!(parse(&forged).is_err_and(|error| error.contains("another process")), "{forged}");
        }
        let mut long =
            ProcessRecord::parse(&subjects::process("run", Some(3), &identity), json.as_bytes()).expect("valid");
        long.details.mesh = "d".repeat(MAX_MESH_BYTES + 1);
        let error = ProcessRecord::parse(&subjects::process("run", Some(3), &identity), long.to_json().as_bytes());
        assert_eq!(error, Err("the mesh has more than 256 bytes".to_owned()));
        assert!(ProcessRecord::parse("", b"{}").is_err());
        assert!(ProcessRecord::parse("", &[0xff]).is_err());
    }
}
