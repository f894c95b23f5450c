//! The views in the panes below the timeline.

use crate::protocol::Surface;
use crate::views::ViewId;

/// The views in the panes below the timeline: one or two, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panes {
    left: ViewId,
    right: Option<ViewId>,
    /// Whether the right pane shows the view that is opened next.
    is_right_active: bool,
}

impl Default for Panes {
    fn default() -> Self {
        let [left, _] = ViewId::first();
        Self { left, right: None, is_right_active: false }
    }
}

impl Panes {
    /// Returns the number of panes.
    pub const fn count(&self) -> u8 {
        if self.right.is_some() { 2 } else { 1 }
    }

    /// Returns the views from left to right.
    pub const fn views(&self) -> [Option<ViewId>; 2] {
        [Some(self.left), self.right]
    }

    /// Returns the picture of the pane that shows `view`; `None` if no pane does.
    pub fn surface_of(&self, view: ViewId) -> Option<Surface> {
        let pane = self.views().iter().position(|shown| *shown == Some(view));
        pane.map(|pane| Surface::PANES[pane])
    }

    /// Shows `view` in the left (0) or right (1) pane. If the other pane shows it, the panes are
    /// swapped.
    pub fn set(&mut self, pane: usize, view: ViewId) {
        let other = if pane == 0 { self.right } else { Some(self.left) };
        if other == Some(view) {
            self.swap();
        } else if pane == 0 {
            self.left = view;
        } else {
            self.right = Some(view);
        }
        self.is_right_active = pane == 1;
    }

    /// Shows `view` unless a pane shows it already: in the pane that was used last.
    pub fn show(&mut self, view: ViewId) {
        match self.surface_of(view) {
            Some(surface) => self.is_right_active = surface == Surface::Right,
            None => self.set(usize::from(self.is_right_active && self.right.is_some()), view),
        }
    }

    /// Returns true if the panes show the views of a new session.
    pub fn has_defaults(&self) -> bool {
        self.views() == Self::default().views()
    }

    /// Shows the views of a link, one or two; names without a view are ignored.
    pub fn set_names<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let mut views = names.into_iter().filter_map(|name| ViewId::named(name).ok());
        let Some(left) = views.next() else { return };
        let right = views.find(|view| *view != left);
        *self = Self { left, right, is_right_active: right.is_some() };
    }

    /// Returns the view of the pane that was used last.
    pub fn active(&self) -> ViewId {
        self.right.filter(|_| self.is_right_active).unwrap_or(self.left)
    }

    /// Exchanges the panes' views.
    pub fn swap(&mut self) {
        if let Some(right) = &mut self.right {
            std::mem::swap(&mut self.left, right);
            self.is_right_active = !self.is_right_active;
        }
    }

    /// Switches between two panes and one; the pane that was used last stays.
    pub fn split(&mut self) {
        if self.right.is_some() {
            self.left = self.active();
            self.right = None;
        } else {
            self.right = ViewId::first().into_iter().find(|view| *view != self.left);
        }
        self.is_right_active = self.right.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the view with a name.
    fn view(name: &str) -> Option<ViewId> {
        ViewId::named(name).ok()
    }

    #[test]
    fn panes_never_show_a_view_twice() {
        let mut panes = Panes::default();
        let [first, second] = ViewId::first();
        assert_eq!(panes.views(), [Some(first), None]);
        panes.split();
        let other = ViewId::all().nth(5).expect("a sixth view");
        panes.set(0, second);
        assert_eq!(panes.views(), [Some(second), Some(first)]);
        panes.show(other);
        assert_eq!(panes.views(), [Some(other), Some(first)]);
        panes.split();
        assert_eq!(panes.views(), [Some(other), None]);
        panes.show(second);
        assert_eq!(panes.views(), [Some(second), None]);
        panes.split();
        assert_eq!(panes.count(), 2);
    }

    #[test]
    fn names_set_the_views() {
        assert!(Panes::default().has_defaults());
        let [first, second] = ViewId::first().map(ViewId::name);
        let check = |names: &[&str], views: [Option<ViewId>; 2]| {
            let mut panes = Panes::default();
            panes.set_names(names.iter().copied());
            assert_eq!(panes.views(), views, "{names:?}");
        };
        check(&[second, first], [view(second), view(first)]);
        check(&[second], [view(second), None]);
        check(&["x", second, second], [view(second), None]);
        check(&[], Panes::default().views());
        check(&["nothing"], Panes::default().views());
    }
}
