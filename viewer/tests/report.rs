//! Reports: what they say, that nothing in them lies on anything else, and that they need nothing beside them.
#![cfg(not(target_arch = "wasm32"))]

mod drawn;

use drawn::{Drawing, recording};
use roxmltree::{Document, Node};
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Info, Recording, Sink};
use vramscope_viewer::report::{MAX_DEVICES, Report, ReportError};

const DRAWINGS: [Drawing; 7] = [
    Drawing::Training,
    Drawing::Trouble,
    Drawing::Crowd,
    Drawing::Markup,
    Drawing::TwoGpus,
    Drawing::EndOfTime,
    Drawing::Shared,
];

fn svg(drawing: Drawing, device: Option<u16>) -> String {
    let model = recording(drawing);
    Report::new(model.recording(), "a file's name", device.map(DeviceId)).expect("a device").svg()
}

fn number(node: Node, attribute: &str) -> f64 {
    let text = node.attribute(attribute).unwrap_or_else(|| panic!("no {attribute} in {node:?}"));
    text.parse().unwrap_or_else(|_| panic!("{attribute} is {text:?}"))
}

/// A text, and the room that its letters take: left, top, right, bottom.
fn texts<'d>(document: &'d Document<'d>) -> Vec<(&'d str, [f64; 4])> {
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| {
            let (mut dx, mut dy) = (0.0, 0.0);
            for group in node.ancestors().filter(|node| node.has_tag_name("g")) {
                let at = group.attribute("transform").expect("a group stands somewhere");
                let at = at.trim_start_matches("translate(").trim_end_matches(')');
                let (x, y) = at.split_once(' ').expect("two numbers");
                dx += x.parse::<f64>().expect("a number");
                dy += y.parse::<f64>().expect("a number");
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

#[test]
fn no_text_lies_on_another_or_leaves_the_page() {
    for drawing in DRAWINGS {
        let svg = svg(drawing, None);
        let document = Document::parse(&svg).expect("well-formed XML");
        let view = document.root_element().attribute("viewBox").expect("a size");
        let size: Vec<f64> = view.split(' ').map(|part| part.parse().expect("a number")).collect();
        let texts = texts(&document);
        assert!(texts.len() > 40, "{drawing:?}: {texts:?}");
        for (index, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
            assert!(*left >= 0.0 && *top >= 0.0 && *right <= size[2] && *bottom <= size[3], "{drawing:?}: {text:?}");
            for (other, room) in &texts[index + 1..] {
                let apart = room[0] >= *right || room[2] <= *left || room[1] >= *bottom || room[3] <= *top;
                assert!(apart, "{drawing:?}: {text:?} and {other:?} overlap");
            }
        }
    }
}

#[test]
fn a_report_needs_nothing_beside_it() {
    for drawing in DRAWINGS {
        let svg = svg(drawing, None);
        let document = Document::parse(&svg).expect("well-formed XML");
        let elements = ["svg", "title", "style", "g", "path", "text", "image"];
        for node in document.descendants().filter(Node::is_element) {
            assert!(elements.contains(&node.tag_name().name()), "{drawing:?}: {node:?}");
            for attribute in node.attributes() {
                assert!(!attribute.name().starts_with("on"), "{drawing:?}: {attribute:?}");
                let is_embedded = attribute.value().starts_with("data:image/png;base64,");
                assert!(attribute.name() != "href" || is_embedded, "{drawing:?}: {attribute:?}");
            }
        }
        let style = document.descendants().find(|node| node.has_tag_name("style")).and_then(|node| node.text());
        let urls = style.expect("a style").matches("url(").count();
        assert_eq!(urls, style.map_or(0, |style| style.matches("url(data:font/otf;base64,").count()));
    }
}

#[test]
fn the_same_recording_gives_the_same_bytes() {
    for drawing in [Drawing::Training, Drawing::TwoGpus] {
        assert!(svg(drawing, None) == svg(drawing, None), "{drawing:?}");
        let png = || {
            let model = recording(drawing);
            Report::new(model.recording(), "", None).and_then(|report| report.png()).expect("a picture")
        };
        assert!(png() == png(), "{drawing:?}");
        assert!(png().starts_with(b"\x89PNG\r\n"));
    }
}

#[test]
fn a_report_says_what_is_asked_of_it() {
    let training = svg(Drawing::Training, None);
    let said = |svg: &str, text: &str| {
        let document = Document::parse(svg).expect("well-formed XML");
        texts(&document).iter().any(|(said, _)| said.contains(text))
    };
    for text in [
        "drawn",
        "GPU 0",
        "peak allocated",
        "peak reserved",
        "fragmentation at the peak",
        "largest free block",
        "inactive split",
        "rounding",
        "out of memory",
        "Memory over time",
        "Fragmentation over time",
        "Segments at the peak",
        "Largest sites",
        "model.py:12 forward",
        "allocated peak",
        "reserved peak",
        "step 1",
    ] {
        assert!(said(&training, text), "no {text:?}");
    }
    let trouble = svg(Drawing::Trouble, None);
    assert!(said(&trouble, "OOM") && said(&trouble, "lost"));
    let both = svg(Drawing::TwoGpus, None);
    assert!(said(&both, "GPU 0") && said(&both, "GPU 1"));
    let one = svg(Drawing::TwoGpus, Some(1));
    assert!(!said(&one, "GPU 0") && said(&one, "GPU 1"));
}

#[test]
fn names_are_text_and_nothing_else() {
    let svg = svg(Drawing::Markup, None);
    let document = Document::parse(&svg).expect("well-formed XML");
    assert!(texts(&document).iter().any(|(text, _)| text.contains('<')), "the names are in it");
    assert_eq!(svg.matches("<script").count() + svg.matches("<img").count(), 0);
}

#[test]
fn a_report_is_not_of_devices_without_end() {
    let of = |count: usize| {
        let mut encoder = Encoder::new(&Info::default());
        for device in 0..count as u16 {
            let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
            encoder.event(&Event { device: DeviceId(device), time_ns: u64::from(device), kind });
        }
        let mut recording = Recording::new();
        encoder.flush();
        encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a recording"));
        recording
    };
    assert_eq!(Report::new(&of(MAX_DEVICES), "", None).err(), None);
    let too_many = of(MAX_DEVICES + 1);
    assert_eq!(Report::new(&too_many, "", None).err(), Some(ReportError::TooMany(MAX_DEVICES + 1)));
    assert_eq!(Report::new(&too_many, "", Some(DeviceId(7))).err(), None);
}

#[test]
fn there_must_be_something_to_report_on() {
    let refused = |recording: &Recording, device| Report::new(recording, "", device).err();
    assert_eq!(refused(&Recording::new(), None), Some(ReportError::NoDevice(None)));
    let model = recording(Drawing::Training);
    assert_eq!(refused(model.recording(), Some(DeviceId(7))), Some(ReportError::NoDevice(Some(DeviceId(7)))));
}
