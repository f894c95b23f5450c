//! The verdict: what to say first about a recording, from all evidence.
//!
//! [`Verdict`] weighs the findings of a [diagnosis](crate::diagnosis) against each other, and knows
//! which rules had no evidence: "nothing found" is only said where every essential [`Rule`](crate::diagnosis::Rule) had
//! what it needs, else the answer is "cannot tell", with what to record. The command, the page, the
//! report after a failure and notebooks show its decision first. Causes are a type ([`Cause`]);
//! texts are made from it.
//!
//! A memory state without history is evidence, too: [`HeldMemory`] tells who holds the memory, or
//! blocks of which sizes do.

mod answer;
mod cause;
mod decision;
mod held;
mod report;
mod text;

pub use answer::{UnansweredRule, VerdictRemedy};
pub use cause::{Cause, Confidence, Status};
pub use decision::Verdict;
pub use held::{HeldMemory, SizeFamily};
pub use report::{DiagnosisReport, LastStepReport, UnansweredReport, VerdictReport};
