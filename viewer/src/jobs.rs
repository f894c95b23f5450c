//! Computations over the whole recording that a worker of the page makes (crate
//! `vramscope-analyzer`), and their results.

use serde_json::{Value, json};
use vramscope_trace::DeviceId;

/// A computation over the whole recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// The recorded requests of a device under other settings.
    WhatIf {
        /// The device.
        device: DeviceId,
        /// The settings; `None` for the recorded figures alone.
        conf: Option<String>,
        /// Limit of the reserved bytes; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// All settings worth trying on a device, ranked.
    Advice {
        /// The device.
        device: DeviceId,
        /// Limit of the reserved bytes; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// The problems that the recording shows.
    Findings,
}

impl Job {
    /// Returns the request to the analyzer, in JSON.
    #[must_use]
    pub fn request(&self) -> String {
        let request = match self {
            Self::WhatIf { device, conf, capacity_bytes } => {
                json!({ "kind": "what_if", "device": device.0, "alloc_conf": conf, "capacity_bytes": capacity_bytes })
            }
            Self::Advice { device, capacity_bytes } => {
                json!({ "kind": "advice", "device": device.0, "capacity_bytes": capacity_bytes })
            }
            Self::Findings => json!({ "kind": "findings" }),
        };
        request.to_string()
    }

    /// Returns true if the job simulates settings, so that the answer comes with a recording.
    #[must_use]
    pub fn simulates(&self) -> bool {
        matches!(self, Self::WhatIf { conf: Some(_), .. })
    }
}

/// The result of a job: the analyzer's answer, or a message for the user.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The job.
    pub job: Job,
    /// The answer.
    pub answer: Result<Value, String>,
}

/// The jobs of the recording on the page: what runs, and the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Jobs {
    /// The job that runs.
    pub running: Option<Job>,
    /// The last run under other settings.
    pub what_if: Option<Finished>,
    /// The last ranking of settings.
    pub advice: Option<Finished>,
    /// The problems found.
    pub findings: Findings,
}

impl Jobs {
    /// Returns the answer of the last run under other settings.
    #[must_use]
    pub fn what_if_answer(&self) -> Option<&Value> {
        self.what_if.as_ref()?.answer.as_ref().ok()
    }
}

/// The problems that were found in the recording so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The problems, each once, as the analyzer describes them.
    pub list: Vec<Value>,
    /// Number of events of the recording when it was last analyzed; `None` before.
    pub analyzed_events: Option<u64>,
    /// Why it could not be analyzed.
    pub error: Option<String>,
    /// Whether the user or a script has asked for them.
    pub is_wanted: bool,
    /// Whether the recording is saved when a problem appears.
    pub saves: bool,
}

impl Findings {
    /// Takes the answer of the analyzer for a recording of `events` events. Returns the problems
    /// that are new; known ones are updated and keep their place.
    pub fn update(&mut self, events: u64, answer: Result<Value, String>) -> Vec<Value> {
        self.analyzed_events = Some(events);
        let found = match answer {
            Ok(mut answer) => match answer["findings"].take() {
                Value::Array(found) => found,
                _ => Vec::new(),
            },
            Err(error) => {
                self.error = Some(error);
                return Vec::new();
            }
        };
        self.error = None;
        let mut new = Vec::new();
        for finding in found {
            match self.list.iter_mut().find(|known| is_same(known, &finding)) {
                Some(known) => *known = finding,
                None => {
                    new.push(finding.clone());
                    self.list.push(finding);
                }
            }
        }
        new
    }
}

/// Returns true if two findings are one problem: the analyzer reports each once for a device and a
/// site. Growth is one problem of a device, because sizes name its site if stacks are missing, and
/// change.
fn is_same(one: &Value, other: &Value) -> bool {
    let is_growth = one["id"].as_str().is_some_and(|id| id.starts_with("growth."));
    let fields: &[&str] = if is_growth { &["id", "device"] } else { &["id", "device", "site"] };
    fields.iter().all(|field| one[field] == other[field])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &str, severity: &str, site: &str, events: [u64; 2], bytes: u64) -> Value {
        json!({ "id": id, "severity": severity, "device": 0, "events": events, "bytes": bytes, "site": site })
    }

    #[test]
    fn findings_appear_once_and_are_updated() {
        let mut findings = Findings::default();
        let growth = finding("growth.cache", "low", "blocks of 1 MiB", [90, 100], 5);
        assert_eq!(findings.update(100, Ok(json!({ "findings": [growth] }))).len(), 1);
        let later = finding("growth.cache", "medium", "blocks of 1 MiB to 2 MiB", [90, 200], 9);
        let failures =
            [finding("oom.leak", "critical", "a", [150; 2], 1), finding("oom.leak", "critical", "b", [180; 2], 1)];
        let all = json!({ "findings": [later, failures[0], failures[1]] });
        assert_eq!(findings.update(200, Ok(all.clone())), failures);
        assert_eq!(findings.list, [later, failures[0].clone(), failures[1].clone()]);
        assert_eq!(findings.update(250, Ok(all)).len(), 0);
        let again = finding("oom.leak", "critical", "a", [150, 240], 1);
        assert_eq!(findings.update(260, Ok(json!({ "findings": [again] }))).len(), 0, "the failure is repeated");
        assert!(findings.update(300, Err("no".to_owned())).is_empty() && findings.list.len() == 3);
        assert_eq!((findings.analyzed_events, findings.error.as_deref()), (Some(300), Some("no")));
    }
}
