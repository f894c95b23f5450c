//! The row that a long list keeps in view.

/// The row that a long list scrolls to, and whether the user has scrolled away from it.
///
/// A list that keeps the row of the moment in view [requests](Self::follow) that row each time it
/// changes, until the user scrolls it out of view. Once the row is in view again, the requests
/// continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptInView {
    /// The row that the page was asked for last.
    row: Option<u64>,
    /// Number of requests, which tells a new one for the row that the page has shown already.
    requests: u64,
    is_away: bool,
}

impl KeptInView {
    /// Requests that the page scrolls to `row`, unless the user has scrolled away from the row that
    /// was requested last.
    pub fn follow(&mut self, row: u64) {
        if !self.is_away && self.row != Some(row) {
            self.row = Some(row);
            self.requests += 1;
        }
    }

    /// Requests that the page scrolls to `row`, wherever the user has scrolled.
    pub fn show(&mut self, row: u64) {
        *self = Self { row: Some(row), requests: self.requests + 1, is_away: false };
    }

    /// Makes the next call of [`follow`](Self::follow) request its row, wherever the user has
    /// scrolled.
    pub fn resume(&mut self) {
        (self.row, self.is_away) = (None, false);
    }

    /// Records that the rows `first` to `first + count` are in view.
    pub fn scrolled(&mut self, first: u64, count: u64) {
        if let Some(row) = self.row {
            self.is_away = !(first..=first.saturating_add(count)).contains(&row);
        }
    }

    /// Returns true if the user has scrolled away from the requested row.
    pub fn is_away(&self) -> bool {
        self.is_away
    }

    /// Returns the row to scroll to, and the number of the request for it; `None` before the first
    /// request.
    pub fn request(&self) -> Option<(u64, u64)> {
        self.row.map(|row| (row, self.requests))
    }

    /// Returns the rows to compute (the first one and their number): `window`, or rows around the
    /// requested row if the page does not show it yet.
    pub fn window(&self, window: (u64, u64)) -> (u64, u64) {
        let (first, count) = window;
        match self.row.filter(|_| !self.is_away) {
            Some(row) if row < first || row >= first.saturating_add(count) => (row.saturating_sub(count / 2), count),
            _ => window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_followed_until_the_user_scrolls_away() {
        let mut kept = KeptInView::default();
        assert_eq!((kept.request(), kept.window((0, 80))), (None, (0, 80)));
        kept.follow(1000);
        assert_eq!((kept.request(), kept.window((0, 80))), (Some((1000, 1)), (960, 80)));
        kept.scrolled(990, 20);
        kept.follow(1001);
        assert_eq!((kept.request(), kept.window((960, 80))), (Some((1001, 2)), (960, 80)));
        kept.scrolled(5000, 20);
        kept.follow(1002);
        assert!(kept.is_away());
        assert_eq!((kept.request(), kept.window((4980, 80))), (Some((1001, 2)), (4980, 80)));
        kept.scrolled(995, 20);
        kept.follow(1002);
        assert_eq!(kept.request(), Some((1002, 3)));
        kept.scrolled(5000, 20);
        kept.resume();
        kept.follow(1002);
        assert_eq!(kept.request(), Some((1002, 4)));
    }
}
