//! Exports a server's metrics to an OpenTelemetry collector, for `serve --otlp`.
//!
//! The metrics are the ones at `/metrics`, sent in the protocol of OpenTelemetry (OTLP) over HTTP.

use std::env;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use reqwest::blocking::Client;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use vramscope_collector::{MetricFamily, MetricSample, MetricValue};

use crate::error::{CommandError, Result};
use crate::terminal;

/// Interval between two exports.
const INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of an export.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The path of the metrics below the collector's address, as OTLP defines it.
const PATH: &str = "v1/metrics";
/// OpenTelemetry's environment variable with additional headers, such as a header with a token:
/// `NAME=VALUE,NAME=VALUE`.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// The media type of a request.
const MEDIA_TYPE: &str = "application/x-protobuf";

/// A running export. Dropping it sends the metrics once more and ends it.
#[derive(Debug)]
pub(crate) struct OtlpExport {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OtlpExport {
    /// Starts to export the metrics that `read` returns.
    pub(crate) fn start(exporter: OtlpExporter, read: impl Fn() -> Vec<MetricFamily> + Send + 'static) -> Result<Self> {
        let (stop, stopped) = channel::<()>();
        let run = move || {
            let mut has_failed = false;
            loop {
                let is_last = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                match exporter.export(read()) {
                    Ok(()) if has_failed => {
                        has_failed = false;
                        terminal::message("metrics are exported again");
                    }
                    Err(reason) if !has_failed => {
                        has_failed = true;
                        terminal::message(format_args!("cannot export metrics: {reason}; trying again"));
                    }
                    Ok(()) | Err(_) => {}
                }
                if is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("vramscope-otlp".into()).spawn(run);
        let thread = thread.map_err(|error| CommandError::new(format_args!("cannot export metrics: {error}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for OtlpExport {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// A client that sends metrics to an OpenTelemetry collector.
#[derive(Debug)]
pub(crate) struct OtlpExporter {
    client: Client,
    url: String,
    headers: HeaderMap,
    start_unix_ns: u64,
}

impl OtlpExporter {
    /// Creates an exporter to the collector at an address such as `http://127.0.0.1:4318`.
    pub(crate) fn new(address: &str) -> Result<Self> {
        if !address.starts_with("http://") && !address.starts_with("https://") {
            return Err(CommandError::new("--otlp needs the address of an OpenTelemetry collector: http://HOST:4318"));
        }
        // Ignore the error: another part of the program may have installed a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(TIMEOUT).build();
        let client = client.map_err(|error| CommandError::new(format_args!("cannot export metrics: {error}")))?;
        let headers = env::var(HEADERS_VARIABLE).unwrap_or_default();
        let headers = parse_headers(&headers).ok_or_else(|| {
            CommandError::new(format_args!("{HEADERS_VARIABLE}: expected NAME=VALUE, separated by commas"))
        })?;
        let url = format!("{}/{PATH}", address.trim_end_matches('/'));
        Ok(Self { client, url, headers, start_unix_ns: now_unix_ns() })
    }

    /// Sends metrics to the collector. The error says why the collector did not accept them.
    fn export(&self, families: Vec<MetricFamily>) -> std::result::Result<(), String> {
        let request = self.request(families, now_unix_ns()).encode_to_vec();
        let post = self.client.post(&self.url).headers(self.headers.clone()).header("Content-Type", MEDIA_TYPE);
        let response = post.body(request).send().map_err(|error| error.without_url().to_string())?;
        if response.status().is_success() {
            Ok(())
        } else {
            Err(format!("the collector answers {}", response.status()))
        }
    }

    /// Returns the request with these metrics.
    fn request(&self, families: Vec<MetricFamily>, time_unix_ns: u64) -> ExportMetricsServiceRequest {
        let metrics = families.into_iter().map(|family| self.metric(family, time_unix_ns)).collect();
        let scope = InstrumentationScope {
            name: "vramscope".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let resource =
            Resource { attributes: vec![attribute("service.name", "vramscope".to_owned())], ..Resource::default() };
        let resource_metrics =
            vec![ResourceMetrics { resource: Some(resource), scope_metrics, ..ResourceMetrics::default() }];
        ExportMetricsServiceRequest { resource_metrics }
    }

    /// Converts a metric. Its name gets a dot, as in OpenTelemetry: `vramscope.memory_allocated`.
    fn metric(&self, family: MetricFamily, time_unix_ns: u64) -> Metric {
        let MetricFamily { name, help, unit, is_counter, samples } = family;
        let data_points = samples.into_iter().map(|MetricSample { labels, value }| NumberDataPoint {
            attributes: labels.into_iter().map(|(name, value)| attribute(name, value)).collect(),
            start_time_unix_nano: if is_counter { self.start_unix_ns } else { 0 },
            time_unix_nano: time_unix_ns,
            value: Some(match value {
                MetricValue::Integer(value) => {
                    number_data_point::Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))
                }
                MetricValue::Float(value) => number_data_point::Value::AsDouble(value),
            }),
            ..NumberDataPoint::default()
        });
        let data_points = data_points.collect();
        let data = match is_counter {
            true => metric::Data::Sum(Sum {
                data_points,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
            false => metric::Data::Gauge(Gauge { data_points }),
        };
        Metric {
            name: name.replacen('_', ".", 1),
            description: help.to_owned(),
            unit: ucum(unit).to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

/// Returns a unit in the Unified Code for Units of Measure, which OpenTelemetry uses: `By` for
/// bytes.
fn ucum(unit: &str) -> &str {
    match unit {
        "bytes" => "By",
        "bytes_per_second" => "By/s",
        "seconds" => "s",
        "" | "ratio" => "1",
        other => other,
    }
}

/// Returns an attribute with a text.
fn attribute(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// Parses `NAME=VALUE,NAME=VALUE`; `None` if it has another form.
fn parse_headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let mut value = HeaderValue::from_str(value.trim()).ok()?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value);
    }
    Some(headers)
}

/// Returns the current time in nanoseconds since 1970.
fn now_unix_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_become_gauges_and_sums() {
        let exporter = OtlpExporter::new("http://127.0.0.1:4318/").expect("a valid address");
        assert_eq!(exporter.url, "http://127.0.0.1:4318/v1/metrics");
        let family = |name: &str, unit, is_counter, value| MetricFamily {
            name: name.to_owned(),
            help: "help",
            unit,
            is_counter,
            samples: vec![MetricSample { labels: vec![("rank", "3".to_owned())], value }],
        };
        let families = vec![
            family("vramscope_rank_lag", "seconds", false, MetricValue::Float(0.5)),
            family("vramscope_events", "", true, MetricValue::Integer(7)),
        ];
        let request = exporter.request(families, 42);
        let bytes = request.encode_to_vec();
        assert_eq!(ExportMetricsServiceRequest::decode(bytes.as_slice()).as_ref(), Ok(&request));
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let shown: Vec<_> = metrics.iter().map(|metric| (metric.name.as_str(), metric.unit.as_str())).collect();
        assert_eq!(shown, [("vramscope.rank_lag", "s"), ("vramscope.events", "1")]);
        let Some(metric::Data::Gauge(gauge)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
        let point = &gauge.data_points[0];
        assert_eq!((point.time_unix_nano, point.start_time_unix_nano), (42, 0));
        assert_eq!(point.value, Some(number_data_point::Value::AsDouble(0.5)));
        assert_eq!(point.attributes, [attribute("rank", "3".to_owned())]);
        let Some(metric::Data::Sum(sum)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        assert!(sum.is_monotonic && sum.data_points[0].start_time_unix_nano > 0);
    }

    #[test]
    fn headers_are_read_and_wrong_addresses_refused() {
        let headers = parse_headers("Authorization=Bearer a=b, x-team = gpu,").expect("valid headers");
        assert_eq!(
            (headers["authorization"].as_bytes(), headers["x-team"].as_bytes()),
            (&b"Bearer a=b"[..], &b"gpu"[..])
        );
        assert!(!format!("{headers:?}").contains("Bearer"));
        assert!(parse_headers("").is_some_and(|headers| headers.is_empty()));
        for text in ["name", "na me=value", "name=va\nlue"] {
            assert!(parse_headers(text).is_none(), "{text:?}");
        }
        assert!(OtlpExporter::new("broker:4318").is_err());
    }
}
