//! The picture of a comparison with its cached sides, for the views that show one.

use vramscope_draw::{Canvas, Theme};

use super::draw::draw_on;
use super::{CompareCache, ComparisonScene};
use crate::view::{Context, PictureFrame, PictureKey};

/// The picture of a comparison, and the cached results behind it.
#[derive(Default)]
pub struct ComparisonPicture {
    /// The two sides.
    pub cache: CompareCache,
    scene: Option<ComparisonScene>,
    key: Option<PictureKey>,
}

impl ComparisonPicture {
    /// Computes the lines and maps if their inputs have changed; unless both sides are known,
    /// there is no picture. Returns true if the picture must be drawn again.
    pub fn update(&mut self, context: &Context<'_>, frame: &PictureFrame<'_>, is_known: bool) -> bool {
        let mut numbers = if is_known { self.cache.picture_numbers(context) } else { Vec::new() };
        if numbers.is_empty() {
            (self.scene, self.key) = (None, None);
            return false;
        }
        numbers.extend(frame.zoomed_ns.iter().flat_map(|(from, to)| [*from, *to]));
        let key = frame.key(numbers);
        if self.key.as_ref() == Some(&key) {
            return false;
        }
        let Some(scene) = self.cache.scene(context, frame.zoomed_ns, frame.size, frame.scale) else { return false };
        (self.key, self.scene) = (Some(key), Some(scene));
        true
    }

    /// Returns the scene; `None` if nothing is compared.
    pub fn scene(&self) -> Option<&ComparisonScene> {
        self.scene.as_ref()
    }

    /// Draws the picture.
    pub(crate) fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.scene {
            draw_on(scene, theme, canvas);
        }
    }

    /// Returns the lines of text about the pixel under the pointer.
    pub fn values(&self, point: Option<(i32, i32)>) -> Vec<String> {
        self.scene.as_ref().zip(point).map(|(scene, point)| scene.values(point)).unwrap_or_default()
    }
}
