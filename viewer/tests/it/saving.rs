//! Saving pictures, copying the details, and links to files.

use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::command::Command;
use vramscope_viewer::protocol::{FrameRequest, PageUpdate, Screen, Surface};
use vramscope_viewer::saved_picture::PictureFormat;
use vramscope_viewer::ui::{Attribute, Element, Node, Tag};

use crate::testing::samples::{Sample, bytes};
use crate::testing::{command, load};

/// Opens a sample with pictures of a common size.
fn open(sample: Sample) -> Session {
    let mut session = Session::default();
    session.model.show("drawn.vram.gz", load("drawn.vram", &bytes(sample))).expect("a readable recording");
    while session.work(1 << 20).expect("a readable recording") {}
    run(&mut session, &[]);
    session
}

/// Runs commands in a frame; returns the frame and what was reported.
fn run(session: &mut Session, commands: &[&str]) -> (PageUpdate, SessionReport) {
    let screen = Screen { sizes: [(900, 300), (600, 400), (600, 400)], scale: 1.0, is_dark: false };
    let actions = commands.iter().map(command).collect();
    let request = FrameRequest { screen: Some(screen), actions, ..FrameRequest::default() };
    let mut report = SessionReport::default();
    let frame = session.frame(&request, &PageFacts::default(), &mut report);
    (frame, report)
}

/// Returns all links below nodes: text and address.
fn links(nodes: &[Node]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for node in nodes {
        let Node::Element(element) = node else { continue };
        let address = |one: &Element| {
            one.attributes.iter().find(|(name, _)| *name == Attribute::Href).map(|(_, value)| value.clone())
        };
        if element.tag == Tag::A {
            found.push((element.text_content(), address(element).expect("a link has an address")));
        }
        found.extend(links(&element.children));
    }
    found
}

#[test]
fn pictures_have_name_title_and_legend() {
    let mut session = open(Sample::Training);
    let _ = run(&mut session, &["split"]);
    let check = |session: &mut Session, argument: &str, name: &str, title: &str, surface: Surface| {
        let (_, report) = run(session, &["seek 40", &format!("save-picture {argument}")]);
        assert_eq!(report.messages, [""; 0]);
        let (found, picture) = report.picture.expect("a picture");
        assert_eq!((found, picture.name.as_str(), picture.texts[0].text.as_str()), (surface, name, title));
        assert!(picture.texts[1].text.starts_with("event 40 of "), "{}", picture.texts[1].text);
        assert!(!picture.swatches.is_empty());
        let (width, height) = if surface == Surface::Timeline { (900, 300) } else { (600, 400) };
        assert_eq!(picture.picture_size, (width, height));
        picture
    };
    let device = ("drawn device event 40.png", "drawn.vram.gz: Device");
    let picture = check(&mut session, "png device", device.0, device.1, Surface::Left);
    let texts: Vec<&str> = picture.texts.iter().map(|text| text.text.as_str()).collect();
    assert!(texts.contains(&"parameter 8.11 MiB"), "{texts:?}");
    run(&mut session, &["view fragmentation"]);
    let name = "drawn fragmentation event 40.svg";
    let picture = check(&mut session, "svg", name, "drawn.vram.gz: Fragmentation", Surface::Right);
    assert_eq!(picture.format, PictureFormat::Svg);
    let name = "drawn timeline event 40.png";
    check(&mut session, "png timeline", name, "drawn.vram.gz: Timeline", Surface::Timeline);
    run(&mut session, &["stack category"]);
    check(&mut session, "png timeline", name, "drawn.vram.gz: Timeline", Surface::Timeline);
}

#[test]
fn views_without_a_picture_say_so() {
    let mut session = open(Sample::Training);
    for (command, message) in [
        ("save-picture png sites", "Who holds it has no picture to save: copy its table instead"),
        ("save-picture png flame", "Flame graph has no picture to save: copy its table instead"),
        ("save-picture png nothing", "there is no view called \"nothing\""),
    ] {
        let (_, report) = run(&mut session, &[command]);
        assert_eq!(report.messages, [message]);
        assert!(report.picture.is_none());
    }
}

#[test]
fn details_and_stack_are_copied_as_text() {
    let mut session = open(Sample::Training);
    let (_, report) = run(&mut session, &["copy-stack"]);
    assert_eq!(report.messages, ["the details show no call stack: select an allocation first"]);
    run(&mut session, &["select 1"]);
    let (_, report) = run(&mut session, &["copy-details"]);
    let text = report.clipboard.expect("a text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Allocated block");
    assert!(lines.iter().any(|line| line.starts_with("address\t0x7f")), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("allocated by\tevent ")), "{text}");
    assert!(!text.contains("Esc") && !text.contains("Go to"), "{text}");
    let (_, report) = run(&mut session, &["copy-stack"]);
    let stack = report.clipboard.expect("a text");
    assert!(!stack.is_empty() && !stack.starts_with(' '), "{stack}");
    for frame in stack.lines() {
        assert!(text.contains(frame), "{frame:?} is missing in {text}");
    }
}

#[test]
fn frames_are_links_with_a_template() {
    let mut session = open(Sample::Training);
    let (frame, _) = run(&mut session, &["select 1", "pane 1 sites"]);
    assert_eq!(links(&frame.details.expect("details")), []);
    session.resend();
    let (frame, report) = run(&mut session, &["editor-template vscode://file/{file}:{line}"]);
    assert_eq!(report.messages, [""; 0]);
    let found = links(&frame.details.expect("the frames have changed"));
    assert!(!found.is_empty());
    for (text, address) in &found {
        let (file, line) = text.rsplit_once(':').expect("file and line");
        assert_eq!(*address, format!("vscode://file/{}:{line}", file.trim_start_matches('/')));
    }
    let [_, Some(sites)] = frame.panes else { panic!("the rows have changed") };
    let rows = links(&sites.content);
    assert!(!rows.is_empty() && rows.iter().all(|(_, address)| address.starts_with("vscode://file/")), "{rows:?}");
    assert!(Command::parse("editor-template javascript://{file}").is_err(), "an unsafe template is refused");
    let (frame, _) = run(&mut session, &["editor-template"]);
    assert_eq!(links(&frame.details.expect("the frames have changed")), []);
}
