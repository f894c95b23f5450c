//! Runs named steps, three at a time, times them, and prints a summary.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::shell::{self, Result, Surroundings};
use crate::tiers::Tiers;

/// Number of steps that run at once. Two steps keep the cores of a small machine busy; a third step
/// uses them while tests wait.
const WORKERS: usize = 3;

/// Maximum number of panics of a step that the summary shows.
const MAX_PANICS: usize = 6;
/// Maximum number of lines of a panic that the summary shows.
const MAX_PANIC_LINES: usize = 5;

/// Number of steps that the summary lists as the longest.
const LONGEST_SHOWN: usize = 12;

/// The steps of `cargo xtask test`. Earlier steps start first, as far as possible.
pub(crate) struct Plan<'a> {
    tiers: &'a Tiers,
    steps: Vec<Step<'a>>,
}

/// The reason in the summary for a skipped step of the full tier.
const NOT_IN_TIER: &str = "runs with --full, or after a change of the files that it checks";

/// The index of a step in the plan, by which other steps refer to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepId(usize);

/// The kind of a step's work. Two steps of one kind never run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Installs tools; package managers run once at a time.
    Install,
    /// Compiles into `target/debug`, which cargo locks: a second such step would wait.
    CompileDebug,
    /// Compiles into another folder.
    CompileOther,
    /// Runs compiled tests. Steps that compile run with low priority beside it, because tests have
    /// time limits.
    Test,
    /// Runs tests that wait most of the time, for a browser or a network.
    WaitingTest,
    /// Measures times: runs alone, after all other steps that can run.
    Measure,
}

impl Kind {
    /// Returns true if a step of this kind can run in parallel with a step of the kind `other`.
    fn runs_beside(self, other: Self) -> bool {
        self != other && self != Self::Measure && other != Self::Measure
    }

    /// Returns true if the commands of this kind of step run with low priority.
    fn is_low_priority(self) -> bool {
        matches!(self, Self::CompileDebug | Self::CompileOther)
    }
}

/// The work of a step.
type Work<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;

/// A step: its name, the steps that it needs, the kind of its work, its duration, and its state.
struct Step<'a> {
    name: &'static str,
    needs: Vec<StepId>,
    kind: Kind,
    time: Duration,
    /// The messages of the panics in its output, if it failed.
    panics: Vec<String>,
    state: StepState<'a>,
}

/// The state of a step.
enum StepState<'a> {
    Waiting(Work<'a>),
    Running,
    Done(Outcome),
}

/// The result of a step: passed, failed, not run because a needed step did not pass, or skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    NotRun(String),
    /// Skipped because something optional is missing, or because another tier runs it.
    Skipped(&'static str),
}

impl<'a> Plan<'a> {
    /// Creates a plan without steps.
    pub(crate) fn new(tiers: &'a Tiers) -> Self {
        Self { tiers, steps: Vec::new() }
    }

    /// Adds a step of the full tier, which the short tier skips unless one of the files `about`
    /// changed.
    pub(crate) fn full_step(
        &mut self,
        name: &'static str,
        about: &[&str],
        kind: Kind,
        needs: &[StepId],
        work: impl FnOnce() -> Result<()> + Send + 'a,
    ) -> StepId {
        if self.tiers.run_step_about(about) { self.step(name, kind, needs, work) } else { self.skip_full(name) }
    }

    /// Lists a step of the full tier as skipped.
    pub(crate) fn skip_full(&mut self, name: &'static str) -> StepId {
        self.skip(name, NOT_IN_TIER)
    }

    /// Adds a step, which runs after all of `needs` have passed. If one of them does not pass, it
    /// does not run.
    pub(crate) fn step(
        &mut self,
        name: &'static str,
        kind: Kind,
        needs: &[StepId],
        work: impl FnOnce() -> Result<()> + Send + 'a,
    ) -> StepId {
        let state = StepState::Waiting(Box::new(work));
        self.add(Step { name, needs: needs.to_vec(), kind, time: Duration::ZERO, panics: Vec::new(), state })
    }

    /// Lists a step as skipped in the summary; it counts neither as passed nor as failed.
    pub(crate) fn skip(&mut self, name: &'static str, reason: &'static str) -> StepId {
        let state = StepState::Done(Outcome::Skipped(reason));
        let (needs, panics) = (Vec::new(), Vec::new());
        self.add(Step { name, needs, kind: Kind::Test, time: Duration::ZERO, panics, state })
    }

    fn add(&mut self, step: Step<'a>) -> StepId {
        self.steps.push(step);
        StepId(self.steps.len() - 1)
    }

    /// Runs all steps, each with its output in a file in the folder `logs`, and prints the output
    /// when the step ends. Returns success if every step passed or was skipped.
    pub(crate) fn run(self, logs: &Path) -> Result<ExitCode> {
        let start = Instant::now();
        Ok(self.run_steps(logs)?.summarize(start.elapsed()))
    }

    /// Runs all steps. Returns the plan with their results.
    fn run_steps(self, logs: &Path) -> Result<Self> {
        fs::create_dir_all(logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let plan = Mutex::new(self);
        let changed = Condvar::new();
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| work(&plan, &changed, logs));
            }
        });
        Ok(plan.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks each step as not run that needs a step which did not pass. Returns the index of the
    /// first step that can start now; `None` if no step can.
    fn next(&mut self) -> Option<usize> {
        for index in 0..self.steps.len() {
            if !matches!(self.steps[index].state, StepState::Waiting(_)) {
                continue;
            }
            let unmet = self.steps[index].needs.iter().map(|need| &self.steps[need.0]);
            let unmet =
                unmet.filter(|step| matches!(&step.state, StepState::Done(outcome) if *outcome != Outcome::Passed));
            if let Some(reason) = unmet.map(|step| format!("needs \"{}\"", step.name)).next() {
                self.steps[index].state = StepState::Done(Outcome::NotRun(reason));
            }
        }
        (0..self.steps.len()).find(|index| self.can_start(&self.steps[*index]))
    }

    /// Returns true if the step waits for nothing.
    fn can_start(&self, step: &Step<'_>) -> bool {
        let is_passed = |need: &StepId| matches!(self.steps[need.0].state, StepState::Done(Outcome::Passed));
        let is_ready = matches!(step.state, StepState::Waiting(_)) && step.needs.iter().all(is_passed);
        let mut running = self.steps.iter().filter(|step| matches!(step.state, StepState::Running));
        is_ready && running.all(|other| step.kind.runs_beside(other.kind))
    }

    /// Returns true if no step waits or runs.
    fn is_done(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.state, StepState::Done(_)))
    }

    /// Prints the result of every step, then the panics of failed steps and the longest steps, so
    /// that they are at the end of a log that is cut at its start. Returns success if every step
    /// passed or was skipped.
    fn summarize(self, time: Duration) -> ExitCode {
        eprintln!("\n== summary");
        for step in &self.steps {
            eprintln!("{}", line(step));
        }
        for step in self.steps.iter().filter(|step| !step.panics.is_empty()) {
            eprintln!("\n== panics of \"{}\"\n{}", step.name, step.panics.join("\n"));
        }
        let count = |is: fn(&Outcome) -> bool| {
            self.steps.iter().filter(|step| matches!(&step.state, StepState::Done(outcome) if is(outcome))).count()
        };
        let passed = count(|outcome| *outcome == Outcome::Passed);
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let not_passed = self.steps.len() - passed - skipped;
        eprintln!("\nlongest steps: {}", self.longest());
        eprintln!("\n{passed} passed, {skipped} skipped, {not_passed} not passed, in {:.0} s", time.as_secs_f64());
        if not_passed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Returns the names and seconds of the steps that ran longest, longest first.
    fn longest(&self) -> String {
        let mut steps: Vec<&Step<'_>> = self.steps.iter().collect();
        steps.sort_by_key(|step| Reverse(step.time));
        let shown = steps.iter().take(LONGEST_SHOWN);
        shown.map(|step| format!("{} {:.0} s", step.name, step.time.as_secs_f64())).collect::<Vec<_>>().join(", ")
    }
}

/// Runs steps of the plan, one after the other, until all are done.
fn work(plan: &Mutex<Plan<'_>>, changed: &Condvar, logs: &Path) {
    let lock = || plan.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guard = lock();
    while !guard.is_done() {
        let Some(index) = guard.next() else {
            // `next` may have marked the last waiting steps as not run.
            if !guard.is_done() {
                guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            continue;
        };
        let step = &mut guard.steps[index];
        let StepState::Waiting(work) = std::mem::replace(&mut step.state, StepState::Running) else { continue };
        let (name, kind) = (step.name, step.kind);
        let log = logs.join(format!("{index:02}.log"));
        eprintln!("-- {name}: started, output in {}", log.display());
        drop(guard);
        let start = Instant::now();
        let result = run_logged(&log, kind, work);
        // Reads bytes, because tests may print bytes that are not UTF-8.
        let output = fs::read(&log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        guard = lock();
        let step = &mut guard.steps[index];
        step.time = start.elapsed();
        if result.is_err() {
            step.panics = panics(&output);
        }
        step.state = StepState::Done(result.map_or_else(Outcome::Failed, |()| Outcome::Passed));
        eprintln!("\n== {name}\n{output}{}", line(step));
        changed.notify_all();
    }
    changed.notify_all();
}

/// Returns the messages of the panics in a step's output, with their source lines, so that the
/// summary shows why the step failed.
fn panics(output: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if !line.contains("panicked at ") {
            continue;
        }
        if messages.len() == MAX_PANICS {
            messages.push("further panics are in the log".to_owned());
            break;
        }
        let is_message = |line: &&str| !line.is_empty() && *line != "stack backtrace:" && !line.starts_with("note: ");
        let message: Vec<&str> = lines.by_ref().take_while(is_message).take(MAX_PANIC_LINES).collect();
        messages.push(format!("{line}\n{}", message.join("\n")));
    }
    messages
}

/// Runs the work of a step with its output in a file. A panic is a failure.
fn run_logged(path: &Path, kind: Kind, work: Work<'_>) -> Result<()> {
    let log = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let surroundings = Surroundings { log, is_low_priority: kind.is_low_priority() };
    let result = catch_unwind(AssertUnwindSafe(|| shell::within(surroundings, work)));
    result.unwrap_or_else(|_| Err("panicked".to_owned()))
}

/// Returns a step's line in the summary: result, name, seconds and reason.
fn line(step: &Step<'_>) -> String {
    let (word, detail) = match &step.state {
        StepState::Done(Outcome::Passed) => ("passed", ""),
        StepState::Done(Outcome::Failed(message)) => ("FAILED", message.as_str()),
        StepState::Done(Outcome::NotRun(reason)) => ("NOT RUN", reason.as_str()),
        StepState::Done(Outcome::Skipped(reason)) => ("SKIPPED", *reason),
        StepState::Waiting(_) | StepState::Running => ("running", ""),
    };
    format!("{word:7}  {:40} {:7.1} s  {detail}", step.name, step.time.as_secs_f64()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    use super::*;

    fn run(plan: Plan<'_>) -> ExitCode {
        let logs = tempfile::tempdir().expect("a temporary folder");
        plan.run(logs.path()).expect("logs can be written")
    }

    #[test]
    fn step_with_a_failed_dependency_is_not_run() {
        let mut plan = Plan::new(&Tiers::Full);
        let good = plan.step("good", Kind::Test, &[], || Ok(()));
        let bad = plan.step("bad", Kind::Test, &[good], || Err("broken".to_owned()));
        let panics = plan.step("panics", Kind::CompileOther, &[], || panic!("on purpose"));
        let unmet = plan.step("after bad", Kind::Test, &[good, bad], || panic!("must not run"));
        plan.step("after that", Kind::Test, &[unmet], || panic!("must not run"));
        plan.step("after a panic", Kind::Test, &[panics], || panic!("must not run"));
        plan.step("after good", Kind::Test, &[good], || Ok(()));
        let logs = tempfile::tempdir().expect("a temporary folder");
        let plan = plan.run_steps(logs.path()).expect("logs can be written");
        let outcome = |step: &Step<'_>| match &step.state {
            StepState::Done(outcome) => outcome.clone(),
            StepState::Waiting(_) | StepState::Running => panic!("{} is not done", step.name),
        };
        let outcomes: Vec<_> = plan.steps.iter().map(outcome).collect();
        let not_run = |needed: &str| Outcome::NotRun(format!("needs \"{needed}\""));
        let failed = |reason: &str| Outcome::Failed(reason.to_owned());
        let expected = [
            Outcome::Passed,
            failed("broken"),
            failed("panicked"),
            not_run("bad"),
            not_run("after bad"),
            not_run("panics"),
            Outcome::Passed,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(plan.summarize(Duration::ZERO), ExitCode::FAILURE);
    }

    #[test]
    fn plan_without_failures_succeeds() {
        let mut plan = Plan::new(&Tiers::Full);
        plan.step("good", Kind::Test, &[], || Ok(()));
        plan.skip("extra", "missing");
        assert_eq!(run(plan), ExitCode::SUCCESS);
    }

    #[test]
    fn steps_of_different_kinds_run_at_once() {
        let both = Barrier::new(2);
        let mut plan = Plan::new(&Tiers::Full);
        for kind in [Kind::CompileDebug, Kind::Test] {
            plan.step("meets the other", kind, &[], || {
                both.wait();
                Ok(())
            });
        }
        assert_eq!(run(plan), ExitCode::SUCCESS);
    }

    #[test]
    fn steps_of_one_kind_run_one_after_the_other_and_measurements_alone() {
        let (running, is_measuring) = (AtomicUsize::new(0), AtomicBool::new(false));
        let mut plan = Plan::new(&Tiers::Full);
        let kinds = [Kind::Measure, Kind::CompileDebug, Kind::CompileDebug, Kind::Test, Kind::Measure];
        let numbers = kinds.map(|kind| kinds.iter().position(|one| *one == kind).unwrap_or_default());
        let of_kind = [const { AtomicUsize::new(0) }; 5];
        for (kind, number) in kinds.into_iter().zip(numbers) {
            let (running, is_measuring, of_kind) = (&running, &is_measuring, &of_kind[number]);
            plan.step("checks what runs", kind, &[], move || {
                let others = running.fetch_add(1, Ordering::SeqCst);
                let is_alone = of_kind.fetch_add(1, Ordering::SeqCst) == 0 && !is_measuring.load(Ordering::SeqCst);
                if kind == Kind::Measure {
                    is_measuring.store(true, Ordering::SeqCst);
                }
                thread::sleep(Duration::from_millis(10));
                is_measuring.store(false, Ordering::SeqCst);
                of_kind.fetch_sub(1, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                let is_expected = is_alone && (kind != Kind::Measure || others == 0);
                if is_expected { Ok(()) } else { Err("runs beside a step that it must not run beside".to_owned()) }
            });
        }
        assert_eq!(run(plan), ExitCode::SUCCESS);
    }

    #[test]
    fn earlier_steps_start_first_as_far_as_they_can() {
        let (sender, started) = mpsc::channel();
        let mut plan = Plan::new(&Tiers::Full);
        let first = plan.step("first", Kind::Test, &[], || Ok(()));
        for (name, needs) in [("second", vec![first]), ("third", vec![])] {
            let sender = sender.clone();
            plan.step(name, Kind::Test, &needs, move || sender.send(name).map_err(|error| error.to_string()));
        }
        assert_eq!(run(plan), ExitCode::SUCCESS);
        drop(sender);
        assert_eq!(started.iter().collect::<Vec<_>>(), ["second", "third"]);
    }

    #[test]
    fn panics_of_a_failed_step_are_found_in_its_output() {
        let first = "thread 'one' (7) panicked at src/lib.rs:3:9:\nassertion failed\n  left: 1";
        let second = "thread 'two' (8) panicked at src/lib.rs:5:9:\nbroken";
        let output = format!("test one ... FAILED\n\n{first}\nstack backtrace:\n   0: f\n{second}\n\nfailures:\n");
        assert_eq!(panics(&output), [first, second]);
        let many = panics(&format!("{second}\n\n").repeat(MAX_PANICS + 5));
        assert_eq!((many.len(), many[0].as_str()), (MAX_PANICS + 1, second));
        assert_eq!(panics("test one ... ok\n"), [""; 0]);
    }

    #[test]
    fn output_of_a_step_goes_to_its_log() {
        let logs = tempfile::tempdir().expect("a temporary folder");
        let mut plan = Plan::new(&Tiers::Full);
        for (name, kind) in [("one", Kind::Test), ("two", Kind::CompileOther)] {
            plan.step(name, kind, &[], move || {
                shell::print(&format!("message of {name}"));
                shell::run(shell::cargo().arg("--version"))
            });
        }
        assert_eq!(plan.run(logs.path()), Ok(ExitCode::SUCCESS));
        for (file, name) in [("00.log", "one"), ("01.log", "two")] {
            let log = fs::read_to_string(logs.path().join(file)).expect("a log");
            assert!(log.starts_with(&format!("message of {name}\n$ ")), "{log}");
            assert!(log.contains("\ncargo "), "{log}");
        }
    }
}
