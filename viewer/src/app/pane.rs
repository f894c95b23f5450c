//! The panes below the timeline, and their contents.

use crate::protocol::{PageUpdate, PaneContent};
use crate::ui::{Attribute, Element, Tag};
use crate::view::controls::select;
use crate::views::{self, ViewKind};

use super::core::Session;
use super::parts::SentPanes;

impl Session {
    /// Computes the contents of the panes and adds changed contents to `update`.
    pub(super) fn update_panes(&mut self, update: &mut PageUpdate) {
        for (pane, view) in self.panes.views().into_iter().enumerate() {
            let content = view.map(|view| self.pane_content(pane, view)).unwrap_or_default();
            if self.sent_panes.0[pane].as_ref() != Some(&content) {
                self.sent_panes.0[pane] = Some(content.clone());
                update.panes[pane] = Some(content);
            }
        }
    }

    /// Makes the next frame send all contents, because the page has lost them.
    pub fn resend(&mut self) {
        self.sent_panes = SentPanes::default();
        self.timeline.sent.clear();
        self.model.everything_changed();
    }

    /// Returns the content of a pane that shows `view`.
    fn pane_content(&mut self, pane: usize, view: ViewKind) -> PaneContent {
        let label = view.picture_label();
        let mut content = PaneContent {
            view: view.name().to_owned(),
            has_picture: label.is_some(),
            picture_label: label.unwrap_or_default().to_owned(),
            controls: vec![view_choice(pane, view).into()],
            legend: Vec::new(),
            content: Vec::new(),
        };
        let is_wanted = view == ViewKind::Flame && views::flame::needs_history(self.analysis.options(view));
        if is_wanted || view.needs_history() {
            self.want_history();
        }
        let shown = self.with_context(view, |context, options, caches| views::content(view, context, options, caches));
        content.controls.extend(shown.controls);
        content.legend = shown.legend;
        content.has_picture &= !shown.hides_picture;
        let copy = shown.table.map(|_| copy_button(view));
        if content.has_picture {
            content.controls.push(export_menu(view, copy).into());
        } else {
            content.controls.extend(copy.map(Into::into));
        }
        content.content = shown.content;
        content
    }
}

/// Returns the button that copies the table of a view.
fn copy_button(view: ViewKind) -> Element {
    Element::button("Copy", format!("copy-table {}", view.name()))
        .with_class("copy")
        .with(Attribute::Key, "copy")
        .with(Attribute::Title, "Copy the table as text with tab-separated columns")
}

/// Returns the menu that saves the picture of a view as a file, or copies its table by the button
/// `copy`.
fn export_menu(view: ViewKind, copy: Option<Element>) -> Element {
    let save = |extension: &str| {
        let text = format!("Save picture as {}", extension.to_ascii_uppercase());
        Element::button(text, format!("save-picture {extension} {}", view.name())).with(Attribute::Key, extension)
    };
    let copy = copy.map(|copy| Element { children: vec!["Copy table".into()], ..copy });
    Element::new(Tag::Details)
        .with_class("export")
        .with(Attribute::Key, "export")
        .with_child(
            Element::text(Tag::Summary, "Export ▾").with(Attribute::Title, "Copy the table or save the picture"),
        )
        .with_child(Element::new(Tag::Div).with_children(copy).with_children(["png", "svg"].map(save)))
}

/// Returns the field that chooses a pane's view.
fn view_choice(pane: usize, view: ViewKind) -> Element {
    let label = if pane == 0 { "View of the left pane" } else { "View of the right pane" };
    let views = ViewKind::ALL.map(|view| (view.name(), view.title()));
    select(label, &format!("pane {pane}"), view.name(), views).with(Attribute::Key, "view")
}
