//! The sizes of timeline, panes and details panel, as the user has set them.

use crate::named::named;

named! {
    /// A line between two parts of the page that the user can move.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Splitter {
        /// Below the timeline.
        Timeline = "timeline",
        /// Between the panes.
        Panes = "panes",
        /// Before the details panel.
        Details = "details",
    }
}

impl Splitter {
    /// Returns the smallest and the largest share that the user can set, in percent: of the page's
    /// height for the timeline, of the panes' width for the left pane, of the page's width for the
    /// details panel.
    #[must_use]
    pub const fn limits(self) -> (f64, f64) {
        match self {
            Self::Timeline => (10.0, 70.0),
            Self::Panes => (15.0, 85.0),
            Self::Details => (12.0, 50.0),
        }
    }

    /// Clamps `percent`, the share that the user wants, to the splitter's [`limits`](Self::limits).
    #[must_use]
    pub fn within(self, percent: f64) -> f64 {
        let (least, most) = self.limits();
        // NaN becomes the lower limit.
        percent.max(least).min(most)
    }
}

/// Shares of the page, in percent, that the user has set for the timeline, the left pane and the
/// details panel; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PaneSizes([Option<f64>; 3]);

impl PaneSizes {
    /// Parses the stored text; unknown and invalid parts are ignored.
    pub fn parse(text: &str) -> Self {
        let mut sizes = Self::default();
        for (name, value) in text.split(' ').take(8).filter_map(|part| part.split_once('=')) {
            let percent = value.parse::<f64>().ok().filter(|percent| percent.is_finite());
            if let Some((splitter, percent)) = Splitter::from_name(name).zip(percent) {
                sizes.set(splitter, Some(percent));
            }
        }
        sizes
    }

    /// Returns the text to store: `timeline=30 panes=42.5`.
    pub fn text(&self) -> String {
        let set = Splitter::ALL.into_iter().filter_map(|splitter| Some((splitter, self.get(splitter)?)));
        set.map(|(splitter, percent)| format!("{}={percent:.1}", splitter.name())).collect::<Vec<_>>().join(" ")
    }

    /// Returns the share that the user has set with a splitter, in percent; `None` for the default.
    pub fn get(&self, splitter: Splitter) -> Option<f64> {
        self.0[splitter as usize]
    }

    /// Sets the share of a splitter in percent, clamped to its limits; `None` for the default.
    pub fn set(&mut self, splitter: Splitter, percent: Option<f64>) {
        self.0[splitter as usize] = percent.map(|percent| splitter.within(percent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_restored_within_their_limits() {
        let mut sizes = PaneSizes::default();
        assert_eq!(sizes.text(), "");
        sizes.set(Splitter::Panes, Some(42.5));
        sizes.set(Splitter::Timeline, Some(1000.0));
        assert_eq!(sizes.text(), "timeline=70.0 panes=42.5");
        assert_eq!(PaneSizes::parse(&sizes.text()), sizes);
        for text in ["", "x", "timeline", "timeline=", "timeline=x panes=NaN details=inf", "nothing=3"] {
            assert_eq!(PaneSizes::parse(text), PaneSizes::default(), "{text}");
        }
        assert_eq!(PaneSizes::parse("details=-1e300").get(Splitter::Details), Some(12.0));
        sizes.set(Splitter::Panes, None);
        assert_eq!(sizes.get(Splitter::Panes), None);
    }
}
