//! A map without zoom: the pool of a device at one moment, for reports and comparisons.

use vramscope_draw::{Surface, Theme, Typesetter};
use vramscope_insight::group::{DeviceCategories, GroupBy, Grouping};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{DeviceOwners, RequestSizes};
use vramscope_trace::{DeviceState, Recording};

use super::block_colors::{ColorBy, MapContent};
use super::draw::draw_on;
use super::groups::BlockGroups;
use super::labels::MapTexts;
use super::layout::Layout;
use super::legend::{LegendEntry, legend};
use super::memory_line::{LineContent, MemoryLine};
use super::scene::MapScene;
use super::view::View;

/// A map of the pool of a device at one moment. The live blocks count as requests.
#[derive(Clone, Debug)]
pub struct StillMap {
    line: MemoryLine,
    legend: Vec<LegendEntry>,
}

impl StillMap {
    /// Computes the map of a device's memory in a recording: by category if it is known of most
    /// bytes, else by state.
    #[must_use]
    pub fn new(recording: &Recording, state: &DeviceState, categories: &DeviceCategories) -> Self {
        let grouping = Grouping::of(GroupBy::Category, recording).with_categories(categories);
        let color_by = if knows_categories(&grouping, state) { ColorBy::Category } else { ColorBy::State };
        let mut groups = BlockGroups::new(grouping, None);
        let mut content =
            MapContent { color_by, groups: Some(&mut groups), ..MapContent::new(state, recording.definitions()) };
        let (unfit, settings) = (RequestSizes::of_blocks(state).unfit_shares(), recorded_settings(recording.info()));
        let owners = DeviceOwners { reserved_bytes: state.counters().reserved, ..DeviceOwners::default() };
        let line =
            LineContent { owners, largest_pool_bytes: 0, unfit: &unfit, settings: &settings, sort: Default::default() };
        let line = MemoryLine::new(&mut content, &line);
        Self { legend: legend(&content, &line), line }
    }

    /// Returns the bytes of a row in the picture of `size` pixels.
    #[must_use]
    pub fn row_bytes(&self, size: (u32, u32), scale: f32) -> f64 {
        Layout::new(&self.line, size, scale, View::default()).row_bytes
    }

    /// Sets the fewest bytes of a row, so that maps have one scale.
    pub fn set_least_row_bytes(&mut self, bytes: f64) {
        self.line.least_row_bytes = bytes;
    }

    /// Returns the position of a device address on the line of the device's memory; `None` outside
    /// of all segments.
    #[must_use]
    pub fn position_of(&self, address: u64) -> Option<u64> {
        self.line.position_of(address)
    }

    /// Returns what the colors stand for.
    #[must_use]
    pub fn legend(&self) -> &[LegendEntry] {
        &self.legend
    }

    /// Computes the picture of `size` pixels (width, height) with `scale` pixels per unit.
    #[must_use]
    pub fn scene(&self, state: &DeviceState, size: (u32, u32), scale: f32, typesetter: &Typesetter) -> MapScene {
        let layout = Layout::new(&self.line, size, scale, View::default());
        let texts = MapTexts { name: &mut |_| String::new(), failed: None };
        MapScene::new(&self.line, layout, (state, false), texts, typesetter)
    }

    /// Draws the map on a surface.
    pub fn draw(&self, state: &DeviceState, scale: f32, theme: &Theme, surface: &mut dyn Surface) {
        let scene = self.scene(state, surface.size(), scale, surface.typesetter());
        draw_on(&scene, theme, surface);
    }
}

/// Returns true if the category is known of most bytes of the live blocks. False without blocks.
#[must_use]
pub fn knows_categories(grouping: &Grouping, state: &DeviceState) -> bool {
    let (mut known, mut all) = (0u64, 0u64);
    for block in state.blocks() {
        all = all.saturating_add(block.size);
        if grouping.category_of(block).category != Default::default() {
            known = known.saturating_add(block.size);
        }
    }
    known > all / 2
}
