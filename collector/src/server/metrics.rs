//! `/metrics`: gauges and counters for Prometheus.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::accept::ConnectionCounts;
use super::content::ServedContent;
use super::metric_family::{MetricFamily, MetricSample, MetricValue};
use super::state::AppState;
use crate::figures::{DeviceFigures, Figures};
use crate::hub::Hub;

/// The media type (OpenMetrics) that current Prometheus versions accept. Other clients get the
/// older text format.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Answers `GET /metrics` with all metrics in the format that the client accepts.
pub(super) async fn metrics(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open_metrics = accept.contains(OPEN_METRICS);
    let media_type = if is_open_metrics {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    let mut families = Families::default();
    Metrics::read(&state.content).add_to(&mut families);
    families.connections(&state.counts);
    match open_metrics_text(families) {
        Ok(text) => {
            let text = if is_open_metrics { text } else { prometheus_text(&text) };
            ([(header::CONTENT_TYPE, media_type)], text).into_response()
        }
        // Formatting into a String does not fail.
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns the metrics in the OpenMetrics text format.
fn open_metrics_text(families: Families) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Converts OpenMetrics text to the Prometheus text format 0.0.4: a counter's metadata has the name
/// of its sample, with `_total`, and there are no units and no end marker.
fn prometheus_text(open_metrics: &str) -> String {
    let counter = |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
    let counters: HashSet<String> = open_metrics.lines().filter_map(counter).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let keyword =
            ["# HELP ", "# TYPE "].into_iter().find_map(|keyword| Some((keyword, line.strip_prefix(keyword)?)));
        match keyword.and_then(|(keyword, rest)| Some((keyword, rest.split_once(' ')?))) {
            Some((keyword, (name, rest))) if counters.contains(name) => {
                text.extend([keyword, name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// The values of metrics at one moment: of the live recording, the ranks of a run and this process.
#[derive(Debug, Default)]
struct Metrics {
    live: Option<LiveMetrics>,
    /// Figures of all ranks of a run.
    ranks: Vec<MetricFamily>,
    process: ProcessMetrics,
}

/// Metrics of the live recording: events, file size, each device's memory, number of viewers,
/// events that slow viewers missed, and the memory that the hub holds.
#[derive(Debug, Default)]
struct LiveMetrics {
    figures: Arc<Figures>,
    viewers: u64,
    missed_events: u64,
    held_bytes: u64,
}

impl ServedContent {
    /// Returns the metrics of the live recording, of the ranks of a run, and of this process.
    /// `/metrics` has all of them, and also counts the server's connections.
    #[must_use]
    pub fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = Families::default();
        Metrics::read(self).add_to(&mut families);
        families.0
    }
}

impl Metrics {
    /// Returns the current values of the metrics of `content` and of this process.
    fn read(content: &ServedContent) -> Self {
        let figures = |hub: &Hub| match &content.aggregator {
            None => hub.figures(),
            // A disconnected process may have ended, so its last known memory is not reported.
            Some(aggregator) => {
                let (mut figures, connected) = (Figures::clone(&hub.figures()), aggregator.connected_devices());
                figures.devices.retain(|device| connected.contains(&device.info.device));
                Arc::new(figures)
            }
        };
        let live = content.live.as_ref().map(|hub| LiveMetrics {
            figures: figures(hub),
            viewers: hub.viewers() as u64,
            missed_events: hub.missed_events(),
            held_bytes: hub.held_bytes(),
        });
        let ranks = content.fleet.as_ref().map(|fleet| fleet.metrics()).unwrap_or_default();
        Self { live, ranks, process: ProcessMetrics::read() }
    }

    /// Adds all metrics that have samples.
    fn add_to(&self, families: &mut Families) {
        if let Some(live) = &self.live {
            families.live(live);
        }
        families.0.extend(self.ranks.iter().cloned());
        let process = &self.process;
        families.gauge("process_resident_memory", "Resident memory of this process", "bytes", process.resident_bytes);
        families.gauge("process_open_fds", "Open files of this process", "", process.open_files);
        families.0.retain(|family| !family.samples.is_empty());
    }
}

/// Resident memory and open files of this process; `None` on systems other than Linux, and if they
/// cannot be read.
#[derive(Debug, Default)]
struct ProcessMetrics {
    resident_bytes: Option<u64>,
    open_files: Option<u64>,
}

impl ProcessMetrics {
    /// Reads the current values from `/proc`.
    #[cfg(target_os = "linux")]
    fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let resident = status.and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        });
        let open_files = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64);
        // One of the open files is the folder `/proc/self/fd` itself, which this reads.
        Self { resident_bytes: resident.map(|kib| kib << 10), open_files: open_files.map(|files| files - 1) }
    }

    /// Returns no values, because this system has no `/proc`.
    #[cfg(not(target_os = "linux"))]
    fn read() -> Self {
        Self::default()
    }
}

/// A gauge that each device has: name without the prefix `vramscope_`, help text, unit, and a
/// function that returns its value. If the value is `None`, the device is left out.
type DeviceGauge = (&'static str, &'static str, &'static str, fn(&DeviceFigures) -> Option<u64>);

/// The gauges of each device in `/metrics`.
const DEVICE_GAUGES: [DeviceGauge; 13] = [
    ("memory_allocated", "Memory of allocated blocks", "bytes", |device| Some(device.counters.allocated)),
    (
        "memory_active",
        "Memory of allocated blocks and of freed blocks that a stream may still use",
        "bytes",
        |device| Some(device.counters.active),
    ),
    ("memory_reserved", "Memory of all segments", "bytes", |device| Some(device.counters.reserved)),
    ("memory_requested", "Memory that the program requested, before rounding", "bytes", |device| {
        Some(device.counters.requested)
    }),
    ("memory_free", "Free memory inside segments", "bytes", |device| Some(device.free_space.total)),
    ("memory_largest_free_block", "The largest free block", "bytes", |device| Some(device.free_space.largest)),
    ("free_blocks", "Free blocks", "", |device| Some(device.free_space.blocks)),
    ("segments", "Segments", "", |device| Some(device.segments)),
    ("blocks", "Active blocks", "", |device| Some(device.blocks)),
    ("device_memory", "Memory of the device", "bytes", |device| {
        Some(device.info.total_bytes).filter(|&bytes| bytes > 0)
    }),
    ("device_memory_free", "Memory of the device that no process holds", "bytes", |device| {
        device.sample.map(|sample| sample.free)
    }),
    ("device_memory_outside_pool", "Memory that this process holds outside of the pool", "bytes", |device| {
        device.sample.map(|sample| sample.used_by_context)
    }),
    ("device_memory_others", "Memory that other processes hold", "bytes", |device| {
        device.sample.map(|sample| sample.used_by_others)
    }),
];

/// Collects metric families.
#[derive(Debug, Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    /// Adds a metric family: name, help text, unit, and samples.
    fn add(&mut self, (name, help, unit): (&str, &'static str, &'static str), samples: Vec<MetricSample>) {
        self.0.push(MetricFamily { name: name.to_owned(), help, unit, is_counter: false, samples });
    }

    /// Adds a counter: name, help text, unit, and samples.
    fn add_counter(&mut self, (name, help, unit): (&str, &'static str, &'static str), samples: Vec<MetricSample>) {
        self.0.push(MetricFamily { name: name.to_owned(), help, unit, is_counter: true, samples });
    }

    /// Adds a gauge without labels; left out if `value` is `None`.
    fn gauge(&mut self, name: &str, help: &'static str, unit: &'static str, value: impl Into<Option<u64>>) {
        self.add(
            (name, help, unit),
            value.into().map(|value| unlabelled(MetricValue::Integer(value))).into_iter().collect(),
        );
    }

    /// Adds a counter without labels or unit.
    fn counter(&mut self, name: &str, help: &'static str, value: u64) {
        self.add_counter((name, help, ""), vec![unlabelled(MetricValue::Integer(value))]);
    }

    /// Adds the numbers of the server's connections since it started.
    fn connections(&mut self, counts: &ConnectionCounts) {
        self.gauge("vramscope_connections", "Open connections", "", counts.open.load(Ordering::Relaxed) as u64);
        let accepted = counts.accepted.load(Ordering::Relaxed);
        self.counter("vramscope_accepted_connections", "Connections accepted since the server started", accepted);
        let help = "Connections refused or replaced because the limit was reached";
        self.counter("vramscope_refused_connections", help, counts.refused.load(Ordering::Relaxed));
    }

    /// Adds the metrics of the live recording and of each of its devices.
    fn live(&mut self, live: &LiveMetrics) {
        let LiveMetrics { figures, viewers, missed_events, held_bytes } = live;
        let labels = vec![("program", figures.program.clone())];
        let recording = ("vramscope_recording", "Always 1; the label names the recorded program", "");
        self.add(recording, vec![MetricSample { labels, value: MetricValue::Integer(1) }]);
        let per_device = |value: &dyn Fn(&DeviceFigures) -> Option<MetricValue>| -> Vec<_> {
            let devices = figures.devices.iter();
            let labels = |device: &DeviceFigures| {
                vec![("device", device.info.device.to_string()), ("name", device.info.name.clone())]
            };
            devices.filter_map(|device| Some(MetricSample { labels: labels(device), value: value(device)? })).collect()
        };
        for (name, help, unit, value) in DEVICE_GAUGES {
            let samples = per_device(&|device| value(device).map(MetricValue::Integer));
            self.add((&format!("vramscope_{name}"), help, unit), samples);
        }
        let fragmentation = per_device(&|device| Some(MetricValue::Float(device.free_space.fragmentation())));
        self.add(
            ("vramscope_fragmentation", "1 - largest free block / free bytes in segments", "ratio"),
            fragmentation,
        );
        let failures = per_device(&|device| Some(MetricValue::Integer(device.out_of_memory)));
        self.add_counter(("vramscope_out_of_memory", "Requests that failed for lack of memory", ""), failures);
        self.counter("vramscope_events", "Events recorded", figures.events);
        self.counter("vramscope_lost_events", "Events missing from the recording", figures.lost_events);
        self.counter("vramscope_recorder_waits", "Times that the program waited for the recorder", figures.waits);
        let waited = vec![unlabelled(MetricValue::Float(figures.waited.as_secs_f64()))];
        let family = ("vramscope_recorder_waited", "Time that the program waited for the recorder", "seconds");
        self.add_counter(family, waited);
        self.gauge("vramscope_file", "Size of the recording's file", "bytes", figures.file_bytes);
        self.gauge("vramscope_viewers", "Viewers that follow the recording", "", *viewers);
        self.counter("vramscope_viewers_missed_events", "Events left out for slow viewers", *missed_events);
        self.gauge("vramscope_history", "Memory of the recording's history in this process", "bytes", *held_bytes);
    }
}

/// Returns a sample without labels.
fn unlabelled(value: MetricValue) -> MetricSample {
    MetricSample { labels: Vec::new(), value }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for MetricFamily { name, help, unit, is_counter, samples } in &self.0 {
            let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
            let unit = (!unit.is_empty()).then(|| Unit::Other((*unit).to_owned()));
            let mut encoder = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for MetricSample { labels, value } in samples {
                if labels.is_empty() {
                    write_sample(&mut encoder, kind, *value)?;
                } else {
                    write_sample(&mut encoder.encode_family(labels)?, kind, *value)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes one sample of a gauge or counter.
fn write_sample(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: MetricValue) -> fmt::Result {
    use MetricType::Counter;
    match (kind, value) {
        (Counter, MetricValue::Integer(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (Counter, MetricValue::Float(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (_, MetricValue::Integer(value)) => encoder.encode_gauge(&value),
        (_, MetricValue::Float(value)) => encoder.encode_gauge(&value),
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Counters, DeviceInfo, FreeSpace, MemorySample};

    use super::*;

    /// Returns the metrics of a server without connections.
    fn families(metrics: &Metrics) -> Families {
        let mut families = Families::default();
        metrics.add_to(&mut families);
        families.connections(&ConnectionCounts::default());
        families
    }

    /// Returns the metrics of a program with one device.
    fn metrics() -> Metrics {
        let device = DeviceFigures {
            info: DeviceInfo {
                device: 3,
                total_bytes: 141 << 30,
                name: "NVIDIA \"H200\"\n</b>\\".into(),
                ..DeviceInfo::default()
            },
            counters: Counters { allocated: 1 << 30, active: 2 << 30, reserved: 3 << 30, requested: 1 << 29 },
            free_space: FreeSpace { total: 400, largest: 100, blocks: 7 },
            sample: Some(MemorySample { used_by_context: 5, used_by_others: 6, free: 7 }),
            segments: 12,
            blocks: 34,
            out_of_memory: 1,
            largest_sites: Vec::new(),
        };
        let figures = Figures {
            program: "<script>alert(1)</script>\"\n".into(),
            events: 1_000_000_007,
            devices: vec![device],
            file_bytes: Some(99),
            ..Figures::default()
        };
        let live = LiveMetrics { figures: Arc::new(figures), viewers: 2, missed_events: 3, held_bytes: 4 };
        let process = ProcessMetrics { resident_bytes: Some(5), open_files: Some(6) };
        Metrics { live: Some(live), process, ..Metrics::default() }
    }

    #[test]
    fn metrics_have_names_units_and_labels_as_in_openmetrics() {
        let text = open_metrics_text(families(&metrics())).expect("formatting does not fail");
        let device = "device=\"3\",name=\"NVIDIA \\\"H200\\\"\\n</b>\\\\\"";
        for line in [
            "vramscope_recording{program=\"<script>alert(1)</script>\\\"\\n\"} 1",
            &format!("vramscope_memory_allocated_bytes{{{device}}} 1073741824"),
            &format!("vramscope_memory_largest_free_block_bytes{{{device}}} 100"),
            &format!("vramscope_fragmentation_ratio{{{device}}} 0.75"),
            &format!("vramscope_segments{{{device}}} 12"),
            &format!("vramscope_out_of_memory_total{{{device}}} 1"),
            &format!("vramscope_device_memory_others_bytes{{{device}}} 6"),
            "vramscope_events_total 1000000007",
            "vramscope_lost_events_total 0",
            "vramscope_recorder_waited_seconds_total 0.0",
            "vramscope_viewers 2",
            "process_resident_memory_bytes 5",
            "# TYPE vramscope_memory_allocated_bytes gauge",
            "# TYPE vramscope_events counter",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn older_format_has_the_same_samples() {
        let open = open_metrics_text(families(&metrics())).expect("formatting does not fail");
        let older = prometheus_text(&open);
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&older), samples(&open));
        for line in [
            "# HELP vramscope_events_total Events recorded",
            "# TYPE vramscope_events_total counter",
            "# TYPE vramscope_recorder_waited_seconds_total counter",
            "# TYPE vramscope_memory_allocated_bytes gauge",
        ] {
            assert!(older.lines().any(|found| found == line), "no {line} in\n{older}");
        }
        // Each name has its type exactly once.
        for name in samples(&older).iter().filter_map(|line| line.split(['{', ' ']).next()) {
            let kinds = older.lines().filter(|line| line.starts_with(&format!("# TYPE {name} "))).count();
            assert_eq!(kinds, 1, "{name} in\n{older}");
        }
        assert!(!older.contains("# UNIT ") && !older.contains("# EOF"), "{older}");
    }

    #[test]
    fn unknown_values_are_left_out() {
        let text = open_metrics_text(families(&Metrics::default())).expect("formatting does not fail");
        assert!(text.contains("\nvramscope_connections 0\n"), "{text}");
        for name in ["memory", "viewers", "process_"] {
            assert!(!text.contains(name), "unexpected {name} in\n{text}");
        }
    }

    #[test]
    fn metrics_of_the_process_exist_on_linux_only() {
        let ProcessMetrics { resident_bytes, open_files } = ProcessMetrics::read();
        let is_linux = cfg!(target_os = "linux");
        assert_eq!([resident_bytes, open_files].map(|value| value.is_some_and(|value| value > 0)), [is_linux; 2]);
    }

    fn docs(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
        std::fs::read_to_string(path).expect("the document exists")
    }

    /// Returns the metric names that occur in a text.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("vramscope_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn documentation_and_dashboard_name_existing_metrics() {
        let text = open_metrics_text(families(&metrics())).expect("formatting does not fail");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let exported: std::collections::BTreeSet<_> =
            samples.filter_map(|line| line.split(['{', ' ']).next()).filter(|name| !name.is_empty()).collect();
        let documentation = docs("monitoring.md");
        assert_eq!(names(&documentation), exported, "docs/monitoring.md names every metric");
        let dashboard = docs("grafana/vramscope.json");
        let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
        assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 10));
        let unknown: Vec<_> = names(&dashboard).into_iter().filter(|name| !exported.contains(name)).collect();
        assert!(unknown.is_empty() && names(&dashboard).len() > 20, "the dashboard has unknown metrics: {unknown:?}");
    }
}
