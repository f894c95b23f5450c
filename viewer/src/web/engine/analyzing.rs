//! Runs the session's jobs with an analyzer in a web worker.

use wasm_bindgen::prelude::*;

use super::super::browser::{error_text, run_after};
use super::app::{App, EngineState};
use super::excerpt::{NO_ANALYZER, START_ANALYZER, source};
use super::page_worker::{Analysis, Answer, PageWorker, Running};
use super::save;
use crate::jobs::Job;
use crate::model::Origin;
use crate::open::{RecordingLoader, SaveFormat};
use crate::protocol::FromEngine;

/// Starts the job that the session wants next, unless it is running already. A running simulation
/// is finished first.
pub(super) fn update(app: &App) {
    schedule_analysis(app);
    let mut state = app.0.state.borrow_mut();
    let wanted = state.session.wanted_job();
    let opened = state.session.model.opened();
    let mut analysis = app.0.analysis.borrow_mut();
    if let Some(Analysis { running: Some(running), opened: known, .. }) = &*analysis
        && *known == opened
        && (Some(&running.job) == wanted.as_ref() || (running.job.simulates() && wanted.is_some()))
    {
        // The next setting waits: a new worker would have to read all requests again.
        return;
    }
    let is_file = state.session.model.origin() == Origin::File;
    let is_kept = is_file && state.session.shows_what_if();
    let kept = analysis.take().filter(|one| one.opened == opened && one.running.is_none() && is_kept);
    app.send_progress_of_jobs(&state.session.jobs().running, None);
    state.session.job_started(wanted.clone());
    let Some(job) = wanted else {
        *analysis = kept;
        return;
    };
    let events = state.session.model.recording().end_event();
    let request = JsValue::from(job.request());
    let started = match kept {
        Some(kept) => kept.worker.send(&[("request", &request)]).map(|()| Some(kept.worker)),
        None => start(app, &state, &request),
    };
    match started {
        Ok(Some(worker)) => {
            let running = Some(Running { job, events, loader: RecordingLoader::default() });
            *analysis = Some(Analysis { worker, opened, running });
        }
        failed => {
            let text = failed.err().map_or_else(|| NO_ANALYZER.to_owned(), |error| error_text(&error));
            drop(state.session.job_finished(job, events, Err(text), None));
        }
    }
    drop((state, analysis));
    app.want_frame();
}

/// Schedules a frame for when a live recording is due to be analyzed again: a program that has
/// ended sends nothing more that would cause a frame.
fn schedule_analysis(app: &App) {
    let delay_ms = app.0.state.borrow().session.next_analysis_in_ms().filter(|&delay_ms| delay_ms > 0.0);
    let Some(delay_ms) = delay_ms else { return };
    if !app.0.is_analysis_scheduled.replace(true) {
        let waiting = app.clone();
        run_after(delay_ms.ceil() as i32, move || {
            waiting.0.is_analysis_scheduled.set(false);
            waiting.want_frame();
        });
    }
}

/// Starts a worker that analyzes the recording on the page, and sends it the first request; `None`
/// if the page has no analyzer.
fn start(app: &App, state: &EngineState, request: &JsValue) -> Result<Option<PageWorker>, JsValue> {
    let reacting = app.clone();
    let worker = PageWorker::start(START_ANALYZER, move |answer| receive(&reacting, answer))?;
    if let Some(worker) = &worker {
        worker.send(&[("source", &source(app, state)?), ("request", request)])?;
    }
    Ok(worker)
}

/// Handles an answer of the analyzer's worker: a part of a recording, progress, the result or a
/// failure.
fn receive(app: &App, answer: Answer) {
    let mut analysis = app.0.analysis.borrow_mut();
    let Some(running) = analysis.as_mut().and_then(|one| one.running.as_mut()) else { return };
    let answer = match answer {
        Answer::Part(bytes) => return running.loader.push(&bytes.to_vec()),
        Answer::Progress(share, text) => {
            return app.send_progress_of_jobs(&Some(running.job.clone()), Some((share, text)));
        }
        Answer::Done(result) => Ok(result.unwrap_or_default()),
        Answer::Failed(error) => Err(error_text(&error)),
    };
    let finished = analysis.as_mut().and_then(|one| one.running.take());
    let Some(Running { job, events, loader }) = finished else { return };
    if answer.is_err() {
        // The worker may have ended.
        *analysis = None;
    }
    drop(analysis);
    app.send_progress_of_jobs(&Some(job.clone()), None);
    let run = job.simulates().then(|| loader.finish().ok()).flatten().map(|file| file.recording);
    let mut state = app.0.state.borrow_mut();
    let new = state.session.job_finished(job, events, answer, run);
    let is_live = state.session.model.origin() == Origin::Live;
    let saves = state.session.jobs().findings.saves;
    drop(state);
    if let Some(first) = new.first().filter(|_| is_live) {
        let others = if new.len() > 1 { format!(" And {} more.", new.len() - 1) } else { String::new() };
        app.show_message(&format!("{}{others}", first["summary"].as_str().unwrap_or_default()));
        if saves {
            save::save(app, SaveFormat::Recording);
        }
    }
    app.want_frame();
}

/// Stops the running job of the analyzer. The job counts as failed, so that it does not start
/// again.
pub(super) fn cancel(app: &App) {
    let Some(running) = app.0.analysis.borrow_mut().take().and_then(|analysis| analysis.running) else { return };
    let stopped = Err("stopped; change a setting to try again".to_owned());
    drop(app.0.state.borrow_mut().session.job_finished(running.job, running.events, stopped, None));
    app.want_frame();
}

impl App {
    /// Shows the progress of a job that the user waits for; `None` hides it. The search for
    /// findings runs in the background without progress.
    fn send_progress_of_jobs(&self, job: &Option<Job>, progress: Option<(f64, String)>) {
        if job.as_ref().is_some_and(|job| *job != Job::Findings) {
            self.send(&FromEngine::Progress(progress));
        }
    }
}
