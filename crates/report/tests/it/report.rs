//! Reports: their content, text that does not overlap, and no external references.

use roxmltree::{Document, Node};
use vramscope_report::{ComparisonReport, MAX_DEVICES, RecordingReport, ReportError};
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Sink};

use crate::testing::golden_file::check;
use crate::testing::samples::{Sample, open_sample};

const SAMPLES: [Sample; 7] = [
    Sample::Training,
    Sample::Trouble,
    Sample::Crowd,
    Sample::Markup,
    Sample::TwoGpus,
    Sample::EndOfTime,
    Sample::Shared,
];

fn svg(sample: Sample, device: Option<u16>) -> String {
    let model = open_sample(sample);
    RecordingReport::new(model.recording(), "a file's name", device.map(DeviceId))
        .expect("the recording has events")
        .svg()
}

fn number(node: Node, attribute: &str) -> f64 {
    let text = node.attribute(attribute).unwrap_or_else(|| panic!("no {attribute} in {node:?}"));
    text.parse().unwrap_or_else(|_| panic!("{attribute} is {text:?}"))
}

/// Returns each text with its bounds: left, top, right, bottom.
fn texts<'d>(document: &'d Document<'d>) -> Vec<(&'d str, [f64; 4])> {
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| {
            let (mut dx, mut dy) = (0.0, 0.0);
            for group in node.ancestors().filter(|node| node.has_tag_name("g")) {
                let at = group.attribute("transform").expect("every group is translated");
                let at = at.trim_start_matches("translate(").trim_end_matches(')');
                let (x, y) = at.split_once(' ').expect("translate has two numbers");
                dx += x.parse::<f64>().expect("the value is a number");
                dy += y.parse::<f64>().expect("the value is a number");
            }
            let (x, y) = (number(node, "x") + dx, number(node, "y") + dy);
            let (size, width) = (number(node, "font-size"), number(node, "textLength"));
            let classes = node.attribute("class").unwrap_or_default();
            let left = match classes {
                classes if classes.contains('e') => x - width,
                classes if classes.contains('m') => x - width / 2.0,
                _ => x,
            };
            (node.text().unwrap_or_default(), [left, y - size * 0.727, left + width, y])
        })
        .collect()
}

/// Checks that texts do not overlap or leave the picture, and returns their number.
#[track_caller]
fn check_texts(svg: &str) -> usize {
    let document = Document::parse(svg).expect("well-formed XML");
    let view = document.root_element().attribute("viewBox").expect("the document has a viewBox");
    let size: Vec<f64> = view.split(' ').map(|part| part.parse().expect("the value is a number")).collect();
    let texts = texts(&document);
    for (index, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
        assert!(*left >= 0.0 && *top >= 0.0 && *right <= size[2] && *bottom <= size[3], "{text:?}");
        for (other, bounds) in &texts[index + 1..] {
            let apart = bounds[0] >= *right || bounds[2] <= *left || bounds[1] >= *bottom || bounds[3] <= *top;
            assert!(apart, "{text:?} and {other:?} overlap");
        }
    }
    texts.len()
}

/// Returns the comparison of two samples, and its texts.
fn comparison(samples: [Sample; 2]) -> (String, Vec<String>) {
    let models = samples.map(open_sample);
    let [first, second] = models.each_ref().map(|model| model.recording());
    let report = ComparisonReport::new([(first, "first.vram"), (second, "second.vram")], None);
    let svg = report.expect("both have memory").svg();
    let document = Document::parse(&svg).expect("well-formed XML");
    let texts = texts(&document).iter().map(|(text, _)| (*text).to_owned()).collect();
    (svg, texts)
}

#[test]
fn texts_do_not_overlap_or_leave_the_page() {
    for sample in SAMPLES {
        let texts = check_texts(&svg(sample, None));
        assert!(texts > 40, "{sample:?}: {texts}");
    }
}

#[test]
fn comparison_draws_both_recordings_on_one_scale() {
    for samples in [[Sample::Training, Sample::Trouble], [Sample::Crowd, Sample::Markup], [Sample::Training; 2]] {
        let (svg, texts) = comparison(samples);
        check_texts(&svg);
        assert!(svg.len() < 40_000 && !svg.contains("url(") && !svg.contains("href"), "{} bytes", svg.len());
        assert_eq!(svg, comparison(samples).0, "it is reproducible");
        let count = |part: &str| texts.iter().filter(|text| text.contains(part)).count();
        assert_eq!(count("peak: "), 2, "{texts:?}");
        assert_eq!(texts.iter().filter(|text| *text == "0 B").count(), 1, "one scale: {texts:?}");
        assert!(count("reserved") == 3, "a line of the legend: {texts:?}");
    }
    let (_, texts) = comparison([Sample::Training, Sample::Trouble]);
    assert!(texts.iter().any(|text| text.starts_with("step ")), "{texts:?}");
}

#[test]
fn comparison_names_the_recording_without_memory() {
    let model = open_sample(Sample::Training);
    let empty = Recording::new();
    let refused = ComparisonReport::new([(model.recording(), ""), (&empty, "")], None).err();
    assert_eq!(refused, Some((ReportError::NoDevice(None), 1)));
    let refused = ComparisonReport::new([(model.recording(), ""); 2], Some(DeviceId(7))).err();
    assert_eq!(refused, Some((ReportError::NoDevice(Some(DeviceId(7))), 0)));
    let report = ComparisonReport::new([(model.recording(), ""); 2], None).expect("it has memory");
    assert!(report.png().starts_with(b"\x89PNG\r\n"));
}

#[test]
fn report_has_no_external_references() {
    for sample in SAMPLES {
        let svg = svg(sample, None);
        let document = Document::parse(&svg).expect("well-formed XML");
        let elements = ["svg", "title", "style", "g", "path", "text", "image"];
        for node in document.descendants().filter(Node::is_element) {
            assert!(elements.contains(&node.tag_name().name()), "{sample:?}: {node:?}");
            for attribute in node.attributes() {
                assert!(!attribute.name().starts_with("on"), "{sample:?}: {attribute:?}");
                let is_embedded = attribute.value().starts_with("data:image/png;base64,");
                assert!(attribute.name() != "href" || is_embedded, "{sample:?}: {attribute:?}");
            }
        }
        let style = document.descendants().find(|node| node.has_tag_name("style")).and_then(|node| node.text());
        let urls = style.expect("the document has a style").matches("url(").count();
        assert_eq!(urls, style.map_or(0, |style| style.matches("url(data:font/otf;base64,").count()));
    }
}

#[test]
fn report_is_reproducible() {
    for sample in [Sample::Training, Sample::TwoGpus] {
        assert!(svg(sample, None) == svg(sample, None), "{sample:?}");
        let png = || {
            let model = open_sample(sample);
            RecordingReport::new(model.recording(), "", None).and_then(|report| report.png()).expect("a valid picture")
        };
        assert!(png() == png(), "{sample:?}");
        assert!(png().starts_with(b"\x89PNG\r\n"));
    }
}

#[test]
fn report_contains_its_sections_and_figures() {
    let training = svg(Sample::Training, None);
    let contains = |svg: &str, text: &str| {
        let document = Document::parse(svg).expect("well-formed XML");
        texts(&document).iter().any(|(shown, _)| shown.contains(text))
    };
    for text in [
        "drawn",
        "device 0",
        "peak allocated",
        "peak reserved",
        "fragmentation at the peak",
        "largest free block",
        "inactive split",
        "rounding",
        "out of memory",
        "allocations",
        "more than half not freed",
        "Memory over time",
        "Fragmentation over time",
        "The pool at the peak",
        "Largest sites",
        "model.py:12 forward",
        "allocated peak",
        "reserved peak",
        "step 1",
    ] {
        assert!(contains(&training, text), "no {text:?}");
    }
    let trouble = svg(Sample::Trouble, None);
    assert!(contains(&trouble, "OOM") && contains(&trouble, "lost"));
    assert!(contains(&trouble, "half freed within 1.48 ms"));
    let both = svg(Sample::TwoGpus, None);
    assert!(contains(&both, "device 0") && contains(&both, "device 1"));
    let one = svg(Sample::TwoGpus, Some(1));
    assert!(!contains(&one, "device 0") && contains(&one, "device 1"));
}

#[test]
fn markup_in_names_stays_text() {
    let svg = svg(Sample::Markup, None);
    let document = Document::parse(&svg).expect("well-formed XML");
    assert!(texts(&document).iter().any(|(text, _)| text.contains('<')), "the names are shown");
    assert_eq!(svg.matches("<script").count() + svg.matches("<img").count(), 0);
}

#[test]
fn report_limits_the_number_of_devices() {
    let of = |count: usize| {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        for device in 0..count as u16 {
            let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
            encoder.event(&Event { device: DeviceId(device), time_ns: u64::from(device), kind });
        }
        let mut recording = Recording::new();
        encoder.flush();
        encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
        recording
    };
    assert_eq!(RecordingReport::new(&of(MAX_DEVICES), "", None).err(), None);
    let too_many = of(MAX_DEVICES + 1);
    assert_eq!(RecordingReport::new(&too_many, "", None).err(), Some(ReportError::TooManyDevices(MAX_DEVICES + 1)));
    assert_eq!(RecordingReport::new(&too_many, "", Some(DeviceId(7))).err(), None);
}

#[test]
fn report_without_events_is_refused() {
    let refused = |recording: &Recording, device| RecordingReport::new(recording, "", device).err();
    assert_eq!(refused(&Recording::new(), None), Some(ReportError::NoDevice(None)));
    let model = open_sample(Sample::Training);
    assert_eq!(refused(model.recording(), Some(DeviceId(7))), Some(ReportError::NoDevice(Some(DeviceId(7)))));
}

#[test]
fn reports_match_golden_pictures() {
    for (name, sample) in [("report_training", Sample::Training), ("report_trouble", Sample::Trouble)] {
        let model = open_sample(sample);
        let report = RecordingReport::new(model.recording(), "a file's name", None).expect("the recording has events");
        check(name, &report.bitmap().expect("a valid picture"));
    }
}
