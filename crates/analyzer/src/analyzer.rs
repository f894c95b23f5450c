//! A recording, and what has been computed from it.

use std::ops::Range;

use serde::Serialize;
use vramscope_insight::verdict::DiagnosisReport;
use vramscope_insight::what_if::{DeviceWorkload, first_histories};
use vramscope_pool::{RecordedConf, Settings};
use vramscope_trace::{DeviceId, FormatError, Recording};

use crate::advice::advice;
use crate::error::AnalysisError;
use crate::excerpt::{ExcerptJob, ExcerptStep};
use crate::findings::{check, findings};
use crate::request::{Observer, Request};
use crate::simulation::what_if;
use crate::snapshot::write_snapshot;

/// Answers [`Request`]s about one recording. Keeps the recorded requests of each device, so that
/// further settings can be tried sooner.
///
/// ```
/// use vramscope_analyzer::{Analyzer, Observer, Request};
/// use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
/// use vramscope_trace::{DeviceId, Encoder, Recording, RecordingInfo, StreamId};
///
/// /// Collects the simulated recording.
/// #[derive(Default)]
/// struct Simulated(Recording);
///
/// impl Observer for Simulated {
///     fn part(&mut self, bytes: Vec<u8>) {
///         self.0.push(&bytes).expect("the simulated recording is valid");
///     }
///     fn progress(&mut self, _: f64, _: &str) {}
/// }
///
/// // A recording of two requests, which get a segment of 20 MiB and one of 24 MiB.
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(1 << 30));
/// for bytes in [5 << 20, 23 << 20] {
///     pool.allocate(bytes, StreamId(0), Origin::default(), &mut encoder)?;
/// }
/// encoder.flush();
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
///
/// let alloc_conf = Some("expandable_segments:True".to_owned());
/// let request = Request::WhatIf { device: 0, alloc_conf, capacity_bytes: None };
/// let mut simulated = Simulated::default();
/// let answer = Analyzer::new(recording).answer(&request, &mut simulated)?;
/// assert!(answer.contains("\"recorded\":{\"peak_allocated_bytes\":30408704,\"peak_reserved_bytes\":46137344"));
/// assert_eq!(simulated.0.end_state().device(DeviceId(0)).map(|device| device.counters().reserved), Some(40 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Analyzer {
    recording: Recording,
    /// The requests of the devices that were simulated.
    workloads: Vec<DeviceWorkload>,
}

impl Analyzer {
    /// Creates an analyzer of a recording.
    #[must_use]
    pub fn new(recording: Recording) -> Self {
        Self { recording, workloads: Vec::new() }
    }

    /// Returns the recording.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns the byte ranges of the recording's file that must be [supplied](Self::supply) before
    /// a request other than an excerpt is answered.
    #[must_use]
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.recording.missing_between(self.recording.first_event(), self.recording.end_event())
    }

    /// Adds the bytes of a part of the recording's file, which begins at `offset`.
    ///
    /// # Errors
    /// If the bytes contradict the recording's index.
    pub fn supply(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AnalysisError> {
        Ok(self.recording.supply(offset, bytes)?)
    }

    /// Answers a request with JSON.
    ///
    /// # Errors
    /// If the recording cannot be read, or the settings are invalid.
    pub fn answer(&mut self, request: &Request, observer: &mut impl Observer) -> Result<String, AnalysisError> {
        match request {
            Request::WhatIf { device, alloc_conf, capacity_bytes } => {
                let (recording, device) = self.prepare(DeviceId(*device), observer)?;
                let conf = alloc_conf.as_deref();
                Ok(json(&what_if(recording, device, conf, *capacity_bytes, observer)?))
            }
            Request::Advice { device, capacity_bytes } => {
                let settings = self.settings()?;
                let (_, device) = self.prepare(DeviceId(*device), observer)?;
                Ok(json(&advice(device, &settings, *capacity_bytes, observer)))
            }
            Request::Findings => self.find(observer),
            Request::Snapshot => {
                write_snapshot(&self.recording, observer)?;
                Ok(json(&()))
            }
            Request::Excerpt { from, to, is_redacted } => {
                let mut job = ExcerptJob::new(&self.recording, (*from, *to), *is_redacted);
                while let ExcerptStep::Written(..) = self.write_excerpt(&mut job, observer)? {}
                Ok(json(&()))
            }
        }
    }

    /// Writes the next part of an excerpt.
    ///
    /// # Errors
    /// If the recording is damaged.
    pub fn write_excerpt(
        &self,
        job: &mut ExcerptJob,
        observer: &mut impl Observer,
    ) -> Result<ExcerptStep, FormatError> {
        let mut output = Vec::new();
        let step = job.step(&self.recording, &mut output)?;
        output.into_iter().for_each(|bytes| observer.part(bytes));
        if let ExcerptStep::Written(done, all) = step {
            observer.progress(done as f64 / all.max(1) as f64, "Saving");
        }
        Ok(step)
    }

    /// Returns the recorded settings.
    fn settings(&self) -> Result<Settings, AnalysisError> {
        let conf = &self.recording.info().alloc_conf;
        let RecordedConf { settings, other_backend, .. } = RecordedConf::parse(conf);
        other_backend.map_or(Ok(settings), |error| Err(AnalysisError::RecordedSettings { conf: conf.clone(), error }))
    }

    /// Returns the recording and the requests of a device, which are read once.
    fn prepare(
        &mut self,
        device: DeviceId,
        observer: &mut impl Observer,
    ) -> Result<(&Recording, &DeviceWorkload), AnalysisError> {
        let is_of_device = |known: &DeviceWorkload| known.workload.device() == device;
        if !self.workloads.iter().any(is_of_device) {
            observer.progress(0.0, "Reading the requests");
            let settings = self.settings()?;
            let histories = first_histories(&self.recording)?;
            for first in histories.into_iter().filter(|first| first.history.device() == device) {
                self.workloads.push(DeviceWorkload::new(&self.recording, first, &settings, None)?);
            }
        }
        let workload = self.workloads.iter().find(|known| is_of_device(known) && known.workload.requests() > 0);
        Ok((&self.recording, workload.ok_or(AnalysisError::NoRequests(device))?))
    }

    /// Finds the problems of the recording, and simulates their remedies.
    fn find(&mut self, observer: &mut impl Observer) -> Result<String, AnalysisError> {
        let settings = self.settings()?;
        let (mut found, history) = findings(&self.recording, &settings, observer)?;
        for device in found.devices_to_check() {
            // Without its requests, a finding has no checked remedy.
            if let Ok((recording, device)) = self.prepare(device, observer)
                && !device.stops_at_gap
            {
                check(&mut found, recording, &history, device, &settings, observer)?;
            }
        }
        found.adopt_proven();
        Ok(json(&DiagnosisReport::new(&self.recording, &found)))
    }
}

/// Returns a value as JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and finite numbers always serialize")
}
