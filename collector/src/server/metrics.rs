//! `/metrics`: what a recording comes to, for Prometheus.

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

use super::routes::Site;
use crate::figures::{DeviceFigures, Figures};
use crate::hub::Hub;

/// What Prometheus asks for where it knows it; those who do not are given Prometheus' older text.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Answers a request for the numbers.
pub(super) async fn answer(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let asked = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open = asked.contains(OPEN_METRICS);
    let media_type = if is_open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    match text(Numbers::of(&site)) {
        Ok(text) => {
            let text = if is_open { text } else { older(&text) };
            ([(header::CONTENT_TYPE, media_type)], text).into_response()
        }
        // Writing to memory fails where there is none, and then nobody gets here.
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn text(numbers: Numbers) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(numbers));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The same numbers as Prometheus read them before OpenMetrics: a counter is there called what its numbers are, with `_total`, and neither units nor
/// the end are told.
fn older(text: &str) -> String {
    let counter = |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
    let counters: HashSet<String> = text.lines().filter_map(counter).collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let about = ["# HELP ", "# TYPE "].into_iter().find_map(|about| Some((about, line.strip_prefix(about)?)));
        match about.and_then(|(about, rest)| Some((about, rest.split_once(' ')?))) {
            Some((about, (name, rest))) if counters.contains(name) => {
                older.extend([about, name, "_total ", rest]);
            }
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}

/// What is told, as it is at one moment.
#[derive(Debug, Default)]
struct Numbers {
    live: Option<Live>,
    connections: u64,
    accepted: u64,
    refused: u64,
    process: Process,
}

/// What is told of a recording in progress.
#[derive(Debug, Default)]
struct Live {
    figures: Arc<Figures>,
    viewers: u64,
    missed_events: u64,
    held_bytes: u64,
}

impl Numbers {
    fn of(site: &Site) -> Self {
        let figures = |hub: &Hub| match &site.content.gather {
            None => hub.figures(),
            // A process that is gone holds nothing any more, whatever the recording last saw of it.
            Some(gather) => {
                let (mut figures, here) = (Figures::clone(&hub.figures()), gather.here());
                figures.devices.retain(|device| here.contains(&device.info.device));
                Arc::new(figures)
            }
        };
        let live = site.content.live.as_ref().map(|hub| Live {
            figures: figures(hub),
            viewers: hub.viewers() as u64,
            missed_events: hub.missed_events(),
            held_bytes: hub.held_bytes(),
        });
        let counts = &site.counts;
        Self {
            live,
            connections: counts.open.load(Ordering::Relaxed) as u64,
            accepted: counts.accepted.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
            process: Process::now(),
        }
    }
}

/// What an operating system says of this process, if it does.
#[derive(Debug, Default)]
struct Process {
    resident_bytes: Option<u64>,
    open_files: Option<u64>,
}

impl Process {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let resident = status.and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        });
        let open_files = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64);
        // One of them is the folder itself.
        Self { resident_bytes: resident.map(|kib| kib << 10), open_files: open_files.map(|files| files - 1) }
    }
}

/// A number, written as what it is.
#[derive(Clone, Copy, Debug)]
enum Value {
    Whole(u64),
    Part(f64),
}

/// A number of each device: its name, what it is, its unit, and where it is found.
type OfDevice = (&'static str, &'static str, &'static str, fn(&DeviceFigures) -> Option<u64>);

const OF_DEVICES: [OfDevice; 13] = [
    ("memory_allocated", "Memory handed to the program", "bytes", |device| Some(device.counters.allocated)),
    ("memory_active", "That, and what was freed and is still in use by a stream", "bytes", |device| {
        Some(device.counters.active)
    }),
    ("memory_reserved", "Memory of segments, taken from the device", "bytes", |device| Some(device.counters.reserved)),
    ("memory_requested", "What the program asked for, before rounding", "bytes", |device| {
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
    ("device_memory_free", "Memory of the device that nobody holds", "bytes", |device| {
        device.sample.map(|sample| sample.free)
    }),
    ("device_memory_outside_pool", "Held by this process outside of the pool", "bytes", |device| {
        device.sample.map(|sample| sample.used_by_context)
    }),
    ("device_memory_others", "Held by other processes", "bytes", |device| {
        device.sample.map(|sample| sample.used_by_others)
    }),
];

fn write(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (MetricType::Counter, Value::Part(value)) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (_, Value::Whole(value)) => encoder.encode_gauge(&value),
        (_, Value::Part(value)) => encoder.encode_gauge(&value),
    }
}

/// Writes numbers, one name after another.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    /// A name, with the numbers that go by it and what tells them apart. One without numbers is left out.
    fn numbers(
        &mut self,
        (name, help, unit): (&str, &str, &str),
        kind: MetricType,
        numbers: &[(Vec<(&str, String)>, Value)],
    ) -> fmt::Result {
        if numbers.is_empty() {
            return Ok(());
        }
        let unit = (!unit.is_empty()).then(|| Unit::Other(unit.to_owned()));
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in numbers {
            if labels.is_empty() {
                write(&mut encoder, kind, *value)?;
            } else {
                write(&mut encoder.encode_family(labels)?, kind, *value)?;
            }
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, unit: &str, value: impl Into<Option<u64>>) -> fmt::Result {
        let value = value.into().map(|value| (Vec::new(), Value::Whole(value)));
        self.numbers((name, help, unit), MetricType::Gauge, value.as_slice())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.numbers((name, help, ""), MetricType::Counter, &[(Vec::new(), Value::Whole(value))])
    }

    fn live(&mut self, live: &Live) -> fmt::Result {
        let Live { figures, viewers, missed_events, held_bytes } = live;
        let program = vec![("program", figures.program.clone())];
        let recording = ("vramscope_recording", "The program that is recorded: always 1", "");
        self.numbers(recording, MetricType::Gauge, &[(program, Value::Whole(1))])?;
        let each = |of: &dyn Fn(&DeviceFigures) -> Option<Value>| -> Vec<_> {
            let devices = figures.devices.iter();
            let label = |device: &DeviceFigures| {
                vec![("device", device.info.device.to_string()), ("name", device.info.name.clone())]
            };
            devices.filter_map(|device| Some((label(device), of(device)?))).collect()
        };
        for (name, help, unit, of) in OF_DEVICES {
            let numbers = each(&|device| of(device).map(Value::Whole));
            self.numbers((&format!("vramscope_{name}"), help, unit), MetricType::Gauge, &numbers)?;
        }
        let fragmentation = each(&|device| Some(Value::Part(device.free_space.fragmentation())));
        let name = ("vramscope_fragmentation", "1 - largest free block / free bytes in segments", "ratio");
        self.numbers(name, MetricType::Gauge, &fragmentation)?;
        let failures = each(&|device| Some(Value::Whole(device.out_of_memory)));
        let name = ("vramscope_out_of_memory", "Requests that there was no room for", "");
        self.numbers(name, MetricType::Counter, &failures)?;
        self.counter("vramscope_events", "Events recorded", figures.events)?;
        self.counter("vramscope_lost_events", "Events that are not in the recording", figures.lost_events)?;
        self.counter("vramscope_recorder_waits", "Times that the program waited for the recorder", figures.waits)?;
        let waited = [(Vec::new(), Value::Part(figures.waited.as_secs_f64()))];
        let name = ("vramscope_recorder_waited", "How long the program waited for the recorder", "seconds");
        self.numbers(name, MetricType::Counter, &waited)?;
        self.gauge("vramscope_file", "The recording's file", "bytes", figures.file_bytes)?;
        self.gauge("vramscope_viewers", "Viewers that follow the recording", "", *viewers)?;
        self.counter(
            "vramscope_viewers_missed_events",
            "Events left out for viewers that were too slow",
            *missed_events,
        )?;
        self.gauge("vramscope_history", "Memory that the recording takes in this process", "bytes", *held_bytes)
    }
}

impl Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        if let Some(live) = &self.live {
            writer.live(live)?;
        }
        writer.gauge("vramscope_connections", "Connections that are open", "", self.connections)?;
        writer.counter("vramscope_accepted_connections", "Connections there ever were", self.accepted)?;
        let refused = "Connections that were sent away, or had to make room, because there were too many";
        writer.counter("vramscope_refused_connections", refused, self.refused)?;
        writer.gauge("process_resident_memory", "Memory of this process", "bytes", self.process.resident_bytes)?;
        writer.gauge("process_open_fds", "Files that this process has open", "", self.process.open_files)
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Counters, DeviceInfo, FreeSpace, MemorySample};

    use super::*;

    /// What is told of a program that trains on one device.
    fn numbers() -> Numbers {
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
        };
        let figures = Figures {
            program: "<script>alert(1)</script>\"\n".into(),
            events: 1_000_000_007,
            devices: vec![device],
            file_bytes: Some(99),
            ..Figures::default()
        };
        let live = Live { figures: Arc::new(figures), viewers: 2, missed_events: 3, held_bytes: 4 };
        let process = Process { resident_bytes: Some(5), open_files: Some(6) };
        Numbers { live: Some(live), process, ..Numbers::default() }
    }

    #[test]
    fn numbers_have_the_names_that_prometheus_expects() {
        let text = text(numbers()).expect("text");
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
    fn who_knows_no_open_metrics_is_told_the_same_numbers() {
        let open = text(numbers()).expect("text");
        let older = older(&open);
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
        // Each name is explained once, in front of its numbers.
        for name in samples(&older).iter().filter_map(|line| line.split(['{', ' ']).next()) {
            let kinds = older.lines().filter(|line| line.starts_with(&format!("# TYPE {name} "))).count();
            assert_eq!(kinds, 1, "{name} in\n{older}");
        }
        assert!(!older.contains("# UNIT ") && !older.contains("# EOF"), "{older}");
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let text = text(Numbers::default()).expect("text");
        assert!(text.contains("\nvramscope_connections 0\n"), "{text}");
        for name in ["memory", "viewers", "process_"] {
            assert!(!text.contains(name), "{name} in\n{text}");
        }
    }

    fn docs(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
        std::fs::read_to_string(path).expect("the documentation")
    }

    /// The names of all metrics in a text.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("vramscope_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn the_documentation_and_the_dashboard_name_what_there_is() {
        let text = text(numbers()).expect("text");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let told: std::collections::BTreeSet<_> =
            samples.filter_map(|line| line.split(['{', ' ']).next()).filter(|name| !name.is_empty()).collect();
        let documentation = docs("monitoring.md");
        assert_eq!(names(&documentation), told, "docs/monitoring.md names every metric");
        let dashboard = docs("grafana/vramscope.json");
        let parsed: serde_json::Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
        assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() > 10));
        let unknown: Vec<_> = names(&dashboard).into_iter().filter(|name| !told.contains(name)).collect();
        assert!(unknown.is_empty() && names(&dashboard).len() > 20, "in the dashboard alone: {unknown:?}");
    }
}
