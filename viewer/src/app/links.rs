//! Converts between the view of a session and a [`Link`].

use vramscope_trace::FormatError;

use crate::link::{Link, PaneLink};
use crate::model::CompareWith;
use crate::view::Topic;
use crate::views::ViewId;

use super::panes::Panes;
use super::session::Session;
#[cfg(doc)]
use crate::view::View;

impl Session {
    /// Returns the link to the current view.
    #[must_use]
    pub fn link(&mut self) -> Link {
        let is_compared = self.panes.surface_of(ViewId::about(Topic::Comparison)).is_some();
        let compared = self.model.comparison.chosen.filter(|_| is_compared);
        let mut link = Link {
            panes: self.pane_links(),
            group: self.named_group(),
            step_span: self.analysis.step_span.clone(),
            compare_with: compared.map(CompareWith::name),
            ..self.model.link()
        };
        self.views.iter().for_each(|view| view.add_to_link(&mut link));
        link
    }

    /// Returns the panes as parts of a link; empty if they equal the panes of a new session.
    fn pane_links(&mut self) -> Vec<PaneLink> {
        let pane = |view: ViewId| self.views.get_mut(view).options().pane_link(view.name());
        let panes: Vec<PaneLink> = self.panes.views().into_iter().flatten().map(pane).collect();
        let is_default = self.panes.has_defaults() && panes.iter().all(PaneLink::has_defaults);
        if is_default { Vec::new() } else { panes }
    }

    /// Goes to the view of a link; parts that it omits stay unchanged, apart from the options of
    /// the views that it names. If a live recording has not reached the link's moment, it is
    /// followed until it has.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_link(&mut self, link: &Link) -> Result<(), FormatError> {
        self.view_history.replaced();
        self.show_panes(&link.panes);
        self.select_linked_group(link.group.clone());
        if link.step_span.is_some() {
            self.analysis.step_span.clone_from(&link.step_span);
        }
        if let Some(with) = link.compare_with.as_deref().and_then(CompareWith::from_name) {
            self.model.comparison.chosen = Some(with);
        }
        self.open_link(link, false);
        self.model.go_to_link(link)
    }

    /// Sets what views state in links apart from panes; see [`View::open_link`].
    fn open_link(&mut self, link: &Link, is_complete: bool) {
        self.notice_recording();
        if link.device.is_some_and(|device| device != self.model.device()) {
            self.views.iter_mut().for_each(|view| view.device_changed());
        }
        self.views.iter_mut().for_each(|view| view.open_link(link, is_complete));
        self.model.moment_changed();
    }

    /// Goes to the view of a link that describes it completely, as that of an earlier frame does:
    /// parts that the link omits get their defaults.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub(super) fn restore(&mut self, link: &Link) -> Result<(), FormatError> {
        self.input.cancel();
        self.analysis.event_search = None;
        if link.panes.is_empty() {
            self.panes = Panes::default();
            for view in self.panes.views().into_iter().flatten() {
                self.set_options(&PaneLink::new(view.name()));
            }
        }
        self.show_panes(&link.panes);
        self.analysis.step_span.clone_from(&link.step_span);
        self.model.comparison.chosen = link.compare_with.as_deref().and_then(CompareWith::from_name);
        self.details.pending_group = None;
        self.open_link(link, true);
        self.model.restore(link)?;
        self.select_linked_group(link.group.clone());
        Ok(())
    }

    /// Goes back or forward to a view, given as a link that the page has had before. The user can
    /// undo it.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_back_to(&mut self, link: &Link) -> Result<(), FormatError> {
        self.view_history.replaced();
        self.restore(link)
    }

    /// Shows the views of a link with their options.
    fn show_panes(&mut self, panes: &[PaneLink]) {
        self.panes.set_names(panes.iter().map(|pane| pane.view.as_str()));
        for pane in panes {
            self.set_options(pane);
        }
    }

    /// Sets the options of a view to those of a link's pane; unknown views are ignored.
    fn set_options(&mut self, pane: &PaneLink) {
        let Ok(view) = ViewId::named(&pane.view) else { return };
        let view = self.views.get_mut(view);
        if view.options().open(pane) {
            view.rows_changed();
        }
    }
}
