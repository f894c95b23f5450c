//! The cause that a verdict names, its status and its confidence.

use crate::diagnosis::Problem;
use crate::failures::OomCause;

/// The cause that a verdict names. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A problem that the recording shows.
    Problem(Problem),
    /// A request failed because memory had grown.
    FailureByGrowth {
        /// What grew.
        growth: Problem,
    },
    /// No rule found a problem, and each essential rule had its evidence.
    Healthy,
    /// The recording has a memory state without history.
    NoHistory,
    /// No rule found a problem, and an essential rule lacked its evidence.
    Unknown,
}

impl Cause {
    /// Returns the machine-readable name: the id of a problem, `healthy`, `no_history` or
    /// `unknown`.
    #[must_use]
    pub fn id(self) -> String {
        match self {
            Self::Problem(problem) => problem.id(),
            Self::FailureByGrowth { .. } => Problem::OutOfMemory(OomCause::Leak).id(),
            Self::Healthy => "healthy".to_owned(),
            Self::NoHistory => "no_history".to_owned(),
            Self::Unknown => "unknown".to_owned(),
        }
    }

    /// Returns why a request failed, if one did and the verdict is about it.
    #[must_use]
    pub const fn oom_cause(self) -> Option<OomCause> {
        match self {
            Self::Problem(Problem::OutOfMemory(cause)) => Some(cause),
            Self::FailureByGrowth { .. } => Some(OomCause::Leak),
            // Other libraries or processes filled the device until a request failed.
            Self::Problem(Problem::GrowthOutside) => Some(OomCause::Outside),
            _ => None,
        }
    }
}

/// Whether a recording shows a problem. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It shows at least one problem.
    Found,
    /// It shows none, and has the evidence for that.
    Nothing,
    /// It lacks the evidence for an answer.
    CannotTell,
}

impl Status {
    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Nothing => "nothing",
            Self::CannotTell => "cannot_tell",
        }
    }
}

/// How certain a verdict is. [`id`](Self::id) is the name in JSON.
///
/// Over the labelled recordings, at least 98% of the `sure` verdicts and 85% of the `likely` ones
/// are right (`docs/diagnose.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// A guess from sizes and lifetimes.
    Possible,
    /// The evidence fits, and a part of it is missing.
    Likely,
    /// All evidence is there, or a simulation proves the verdict.
    Sure,
}

impl Confidence {
    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Sure => "sure",
        }
    }
}
