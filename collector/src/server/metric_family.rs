//! Metrics as values, for `/metrics` and for exporters.

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A whole number.
    Integer(u64),
    /// Any number.
    Float(f64),
}

/// A value of a metric, with labels that distinguish it from the metric's other values.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: MetricValue,
}

/// A metric with all its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Name of the metric, such as `vramscope_memory_allocated`, without the unit.
    pub name: String,
    /// Description of the metric, for the `# HELP` line.
    pub help: &'static str,
    /// Unit of the metric in words, such as `bytes`; empty for a count.
    pub unit: &'static str,
    /// True for a counter, which only grows; false for a gauge.
    pub is_counter: bool,
    /// Samples of the metric. A metric without samples is not exported.
    pub samples: Vec<MetricSample>,
}
