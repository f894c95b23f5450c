//! Computations over a whole recording that a web worker runs (crate `vramscope-analyzer`), and
//! their results.

use serde_json::{Value, json};
use vramscope_trace::DeviceId;

/// Number of analyses of a live recording that must agree on another verdict before it is shown.
const STEADY_ANALYSES: u32 = 3;

/// A computation over the whole recording, for the analyzer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Simulate the recorded requests of a device under other allocator settings.
    WhatIf {
        /// The device.
        device: DeviceId,
        /// The settings, as in `PYTORCH_CUDA_ALLOC_CONF`; `None` to simulate nothing and return
        /// only the recorded figures.
        conf: Option<String>,
        /// Maximum number of reserved bytes; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// Rank the allocator settings that are worth trying on a device.
    Advice {
        /// The device.
        device: DeviceId,
        /// Maximum number of reserved bytes; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// Look for problems in the recording.
    Findings,
}

impl Job {
    /// Returns the request for this job to the analyzer, in JSON.
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

    /// Returns true if the job simulates settings. The analyzer then also returns the simulated
    /// recording.
    pub fn simulates(&self) -> bool {
        matches!(self, Self::WhatIf { conf: Some(_), .. })
    }
}

/// A finished job and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The job.
    pub job: Job,
    /// The analyzer's answer, or the reason for its failure as a message for the user.
    pub answer: Result<Value, String>,
}

/// The running job of the recording on the page, and the results of finished jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Jobs {
    /// The running job; `None` if no job runs.
    pub running: Option<Job>,
    /// The last finished [`Job::WhatIf`].
    pub what_if: Option<Finished>,
    /// The last finished [`Job::Advice`].
    pub advice: Option<Finished>,
    /// The problems found by [`Job::Findings`].
    pub findings: Findings,
}

impl Jobs {
    /// Returns the answer of the last [`Job::WhatIf`]; `None` if none has finished or it failed.
    pub fn what_if_answer(&self) -> Option<&Value> {
        self.what_if.as_ref()?.answer.as_ref().ok()
    }
}

/// The problems found in the recording so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The problems, each once, in the analyzer's JSON.
    pub list: Vec<Value>,
    /// What to say first about the recording, in the analyzer's JSON; null before the first
    /// analysis.
    pub verdict: Value,
    /// The reserved bytes of each device at the end of its last complete step, in the analyzer's
    /// JSON.
    pub last_steps: Value,
    /// The names of the rules that the recording lacks the evidence for.
    pub unanswered: Vec<String>,
    /// A verdict with another cause, and the number of analyses since which it holds.
    other: Option<(Value, u32)>,
    /// Number of events of the recording when it was last analyzed; `None` before the first time.
    pub analyzed_events: Option<u64>,
    /// Error message of the last analysis; `None` if it succeeded.
    pub error: Option<String>,
    /// Whether the user or a script has asked for the recording's problems.
    pub is_wanted: bool,
    /// Whether the page saves the recording when a new problem is found.
    pub saves: bool,
}

impl Findings {
    /// Returns the reserved, stuck and releasable bytes of a device at the end of its last complete
    /// step; `None` if none is known.
    pub fn last_step(&self, device: DeviceId) -> Option<[u64; 3]> {
        let of_device = |one: &&Value| one["device"] == u64::from(device.0);
        let step = self.last_steps.as_array()?.iter().find(of_device)?;
        let bytes = ["reserved_bytes", "stuck_bytes", "releasable_bytes"].map(|name| step[name].as_u64());
        let [Some(reserved), Some(stuck), Some(releasable)] = bytes else { return None };
        Some([reserved, stuck, releasable])
    }

    /// Stores the verdict of an analysis. Of a growing recording, a verdict with another cause
    /// replaces the known one once several analyses agree, or at once if a request failed.
    fn update_verdict(&mut self, verdict: Value, is_growing: bool) {
        let is_same = |known: &Value| known["cause"] == verdict["cause"] && known["device"] == verdict["device"];
        let is_failure = verdict["cause"].as_str().is_some_and(|cause| cause.starts_with("oom."));
        let times = match &self.other {
            Some((other, times)) if is_same(other) => times + 1,
            _ => 1,
        };
        let is_accepted = !is_growing || is_failure || times >= STEADY_ANALYSES;
        if self.verdict.is_null() || is_same(&self.verdict) || is_accepted {
            (self.verdict, self.other) = (verdict, None);
        } else {
            self.other = Some((verdict, times));
        }
    }

    /// Stores the analyzer's answer for a recording of `events` events, which may grow, and returns
    /// the new problems. Known problems are updated and keep their places in the list.
    pub fn update(&mut self, events: u64, answer: Result<Value, String>, is_growing: bool) -> Vec<Value> {
        self.analyzed_events = Some(events);
        let found = match answer {
            Ok(mut answer) => {
                self.update_verdict(answer["verdict"].take(), is_growing);
                self.last_steps = answer["last_steps"].take();
                let rules = answer["unknown"].as_array().into_iter().flatten();
                self.unanswered = rules.filter_map(|one| one["rule"].as_str().map(str::to_owned)).collect();
                match answer["findings"].take() {
                    Value::Array(found) => found,
                    _ => Vec::new(),
                }
            }
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

/// Returns true if two findings report the same problem: same kind, device and site. For a finding
/// of growth the site does not matter, because without stacks it is a text with sizes that change.
fn is_same(one: &Value, other: &Value) -> bool {
    let is_growth = one["id"].as_str().is_some_and(|id| id.starts_with("growth."));
    let fields: &[&str] = if is_growth { &["id", "device"] } else { &["id", "device", "site"] };
    fields.iter().all(|field| one[field] == other[field])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a finding in the analyzer's JSON.
    fn finding(id: &str, severity: &str, site: &str, events: [u64; 2], bytes: u64) -> Value {
        json!({ "id": id, "severity": severity, "device": 0, "events": events, "bytes": bytes, "site": site })
    }

    #[test]
    fn last_step_is_that_of_the_device() {
        let mut findings = Findings::default();
        assert_eq!(findings.last_step(DeviceId(1)), None);
        let step = json!({ "device": 1, "reserved_bytes": 4, "stuck_bytes": 1, "releasable_bytes": 2 });
        findings.update(100, Ok(json!({ "last_steps": [step], "findings": [] })), true);
        assert_eq!(findings.last_step(DeviceId(1)), Some([4, 1, 2]));
        assert_eq!(findings.last_step(DeviceId(0)), None);
    }

    #[test]
    fn verdict_changes_once_several_analyses_agree() {
        let mut findings = Findings::default();
        let mut analyze = |cause: &str| {
            let verdict = json!({ "cause": cause, "device": 0 });
            findings.update(100, Ok(json!({ "verdict": verdict, "findings": [] })), true);
            findings.verdict["cause"].as_str().expect("a verdict").to_owned()
        };
        assert_eq!(["healthy", "growth.cache", "healthy"].map(&mut analyze), ["healthy"; 3]);
        assert_eq!(["growth.cache", "growth.cache"].map(&mut analyze), ["healthy"; 2]);
        assert_eq!(analyze("growth.cache"), "growth.cache");
        assert_eq!(analyze("oom.leak"), "oom.leak", "a failure is shown at once");
    }

    #[test]
    fn repeated_finding_updates_the_known_problem() {
        let mut findings = Findings::default();
        let growth = finding("growth.cache", "low", "blocks of 1 MiB", [90, 100], 5);
        assert_eq!(findings.update(100, Ok(json!({ "findings": [growth] })), true).len(), 1);
        let later = finding("growth.cache", "medium", "blocks of 1 MiB to 2 MiB", [90, 200], 9);
        let failures =
            [finding("oom.leak", "critical", "a", [150; 2], 1), finding("oom.leak", "critical", "b", [180; 2], 1)];
        let all = json!({ "findings": [later, failures[0], failures[1]] });
        assert_eq!(findings.update(200, Ok(all.clone()), true), failures);
        assert_eq!(findings.list, [later, failures[0].clone(), failures[1].clone()]);
        assert_eq!(findings.update(250, Ok(all), true).len(), 0);
        let again = finding("oom.leak", "critical", "a", [150, 240], 1);
        assert_eq!(findings.update(260, Ok(json!({ "findings": [again] })), true).len(), 0, "the failure is repeated");
        assert!(findings.update(300, Err("no".to_owned()), true).is_empty() && findings.list.len() == 3);
        assert_eq!((findings.analyzed_events, findings.error.as_deref()), (Some(300), Some("no")));
    }
}
