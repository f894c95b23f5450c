//! The answer of a command to its question, which becomes the exit status.

use std::process::ExitCode;

use vramscope_insight::verdict::Status;

/// The answer of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Success, or nothing was found: exit status 0.
    Positive,
    /// A divergence or a problem was found, or a condition holds: exit status 1.
    Negative,
    /// The recording lacks what the question needs: exit status 3.
    CannotTell,
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Positive => Self::SUCCESS,
            Answer::Negative => Self::from(1),
            Answer::CannotTell => Self::from(3),
        }
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        match status {
            Status::Nothing => Self::Positive,
            Status::Found => Self::Negative,
            Status::CannotTell => Self::CannotTell,
        }
    }
}

impl From<bool> for Answer {
    /// True is a positive answer.
    fn from(is_positive: bool) -> Self {
        if is_positive { Self::Positive } else { Self::Negative }
    }
}
