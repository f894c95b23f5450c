//! Metrics as values, for `/metrics` and for exporters.

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A whole number.
    Integer(u64),
    /// Any number.
    Float(f64),
}

/// A value of a metric and the labels that tell it from others.
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
    /// Its name, such as `vramscope_memory_allocated`, without the unit.
    pub name: String,
    /// What it is.
    pub help: &'static str,
    /// Its unit in words, such as `bytes`; empty for a count.
    pub unit: &'static str,
    /// True if it only grows.
    pub is_counter: bool,
    /// Its samples. A metric without samples is left out.
    pub samples: Vec<MetricSample>,
}
