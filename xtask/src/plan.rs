//! Runs named steps in order, times them, and prints a summary.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::shell::Result;

/// The steps of `cargo xtask test` that have run so far, with their results.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    steps: Vec<Step>,
}

/// The number of a step, by which later steps name it as needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepId(usize);

/// A step that was run or skipped: its name, duration and result.
#[derive(Debug)]
struct Step {
    name: &'static str,
    time: Duration,
    outcome: Outcome,
}

/// The result of a step: passed, failed, not run because a needed step did not pass, or skipped.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    NotRun(String),
    /// Skipped because something optional is missing.
    Skipped(&'static str),
}

impl Plan {
    /// Runs a step, unless one of `needs` did not pass.
    pub(crate) fn step(&mut self, name: &'static str, needs: &[StepId], work: impl FnOnce() -> Result<()>) -> StepId {
        let unmet = needs.iter().map(|need| &self.steps[need.0]).find(|step| step.outcome != Outcome::Passed);
        eprintln!("\n== {name}");
        let start = Instant::now();
        let outcome = match unmet {
            Some(step) => Outcome::NotRun(format!("needs \"{}\"", step.name)),
            None => work().map_or_else(Outcome::Failed, |()| Outcome::Passed),
        };
        let step = Step { name, time: start.elapsed(), outcome };
        eprintln!("{}", line(&step));
        self.steps.push(step);
        StepId(self.steps.len() - 1)
    }

    /// Lists a step as skipped in the summary; it counts neither as passed nor as failed.
    pub(crate) fn skip(&mut self, name: &'static str, reason: &'static str) {
        self.steps.push(Step { name, time: Duration::ZERO, outcome: Outcome::Skipped(reason) });
    }

    /// Prints the summary. Returns success if every step passed or was skipped.
    pub(crate) fn finish(self) -> ExitCode {
        eprintln!("\n== summary");
        for step in &self.steps {
            eprintln!("{}", line(step));
        }
        let total: Duration = self.steps.iter().map(|step| step.time).sum();
        let count = |is: fn(&Outcome) -> bool| self.steps.iter().filter(|step| is(&step.outcome)).count();
        let passed = count(|outcome| *outcome == Outcome::Passed);
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let not_passed = self.steps.len() - passed - skipped;
        eprintln!("\n{passed} passed, {skipped} skipped, {not_passed} not passed, in {:.0} s", total.as_secs_f64());
        if not_passed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns a step's line in the summary: result, name, seconds and reason.
fn line(step: &Step) -> String {
    let (word, detail) = match &step.outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(message) => ("FAILED", message.as_str()),
        Outcome::NotRun(reason) => ("NOT RUN", reason.as_str()),
        Outcome::Skipped(reason) => ("SKIPPED", *reason),
    };
    format!("{word:7}  {:40} {:7.1} s  {detail}", step.name, step.time.as_secs_f64()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_with_a_failed_dependency_is_not_run() {
        let mut plan = Plan::default();
        let good = plan.step("good", &[], || Ok(()));
        let bad = plan.step("bad", &[good], || Err("broken".to_owned()));
        let unmet = plan.step("after bad", &[good, bad], || panic!("must not run"));
        plan.step("after that", &[unmet], || panic!("must not run"));
        plan.step("after good", &[good], || Ok(()));
        let outcomes: Vec<_> = plan.steps.iter().map(|step| &step.outcome).collect();
        assert_eq!(outcomes[0], &Outcome::Passed);
        assert_eq!(outcomes[1], &Outcome::Failed("broken".to_owned()));
        assert_eq!(outcomes[2], &Outcome::NotRun("needs \"bad\"".to_owned()));
        assert_eq!(outcomes[3], &Outcome::NotRun("needs \"after bad\"".to_owned()));
        assert_eq!(outcomes[4], &Outcome::Passed);
        assert_eq!(plan.finish(), ExitCode::FAILURE);
    }

    #[test]
    fn plan_without_failures_succeeds() {
        let mut plan = Plan::default();
        plan.step("good", &[], || Ok(()));
        plan.skip("extra", "missing");
        assert_eq!(plan.finish(), ExitCode::SUCCESS);
    }
}
