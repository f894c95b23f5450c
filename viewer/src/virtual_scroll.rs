//! The scroll position of a list that is higher than browsers allow an element to be.
//!
//! A list of four million rows is 90 million pixels high; browsers end at 17 to 33 million. The
//! element of a list is at most [`MAX_HEIGHT`] high. Near both ends, a pixel of the scroll bar is a
//! pixel of the list; between, it is several. Small movements, of the wheel or by keys, move the
//! list by an equal number of pixels everywhere: the difference to the position of the scroll bar
//! (the offset) is kept until the next large movement.

/// Maximum height of a list's element in CSS pixels; the style sheet has this number, too.
pub const MAX_HEIGHT: f64 = 8_000_000.0;
/// Height at both ends of a list's element, in CSS pixels, in which scrolling the element by a
/// pixel scrolls the list by a pixel.
const EXACT_HEIGHT: f64 = 200_000.0;
/// Movements of the scroll bar below this many heights of the view are small: they move the list by
/// an equal number of pixels.
const SMALL_MOVEMENT: f64 = 4.0;
/// Maximum difference in pixels between the scroll bar's position and the position that corresponds
/// to the list's.
const MAX_DRIFT: f64 = 100_000.0;
/// Number of rows that remain in view above and below a row that the list scrolls to.
const MARGIN_ROWS: f64 = 2.0;

/// The size of a list and of the view on it, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListSize {
    /// Number of rows.
    pub rows: u64,
    /// Height of a row.
    pub row_height: f64,
    /// Height of the heading, which stays in view.
    pub heading_height: f64,
    /// Height of the view.
    pub view_height: f64,
}

impl ListSize {
    /// Returns the height of all rows and the heading.
    fn full_height(&self) -> f64 {
        self.rows as f64 * self.row_height + self.heading_height
    }

    /// Returns the greatest scroll positions, in pixels, of the list and of its element, in this
    /// order.
    fn ends(&self) -> (f64, f64) {
        let height = self.full_height();
        let end = |height: f64| (height - self.view_height).max(0.0);
        (end(height), end(height.min(MAX_HEIGHT)))
    }

    /// Converts a scroll position of the list's element to one of the list, in pixels.
    fn list_position(&self, element: f64) -> f64 {
        let (list_end, element_end) = self.ends();
        self.converted(element, element_end, list_end)
    }

    /// Converts a scroll position of the list to one of its element, in pixels.
    fn element_position(&self, list: f64) -> f64 {
        let (list_end, element_end) = self.ends();
        self.converted(list, list_end, element_end)
    }

    /// Converts a position between 0 and `end` to one between 0 and `other_end`: equally far from
    /// the start or the end near these, and proportional in between.
    fn converted(&self, position: f64, end: f64, other_end: f64) -> f64 {
        let (list_end, element_end) = self.ends();
        let exact = EXACT_HEIGHT.min(element_end / 4.0);
        if list_end <= element_end || position <= exact {
            position
        } else if position >= end - exact {
            other_end - (end - position)
        } else {
            exact + (position - exact) * (other_end - 2.0 * exact) / (end - 2.0 * exact)
        }
    }
}

/// The scroll position of a long list and of its shorter element, in CSS pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VirtualScroll {
    /// Position of the list's element as last known or set.
    element: f64,
    /// Position of the list less that of its element.
    offset: f64,
}

impl VirtualScroll {
    /// Handles that the user has scrolled the list's element to position `element`, in pixels.
    /// Returns another position to set instead, or `None`.
    pub fn scrolled(&mut self, size: &ListSize, element: f64) -> Option<f64> {
        let (list_end, element_end) = size.ends();
        let element = element.clamp(0.0, element_end);
        let is_small = (element - self.element).abs() < SMALL_MOVEMENT * size.view_height;
        let list = if is_small { element + self.offset } else { size.list_position(element) };
        let list = list.clamp(0.0, list_end);
        let exact = size.element_position(list);
        let end_distance = element.min(element_end - element);
        let drift = (exact - element).abs();
        let is_corrected = drift > MAX_DRIFT || (drift >= 1.0 && end_distance < 2.0 * size.view_height);
        self.element = if is_corrected { exact } else { element };
        self.offset = list - self.element;
        is_corrected.then_some(exact)
    }

    /// Scrolls the list so that a row is in view: by as little as possible if it is near, else to
    /// the middle. Returns the position of the element to set; `None` if the row is in view.
    pub fn reveal(&mut self, size: &ListSize, row: u64) -> Option<f64> {
        let (list_end, element_end) = size.ends();
        let list = self.element + self.offset;
        let top = row as f64 * size.row_height;
        let height = (size.view_height - size.heading_height).max(size.row_height);
        let last_top = height - size.row_height;
        if (list..=list + last_top).contains(&top) {
            return None;
        }
        let margin = (MARGIN_ROWS * size.row_height).min(last_top / 2.0);
        let target = if top < list && top > list - height {
            top - margin
        } else if top > list && top < list + 2.0 * height {
            top - last_top + margin
        } else {
            top - last_top / 2.0
        };
        let target = target.clamp(0.0, list_end);
        let kept = target - self.offset;
        let is_small = (target - list).abs() < SMALL_MOVEMENT * size.view_height;
        self.element =
            if is_small && (0.0..=element_end).contains(&kept) { kept } else { size.element_position(target) };
        self.offset = target - self.element;
        Some(self.element)
    }

    /// Returns true if the list's element is within a pixel of position `element`.
    pub fn is_at(&self, size: &ListSize, element: f64) -> bool {
        let (_, element_end) = size.ends();
        (element.clamp(0.0, element_end) - self.element).abs() < 1.0
    }

    /// Returns the scroll position of the list's element, in pixels.
    pub fn position(&self) -> f64 {
        self.element
    }

    /// Returns the list's scroll position minus its element's, in pixels.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// Returns the first row in view and the number of rows in view.
    pub fn rows(&self, size: &ListSize) -> (u64, u64) {
        let row_height = size.row_height.max(1.0);
        let first = ((self.element + self.offset) / row_height).max(0.0) as u64;
        (first.min(size.rows.saturating_sub(1)), (size.view_height / row_height).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rows: u64) -> ListSize {
        ListSize { rows, row_height: 22.0, heading_height: 26.0, view_height: 600.0 }
    }

    #[test]
    fn short_list_scrolls_like_any_element() {
        let size = list(10_000);
        let mut scroll = VirtualScroll::default();
        for top in [0.0, 50.0, 100_000.0, 3.0, 219_000.0] {
            assert_eq!(scroll.scrolled(&size, top), None);
            assert_eq!((scroll.offset(), scroll.rows(&size).0), (0.0, (top / 22.0) as u64));
        }
    }

    #[test]
    fn every_row_of_a_long_list_can_be_reached() {
        let size = list(4_000_000);
        let (_, element_end) = size.ends();
        let mut scroll = VirtualScroll::default();
        scroll.scrolled(&size, element_end);
        assert_eq!(scroll.rows(&size).0 + 27, 4_000_000);
        for row in [0, 1, 26, 9_000, 1_999_999, 2_000_030, 3_999_999, 5] {
            scroll.reveal(&size, row);
            let (first, count) = scroll.rows(&size);
            assert!((first..first + count).contains(&row), "{row} in {count} rows from {first}");
            assert_eq!(scroll.reveal(&size, row), None, "{row} is in view");
        }
    }

    #[test]
    fn wheel_moves_a_long_list_by_pixels() {
        let size = list(4_000_000);
        let mut scroll = VirtualScroll::default();
        scroll.scrolled(&size, 4_000_000.0);
        let (first, _) = scroll.rows(&size);
        let mut element = 4_000_000.0;
        for step in 1..=3000u64 {
            element += 110.0;
            element = scroll.scrolled(&size, element).unwrap_or(element);
            assert_eq!(scroll.rows(&size).0, first + 5 * step);
        }
    }

    #[test]
    fn wheel_reaches_both_ends() {
        let size = list(4_000_000);
        let (_, element_end) = size.ends();
        let mut scroll = VirtualScroll::default();
        scroll.reveal(&size, 4000);
        let mut element = scroll.element;
        for _ in 0..2000 {
            element = (element - 110.0).max(0.0);
            element = scroll.scrolled(&size, element).unwrap_or(element);
        }
        assert_eq!((element, scroll.rows(&size).0), (0.0, 0));
        scroll.reveal(&size, 3_990_000);
        let mut element = scroll.element;
        for _ in 0..4000 {
            element = (element + 110.0).min(element_end);
            element = scroll.scrolled(&size, element).unwrap_or(element);
        }
        assert_eq!(scroll.rows(&size).0 + 27, 4_000_000);
    }

    #[test]
    fn position_is_known_to_the_pixel() {
        let size = list(1000);
        let mut scroll = VirtualScroll::default();
        assert!(scroll.is_at(&size, 0.0) && scroll.is_at(&size, -40.0), "before the list is its start");
        scroll.reveal(&size, 500);
        let position = scroll.position();
        assert!(scroll.is_at(&size, position.round()) && !scroll.is_at(&size, position + 2.0));
        scroll.reveal(&size, 999);
        let (_, end) = size.ends();
        assert!(scroll.is_at(&size, end) && scroll.is_at(&size, end + 60.0), "after the list is its end");
    }
}
