//! The moments of two recordings or devices to compare.

/// The kind of moments that are compared in two recordings or devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// The peaks of the allocated bytes.
    #[default]
    Peaks,
    /// The last moments.
    Ends,
    /// The moment on the screen, and the moment at an equal time from the other recording's start.
    Now,
    /// The peaks of the allocated bytes in the step on the screen and in the other side's step of
    /// this number.
    Step,
}

impl Moments {
    /// All kinds of moments, in the order of the menu.
    pub const ALL: [Self; 4] = [Self::Peaks, Self::Ends, Self::Now, Self::Step];

    /// Returns the kind's name in commands and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peaks => "peaks",
            Self::Ends => "ends",
            Self::Now => "moment",
            Self::Step => "step",
        }
    }
}

/// The choice of a training step in a side of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) enum StepChoice {
    /// The last one that begins before this event, or the first.
    At(u64),
    /// The one with this number.
    Number(u64),
}
