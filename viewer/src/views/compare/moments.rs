//! The choice of the moments to compare.

/// The moments of two recordings or devices that are compared.
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
    /// All of them, in the order of the menu.
    pub const ALL: [Self; 4] = [Self::Peaks, Self::Ends, Self::Now, Self::Step];

    /// Returns the name in commands and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peaks => "peaks",
            Self::Ends => "ends",
            Self::Now => "moment",
            Self::Step => "step",
        }
    }

    /// Returns the moments with this [`name`](Self::name); the peaks for another name.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|moments| moments.name() == name).unwrap_or_default()
    }
}
