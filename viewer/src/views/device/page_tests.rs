//! The device map's controls, legend, pointer and keys; selected groups and allocations; links.

use vramscope_insight::group::GroupBy;
use vramscope_trace::{Allocation, ByteSize, DeviceId, Lifetimes};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::command::Command;
use vramscope_viewer::device_map::{ColorBy, SortBy, View};
use vramscope_viewer::link::Link;
use vramscope_viewer::protocol::{
    Action, FrameRequest, PageUpdate, PaneContent, Pointer, PointerKind, Screen, Surface,
};
use vramscope_viewer::ui::{Attribute, Node, Tag};
use vramscope_viewer::views::device::Device;

use crate::testing::page::{attribute, elements, text};
use crate::testing::samples::{Sample, bytes};
use crate::testing::{command, load, open, view_pictures};

const PANE: (u32, u32) = (700, 320);

/// A session with a sample, the map on the left, and what the page has received.
struct Shown {
    session: Session,
    panes: [PaneContent; 2],
    details: Vec<Node>,
    link: String,
}

impl Shown {
    /// Opens a sample and reads it completely.
    fn new(sample: Sample) -> Self {
        let mut session = Session::default();
        session.model.show("drawn.vram", load("drawn.vram", &bytes(sample))).expect("a readable recording");
        let mut shown = Self { session, panes: Default::default(), details: Vec::new(), link: String::new() };
        let screen = Screen { sizes: [(900, 200), PANE, PANE], scale: 1.0, is_dark: true };
        shown.request(FrameRequest { screen: Some(screen), ..FrameRequest::default() });
        shown.run(&[]);
        shown
    }

    /// Draws a frame and keeps what has changed.
    fn request(&mut self, request: FrameRequest) -> SessionReport {
        let mut report = SessionReport::default();
        let PageUpdate { panes, details, link, .. } = self.session.frame(&request, &PageFacts::default(), &mut report);
        for (known, content) in self.panes.iter_mut().zip(panes) {
            *known = content.unwrap_or_else(|| std::mem::take(known));
        }
        self.details = details.unwrap_or_else(|| std::mem::take(&mut self.details));
        self.link = link;
        report
    }

    /// Applies actions and draws until everything has been read. Returns the messages.
    fn act(&mut self, actions: Vec<Action>) -> Vec<String> {
        let mut report = self.request(FrameRequest { actions, ..FrameRequest::default() });
        while self.session.work(1 << 20).expect("a readable recording") || self.session.model.has_changed() {
            report.messages.extend(self.request(FrameRequest::default()).messages);
        }
        report.messages
    }

    /// Runs commands that must succeed.
    #[track_caller]
    fn run(&mut self, commands: &[&str]) {
        let messages = self.act(commands.iter().map(command).collect());
        assert_eq!(messages, [""; 0], "{commands:?}");
    }

    /// Sends a pointer event on the left picture; `keys` names the held key, or is `touch`.
    fn point(&mut self, x: f64, y: f64, kind: PointerKind, keys: &str) {
        let (shift, ctrl, alt) = (keys == "shift", keys == "ctrl", keys == "alt");
        let pointer = Pointer { surface: Surface::Left, kind, x, y, shift, ctrl, alt, is_touch: keys == "touch" };
        self.act(vec![Action::Pointer(pointer)]);
    }

    fn click(&mut self, x: f64, y: f64) {
        self.point(x, y, PointerKind::Down, "");
        self.point(x, y, PointerKind::Up, "");
    }

    fn pixels(&self) -> Vec<u8> {
        self.session.pixels(Surface::Left).to_vec()
    }

    fn view(&self) -> View {
        self.session.views.of_type::<Device>().expect("a view").map_view()
    }

    /// Returns the property that the colors show.
    fn color(&self) -> ColorBy {
        self.session.views.iter().find_map(|view| view.color_by()).expect("a view with colors")
    }

    /// Returns the texts of the legend's entries.
    fn legend(&self) -> Vec<String> {
        elements(&self.panes[0].legend, Tag::Li).into_iter().map(|item| plain(&item.text_content())).collect()
    }

    fn details_text(&self) -> String {
        text(&self.details)
    }

    /// Returns the rows of the table in the right pane: text, command, and whether it is selected.
    fn rows(&self) -> Vec<(String, String, bool)> {
        let rows = elements(&self.panes[1].content, Tag::Tr).into_iter().filter(|row| row.command.is_some());
        rows.map(|row| {
            let is_selected = attribute(row, Attribute::AriaSelected) == Some("true");
            (plain(&row.text_content()), row.command.clone().unwrap_or_default().0, is_selected)
        })
        .collect()
    }

    fn lifetimes(&self) -> Lifetimes {
        Lifetimes::from_recording(self.session.model.recording()).expect("a readable recording")
    }
}

/// Returns a text without non-breaking spaces.
fn plain(text: &str) -> String {
    text.replace('\u{a0}', " ")
}

/// Returns the chosen values of the fields in a pane's header.
fn chosen(content: &PaneContent) -> Vec<&str> {
    let options = elements(&content.controls, Tag::Option);
    let chosen = options.into_iter().filter(|option| attribute(option, Attribute::Selected).is_some());
    chosen.filter_map(|option| attribute(option, Attribute::Value)).collect()
}

#[test]
fn controls_change_colors_and_order() {
    let mut shown = Shown::new(Sample::Training);
    assert_eq!(chosen(&shown.panes[0]), ["device", "category", "address"], "the category of most blocks is known");
    shown.run(&["color state"]);
    let mut pictures = vec![shown.pixels()];
    for (command, expected) in [
        ("color category", ["device", "category", "address"]),
        ("color", ["device", "site", "address"]),
        ("color-previous", ["device", "category", "address"]),
        ("sort device size", ["device", "category", "size"]),
        ("sort heatmap address", ["device", "category", "address"]),
        ("color age", ["device", "age", "address"]),
    ] {
        shown.run(&[command]);
        assert_eq!(chosen(&shown.panes[0]), expected, "{command}");
        assert_eq!([shown.color().name(), shown.view().sort.name()], expected[1..]);
        pictures.push(shown.pixels());
    }
    assert_eq!(pictures[1], pictures[3], "the same colors give the same picture");
    assert_eq!(pictures[1], pictures[5]);
    assert!(pictures[0] != pictures[1] && pictures[1] != pictures[2] && pictures[5] != pictures[6]);
    for command in ["color x", "mode device x", "sort device x", "group x 1", "group line x"] {
        let parsed = Command::parse(command).map_err(|error| vec![error]);
        assert_eq!(
            parsed.map_or_else(|errors| errors, |one| shown.act(vec![Action::Command(one)])).len(),
            1,
            "{command}"
        );
    }
    // All colorings in turn.
    shown.run(&["color state"]);
    for color_by in ColorBy::ALL.into_iter().skip(1).chain([ColorBy::State]) {
        shown.run(&["color"]);
        assert_eq!(shown.color(), color_by);
    }
}

#[test]
fn legend_counts_the_bytes_of_the_device() {
    let mut shown = Shown::new(Sample::Training);
    shown.run(&["color category", "last"]);
    let names: Vec<String> = shown.legend();
    let (model, mut live) = (&shown.session.model, std::collections::BTreeMap::new());
    for block in model.device_state().blocks() {
        let category = model.recording().definitions().site(block.site).category;
        *live.entry(category.name()).or_insert(0) += block.size;
    }
    assert!(live.len() > 1);
    for (name, bytes) in &live {
        let expected = format!("{name} {}", ByteSize(*bytes));
        assert!(names.contains(&expected), "{expected} is missing in {names:?}");
    }
    let classes = |shown: &Shown| {
        let samples = elements(&shown.panes[0].legend, Tag::I);
        samples.into_iter().map(|sample| sample.class.to_string()).collect::<Vec<_>>()
    };
    assert!(classes(&shown).contains(&"texture texture-vertical".to_owned()), "states of optimizers have strokes");
    assert!(classes(&shown).contains(&"texture texture-rising".to_owned()), "whole free segments are hatched");
    shown.run(&["color state"]);
    assert!(shown.legend()[0].starts_with("allocated"), "{:?}", shown.legend());
    let mut crowd = Shown::new(Sample::Crowd);
    assert_eq!(crowd.color(), ColorBy::Size, "nothing is known of the blocks but their sizes");
    crowd.run(&["color category"]);
    assert!(crowd.legend()[0].starts_with("unknown"), "{:?}", crowd.legend());
    crowd.run(&["pane 0 events"]);
    assert!(!crowd.legend().iter().any(|entry| entry.contains("free")), "another view has another legend");
}

#[test]
fn selected_group_is_highlighted_until_it_is_cleared() {
    let mut shown = Shown::new(Sample::Training);
    shown.run(&["split"]);
    let plain = shown.pixels();
    for by in [GroupBy::Line, GroupBy::Category, GroupBy::Stream, GroupBy::Size, GroupBy::Module] {
        shown.run(&[&format!("by sites {}", by.name())]);
        let (_, command, _) = shown.rows().first().cloned().expect("a group");
        shown.run(&[&command]);
        let selected: Vec<String> =
            shown.rows().into_iter().filter(|(.., is_selected)| *is_selected).map(|(_, command, _)| command).collect();
        assert_eq!(selected, std::slice::from_ref(&command));
        assert_eq!(shown.session.model.selected_group().map(|(known, _)| known), Some(by));
        let is_everything = shown.rows().len() == 1;
        assert!(shown.pixels() != plain, "at least free space is dimmed; everything: {is_everything}");
        shown.run(&[&command]);
        assert_eq!(shown.session.model.selected_group(), None, "the second click clears it");
        assert!(shown.pixels() == plain);
        let address = shown.session.model.device_state().blocks().next().map(|block| block.address);
        shown.session.model.select(address);
        shown.run(&[&command, "deselect"]);
        assert_eq!(shown.session.model.selection(), None);
        assert!(shown.session.model.selected_group().is_some(), "the selection is cleared first");
        shown.run(&["deselect"]);
        assert!(shown.session.model.selected_group().is_none() && shown.pixels() == plain);
    }
}

#[test]
fn size_is_placed_and_outlined() {
    let mut shown = Shown::new(Sample::Training);
    let plain = shown.pixels();
    shown.run(&["filter device 1MiB"]);
    let content = text(&shown.panes[0].content);
    assert!(content.contains("1 MiB would"), "{content}");
    let mut segments = Shown::new(Sample::Training);
    segments.run(&["pane 1 segments", "filter segments 1MiB"]);
    let other = text(&segments.panes[1].content);
    assert!(other.starts_with(&content), "both views say so: {other}");
    let is_outlined = shown.pixels() != plain;
    assert_eq!(is_outlined, content.contains("0x") || content.contains("In the way"), "{content}");
    shown.run(&["filter device 100GiB"]);
    assert!(text(&shown.panes[0].content).contains("100 GiB"));
    shown.run(&["filter device 5 apples"]);
    assert!(shown.pixels() == plain, "{}", text(&shown.panes[0].content));
    shown.run(&["filter device "]);
    assert!(shown.panes[0].content.is_empty() && shown.pixels() == plain);
}

#[test]
fn pointer_zooms_scrolls_and_selects() {
    let mut shown = Shown::new(Sample::Crowd);
    assert_eq!(shown.view(), View::default());
    shown.point(300.0, 150.0, PointerKind::Wheel(0.0, -200.0), "");
    let zoomed = shown.view();
    assert!(zoomed.zoom.is_some_and(|zoom| zoom > 1.5), "{zoomed:?}");
    for (keys, wheel) in [("alt", PointerKind::Wheel(0.0, 30.0)), ("shift", PointerKind::Wheel(30.0, 0.0))] {
        let before = shown.view();
        shown.point(300.0, 150.0, wheel, keys);
        assert_eq!(shown.view(), View { scroll: before.scroll + 30, ..before }, "{keys}");
    }
    shown.point(300.0, 150.0, PointerKind::Wheel(0.0, -9000.0), "alt");
    assert_eq!(shown.view().scroll, 0, "the view is within its bounds");
    for keys in ["", "touch"] {
        shown.point(300.0, 150.0, PointerKind::Down, keys);
        shown.point(280.0, 120.0, PointerKind::Move, keys);
        shown.point(260.0, 110.0, PointerKind::Move, keys);
        shown.point(260.0, 110.0, PointerKind::Up, keys);
    }
    let after = shown.view();
    assert_eq!(after.scroll, 80);
    assert_eq!(shown.session.model.selection(), None, "dragging selects nothing");
    shown.point(300.0, 150.0, PointerKind::Pinch(2.0), "touch");
    let factor = shown.view().zoom.zip(after.zoom).map_or(0.0, |(pinched, before)| pinched / before);
    assert!((factor - 2.0).abs() < 1e-6, "{factor}");
    shown.point(300.0, 150.0, PointerKind::Pinch(1e9), "touch");
    assert!(shown.view().zoom.is_some_and(|zoom| zoom <= View::MAX_ZOOM));
    shown.point(300.0, 150.0, PointerKind::DoubleClick, "");
    assert_eq!(shown.view(), View::default());
    shown.click(300.0, 150.0);
    let selected = shown.session.model.selected().expect("a block or free space");
    assert!(shown.session.model.device_state().segments().any(|segment| segment.address == selected.segment.address));
    shown.click(300.0, 150.0);
    assert_eq!(shown.session.model.selection(), None);
}

#[test]
fn keys_zoom_at_the_selection() {
    let mut shown = Shown::new(Sample::Training);
    let block = *shown.session.model.device_state().blocks().last().expect("a block");
    shown.session.model.select(Some(block.address));
    shown.run(&["enlarge", "enlarge"]);
    assert!(shown.view().zoom.is_some_and(|zoom| zoom > 2.0), "{:?}", shown.view());
    shown.run(&["reduce"; 12]);
    assert!(shown.view().zoom.is_some_and(|zoom| zoom <= 1.0), "{:?}", shown.view());
    shown.run(&["enlarge", "fit-picture"]);
    assert_eq!(shown.view(), View::default());
}

/// Returns an allocation and a later one at the same address, with a moment at which it is live.
fn reused(shown: &Shown) -> (Allocation, Allocation) {
    let lifetimes = shown.lifetimes();
    let device = lifetimes.device(DeviceId(0)).expect("a device");
    let freed = device.iter().filter(|one| one.active_until.is_some());
    let later = |one: &Allocation| {
        device.iter().find(|other| other.address == one.address && other.first_moment > one.first_moment)
    };
    freed.filter_map(|one| later(&one).map(|later| (one, later))).next().expect("an address is used twice")
}

#[test]
fn selection_follows_the_allocation() {
    let mut shown = Shown::new(Sample::Training);
    let (one, later) = reused(&shown);
    shown.run(&[&format!("seek {}", one.first_moment)]);
    shown.session.model.select(Some(one.address));
    shown.run(&[]);
    let text = shown.details_text();
    assert!(text.starts_with("Allocated block selected"), "{text}");
    let (allocated_at, freed_at) = (one.first_moment, one.allocated_until.expect("it is freed"));
    for part in [format!("allocated by event {allocated_at}"), format!("freed by event {freed_at}")] {
        assert!(text.contains(&part), "{part} is missing in {text}");
    }
    let links = |shown: &Shown| {
        let buttons = elements(&shown.details, Tag::Button);
        buttons.into_iter().filter_map(|button| button.command.clone()).collect::<Vec<_>>()
    };
    for command in [format!("seek {allocated_at}"), format!("seek {freed_at}"), "address-uses".to_owned()] {
        assert!(links(&shown).iter().any(|link| **link == *command), "{command}");
    }
    // At a moment of the later allocation, the selected one is not live.
    shown.run(&[&format!("seek {}", later.first_moment)]);
    let at_later = shown.pixels();
    let text = shown.details_text();
    assert!(text.starts_with("Selected allocation (not live at this moment)"), "{text}");
    for part in [
        format!("allocated by event {allocated_at}"),
        format!("freed by event {freed_at}"),
        "lifetime".to_owned(),
        "state freed".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} is missing in {text}");
    }
    assert!(links(&shown).iter().any(|link| **link == format!("seek {freed_at}")));
    assert_eq!(shown.session.model.selected(), None);
    shown.run(&["deselect"]);
    assert!(shown.pixels() == at_later, "the other block was not outlined");
    // Before its allocation.
    shown.session.model.select_allocation(one.address, one.first_moment);
    shown.run(&[&format!("seek {}", one.first_moment - 1)]);
    assert!(shown.details_text().contains("state not allocated yet"), "{}", shown.details_text());
    shown.run(&[&format!("seek {allocated_at}")]);
    assert!(shown.session.model.selected().is_some_and(|hit| hit.block.is_some()));
}

#[test]
fn links_restore_the_look_the_panes_and_the_selection() {
    let mut shown = Shown::new(Sample::Training);
    let (one, later) = reused(&shown);
    shown.run(&["color site", "sort device free", "pane 0 events", "pane 1 heatmap"]);
    shown.run(&["enlarge", "by sites stream", "pane 0 sites"]);
    shown.run(&[
        &format!("select-allocation {:#x} {}", one.address, one.first_moment),
        &format!("seek {}", later.first_moment),
    ]);
    let group = elements(&shown.panes[0].content, Tag::Tr).into_iter().find_map(|row| row.command.clone());
    shown.run(&[&group.expect("a group").0, "pane 0 events"]);
    let link = shown.link.clone();
    for part in ["color=site", "sort=free", "zoom=", "panes=events,device", "group=stream:"] {
        assert!(link.contains(part), "{part} is missing in {link}");
    }
    assert!(link.contains(&format!("select={:#x}&since={}", one.address, one.first_moment)), "{link}");
    let mut other = Shown::new(Sample::Training);
    other.session.go_to_link(&Link::parse(&link)).expect("a loaded moment");
    other.run(&[]);
    assert_eq!(other.link, link);
    assert_eq!((other.color(), other.view().sort), (ColorBy::Site, SortBy::FreeShare));
    let (model, restored) = (&shown.session.model, &other.session.model);
    assert_eq!(restored.selected_group().map(|(by, _)| by), Some(GroupBy::Stream));
    assert_eq!((restored.selection(), restored.selected_since()), (model.selection(), model.selected_since()));
    assert_eq!(other.session.panes.views(), shown.session.panes.views());
    other.session.go_to_link(&Link::parse("#panes=nothing&color=nothing&group=line:nothing")).expect("a loaded moment");
    other.run(&[]);
    assert_eq!(other.session.panes.views(), shown.session.panes.views(), "unknown values are ignored");
    assert_eq!(other.color(), ColorBy::Site);
    // A link without `since` selects what is live at its moment.
    let old = format!("#select={:#x}&event={}", later.address, later.first_moment);
    other.session.go_to_link(&Link::parse(&old)).expect("a loaded moment");
    assert_eq!(other.session.model.selected_since(), Some(later.first_moment));
}

#[test]
fn free_space_is_that_of_the_moment_and_device() {
    let mut shown = Shown::new(Sample::TwoGpus);
    let mut random = fastrand::Rng::with_seed(5);
    let end = shown.session.model.recording().end_event();
    for _ in 0..50 {
        shown.run(&[&format!("seek {}", random.u64(..=end)), &format!("device {}", random.u8(..2))]);
        let model = &shown.session.model;
        assert_eq!(model.free_memory().space, model.device_state().free_space());
        assert_eq!(model.free_memory().space, model.device_state().free_space());
    }
}

#[test]
fn device_looks_as_before() {
    let mut session = open("tour/oom_frag.vram");
    let actions = [command("pane 0 device"), command("seek 700")];
    view_pictures::check(&mut session, &actions, Surface::Left, "views/device", "device");
}
