//! Fields of the page, whose value completes a command.

use std::fmt::{self, Display, Formatter};

use super::ViewName;
use crate::ui::CommandText;

/// A field of the page: the command that a change of its value runs, without the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// The view of the left (0) or right (1) pane.
    Pane(usize),
    /// The grouping of a view's rows.
    By(ViewName),
    /// The variant of a view.
    Mode(ViewName),
    /// The filter of a view.
    Filter(ViewName),
    /// The number of a view.
    Number(ViewName),
    /// The order of a view.
    Sort(ViewName),
    /// A setting of the simulated allocator, by its key.
    Setting(&'static str),
    /// The areas of the timeline.
    Stack,
    /// The unit of the timeline's axis.
    Axis,
    /// The property that block colors show.
    Color,
    /// The second side of a comparison.
    CompareWith,
    /// The name of the span that is a step.
    StepSpan,
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pane(pane) => write!(f, "pane {pane}"),
            Self::By(view) => write!(f, "by {view}"),
            Self::Mode(view) => write!(f, "mode {view}"),
            Self::Filter(view) => write!(f, "filter {view}"),
            Self::Number(view) => write!(f, "number {view}"),
            Self::Sort(view) => write!(f, "sort {view}"),
            Self::Setting(key) => write!(f, "what-if {key}"),
            Self::Stack => f.write_str("stack"),
            Self::Axis => f.write_str("axis"),
            Self::Color => f.write_str("color"),
            Self::CompareWith => f.write_str("compare-with"),
            Self::StepSpan => f.write_str("step-span"),
        }
    }
}

impl From<Field> for CommandText {
    fn from(field: Field) -> Self {
        Self(field.to_string())
    }
}
