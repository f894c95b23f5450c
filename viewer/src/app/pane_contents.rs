//! The contents of the panes below the timeline.

use vramscope_insight::evidence::Evidence;

use super::parts::SentPanes;
use super::session::Session;
use crate::command::{Command, Field};
use crate::model::Origin;
use crate::protocol::{PageUpdate, PaneContent, Surface};
use crate::row_order::keep_row_order;
use crate::saved_picture::PictureFormat;
use crate::ui::{Attribute, Element, Node, Tag};
use crate::view::{ViewContent, select};
use crate::views::ViewId;

/// Width of a pane below which one of three or more controls of its view is in its row, in units
/// (CSS pixels at the default font size).
const NARROW_WIDTH: f32 = 620.0;
/// Width of a pane below which all controls of its view are in a menu, in units.
const PHONE_WIDTH: f32 = 420.0;
/// About the panes' share of the timeline's width; the details have the rest.
const PANES_SHARE: f32 = 0.75;

impl Session {
    /// Computes the contents of the panes and adds changed contents to `update`.
    pub(super) fn update_panes(&mut self, update: &mut PageUpdate) {
        for (pane, view) in self.panes.views().into_iter().enumerate() {
            let mut content = view.map(|view| self.pane_content(pane, view)).unwrap_or_default();
            if let Some((before, lit)) = self.sent.contents[pane].as_ref().zip(self.lit_row()) {
                keep_row_order(&mut content.content, &before.content, &lit);
            }
            if self.sent.contents[pane].as_ref() != Some(&content) {
                self.sent.contents[pane] = Some(content.clone());
                update.panes[pane] = Some(content);
            }
        }
    }

    /// Returns the texts of the memory of the element under the pointer, whose table keeps the
    /// order of its rows; `None` unless a live program is followed.
    fn lit_row(&self) -> Option<Vec<String>> {
        let lights = &self.details.lights;
        let is_live = self.model.is_following() && self.model.origin() == Origin::Live;
        let is_row = is_live && lights.source.is_none() && !lights.hovered.is_empty();
        is_row.then(|| lights.hovered.iter().map(ToString::to_string).collect())
    }

    /// Makes the next frame send all contents, because the page has lost them.
    pub fn resend(&mut self) {
        self.sent = SentPanes::default();
        self.timeline.sent.clear();
        self.details.next_texts_ms = 0.0;
        self.model.everything_changed();
    }

    /// Returns the content of a pane that shows `view`.
    fn pane_content(&mut self, pane: usize, view: ViewId) -> PaneContent {
        let info = view.info();
        if info.needs_history || self.views.get(view).wants_history() {
            self.want_history();
        }
        let shown = self.view_content(view);
        let has_picture = info.picture_label.is_some() && !shown.hides_picture;
        let mut controls: Vec<Node> = vec![view_choice(pane, view).into()];
        let mut of_view = shown.controls;
        let rest = of_view.split_off(self.controls_in_row(pane, of_view.len()));
        controls.extend(of_view);
        controls.extend((!rest.is_empty()).then(|| more_menu(rest).into()));
        let copy = shown.table.map(|_| copy_button(view));
        if has_picture {
            controls.push(export_menu(view, copy).into());
        } else {
            controls.extend(copy.map(Into::into));
        }
        PaneContent {
            view: info.name.to_owned(),
            has_picture,
            picture_label: shown.picture_text.or(info.picture_label.map(str::to_owned)).unwrap_or_default(),
            controls,
            legend: shown.legend,
            content: shown.content,
        }
    }

    /// Returns how many of a view's `count` controls a pane shows in its row; the others are in a
    /// menu.
    fn controls_in_row(&self, pane: usize, count: usize) -> usize {
        let width = |surface: Surface| self.display.size(surface).0 as f32 / self.display.screen.scale;
        let of_picture = width(Surface::PANES[pane]);
        let of_pane = width(Surface::Timeline) * PANES_SHARE / self.panes.count() as f32;
        match if of_picture > 0.0 { of_picture } else { of_pane } {
            // Nothing is measured yet.
            0.0 => count,
            width if width < PHONE_WIDTH => 0,
            width if width < NARROW_WIDTH && count > 2 => 1,
            _ => count,
        }
    }

    /// Returns the content of a view beside its picture.
    pub(super) fn view_content(&mut self, view: ViewId) -> ViewContent {
        let content = self.with_view(view, |view, context, shared| view.content(context, shared));
        let Some(content) = content else { return ViewContent::message("Loading the view…") };
        self.or_unknown(view, content)
    }

    /// Returns the content of a view; for a view that is about events, that it is unknown if the
    /// recording has no events.
    pub(super) fn or_unknown(&self, view: ViewId, content: ViewContent) -> ViewContent {
        let recording = self.model.recording();
        let has_history = recording.end_event() > recording.first_event() || recording.devices().next().is_none();
        if has_history || !view.info().is_about_events {
            return content;
        }
        let (missing, how_to_record) = (Evidence::History.missing(), Evidence::History.how_to_record());
        let message = format!("Unknown: this recording has {missing}. {how_to_record}");
        // Scripts get the empty table.
        ViewContent { table: content.table, ..ViewContent::message(message) }
    }
}

/// Returns the button that copies the table of a view.
fn copy_button(view: ViewId) -> Element {
    Element::button("Copy", Command::CopyTable(Some(view.name().into())))
        .with_class("copy")
        .with(Attribute::Key, "copy")
        .with(Attribute::Title, "Copy the table as text with tab-separated columns")
}

/// Returns the menu with the controls that have no room in a pane's row.
fn more_menu(controls: Vec<Node>) -> Element {
    let summary = Element::text(Tag::Summary, "More ▾").with(Attribute::Title, "More options of the view");
    let mut list = Element::new(Tag::Div);
    list.children = controls;
    Element::new(Tag::Details)
        .with_class("export more")
        .with(Attribute::Key, "more")
        .with_child(summary)
        .with_child(list)
}

/// Returns the menu that saves the picture of a view as a file, or copies its table by the button
/// `copy`.
fn export_menu(view: ViewId, copy: Option<Element>) -> Element {
    let save = |format: PictureFormat| {
        let text = match format {
            PictureFormat::Clipboard => "Copy as picture".to_owned(),
            _ => format!("Save picture as {}", format.extension().to_ascii_uppercase()),
        };
        Element::button(text, Command::SavePicture(format, Some(view.name().into())))
            .with(Attribute::Key, format.name())
    };
    let copy = copy.map(|copy| Element { children: vec!["Copy table".into()], ..copy });
    let summary = Element::text(Tag::Summary, "Export ▾").with(Attribute::Title, "Copy the table or save the picture");
    let formats = [PictureFormat::Clipboard, PictureFormat::Png, PictureFormat::Svg];
    Element::new(Tag::Details)
        .with_class("export")
        .with(Attribute::Key, "export")
        .with_child(summary)
        .with_child(Element::new(Tag::Div).with_children(copy).with_children(formats.map(save)))
}

/// Returns the field that chooses a pane's view.
fn view_choice(pane: usize, view: ViewId) -> Element {
    let label = if pane == 0 { "View of the left pane" } else { "View of the right pane" };
    let views = ViewId::all().map(|view| (view.name(), view.info().title));
    select(label, Field::Pane(pane), view.name(), views).with(Attribute::Key, "view")
}
