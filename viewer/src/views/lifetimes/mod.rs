//! Lifetimes: a histogram of how long allocations live and how large they are, and the allocations
//! of one of its cells.
//!
//! The columns are lifetimes, each ten times the one before; the last column has the allocations
//! that were not freed. The rows are sizes, each twice the one below. A cell's color is its bytes.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;
mod scene;

use vramscope_draw::{Canvas, Theme};
use vramscope_insight::allocations::Scope;
use vramscope_insight::incremental::{
    AllocationSearch, AllocationSum, LifeUnit, LifetimeCell, LifetimeHistogram, LifetimeScan,
};
use vramscope_insight::query::Query;
use vramscope_trace::{ByteSize, Count};

use crate::command::{Command, OptionChange};
use crate::ui::{Element, Tag, swatch};
use crate::view::{
    Context, FoundTable, Options, PictureFrame, PictureKey, Pixel, Registered, SharedCaches, ShownMoment,
    StoredOptions, Table, TableBuilder, View, ViewContent, ViewInfo, mode_choice, modes,
};
use scene::{LifetimesScene, lives_text, pointer_text, sizes_text};

modes! {
    /// The unit of lifetimes.
    Mode {
        /// Nanoseconds.
        Time = "time", "time";
        /// Events.
        Events = "events", "events";
    }
}

/// The view "Lifetimes". Its number is the selected cell of the histogram.
#[derive(Default)]
pub struct Lifetimes {
    options: Options<Mode>,
    scan: LifetimeScan,
    search: AllocationSearch,
    scene: Option<LifetimesScene>,
    key: Option<PictureKey>,
    hovered: Option<LifetimeCell>,
}

impl Registered for Lifetimes {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Bytes of allocations by lifetime and size"),
        needs_history: true,
        is_about_events: true,
        ..ViewInfo::new("lifetimes", "Lifetimes", ("Show how long allocations live", &["; a"]))
    };
}

/// Name of the view in commands and links.
const VIEW: &str = Lifetimes::INFO.name;

impl View for Lifetimes {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        let unit = unit_of(&self.options, context);
        let mode = if unit == LifeUnit::Time { Mode::Time } else { Mode::Events };
        let menu = if context.recording.info().lacks_times { &Mode::MENU[1..] } else { Mode::MENU };
        let mut content = ViewContent::with_controls([mode_choice("lifetimes in", VIEW, &mode, menu)]);
        let is_counted = self.advance(context);
        shared.is_unfinished |= !is_counted;
        let histogram = self.scan.histogram();
        if histogram.all.allocations == 0 {
            let made = if context.has_range { "made in the selected range" } else { "recorded" };
            let nothing = format!("No allocation was {made}.");
            return content.with_message(if is_counted && context.is_history_complete {
                nothing
            } else {
                context.reading_text()
            });
        }
        content.legend.push(legend(context.theme).into());
        content.content.push(Element::text(Tag::P, summary(context, histogram, unit)).with_class("summary").into());
        match self.selected() {
            Some(cell) => {
                let (summary, table) = self.allocations_in(cell, unit, context, shared);
                let back = Element::button("All lifetimes", select_command(None));
                content.content.push(Element::text(Tag::P, format!("{summary} ")).with_child(back).into());
                content.with_table(table)
            }
            None => content.with_table(table(histogram, unit)),
        }
    }

    fn forget(&mut self) {
        *self = Self { options: std::mem::take(&mut self.options), ..Self::default() };
    }

    fn deselect(&mut self) -> bool {
        self.options.number.take().is_some()
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        shared.is_unfinished |= !self.advance(context);
        let key = frame.key(vec![self.scan.revision()]);
        if self.scene.is_some() && self.key.as_ref() == Some(&key) {
            return false;
        }
        let unit = unit_of(&self.options, context);
        let scene = LifetimesScene::new(self.scan.histogram(), unit, frame.size, frame.scale, context.typesetter);
        (self.key, self.scene) = (Some(key), Some(scene));
        true
    }

    fn has_picture(&self) -> bool {
        self.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.scene {
            scene.draw_on(canvas, theme);
        }
    }

    fn hover(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.hovered = self.scene.as_ref().zip(point).and_then(|(scene, point)| scene.hit(point));
        let found = self.hovered.and_then(|cell| Some((cell, *self.scan.histogram().cells.get(&cell)?)));
        found.map_or_else(Vec::new, |(cell, sum)| pointer_text(cell, sum, unit_of(&self.options, context)))
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, _moment: ShownMoment) {
        let Some(scene) = &self.scene else { return };
        for cell in [self.selected(), self.hovered].into_iter().flatten() {
            scene.draw_outline(canvas.bitmap, cell, theme);
        }
    }

    fn click(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Pixel) -> Option<Command> {
        let cell = self.scene.as_ref()?.hit(point)?;
        Some(select_command(Some(cell).filter(|_| self.selected() != Some(cell))))
    }
}

impl Lifetimes {
    /// Continues the count for one frame. Returns true if the histogram has all that has been read.
    fn advance(&mut self, context: &Context<'_>) -> bool {
        let Some(source) = context.device_history() else { return true };
        let (from, to) = context.range;
        let unit = unit_of(&self.options, context);
        self.scan.advance(&source, (context.device, context.history.generation(), unit, from, to))
    }

    /// Returns the selected cell, if the histogram has it.
    fn selected(&self) -> Option<LifetimeCell> {
        let number = self.options.number?;
        self.scan.histogram().cells.keys().copied().find(|cell| cell.number() == number)
    }

    /// Returns a sentence about the allocations of a cell, and the table of those in view.
    fn allocations_in(
        &mut self,
        cell: LifetimeCell,
        unit: LifeUnit,
        context: &Context<'_>,
        shared: &mut SharedCaches,
    ) -> (String, Table) {
        let filter = filter_of(cell, unit);
        // The filter is valid: a test parses the filters of all cells.
        let query = Query::parse(&filter).unwrap_or_default();
        let scope = Scope::MadeIn { from: context.range.0.saturating_add(1), to: context.range.1 };
        let which = format!("of {}, {}", sizes_text(cell), lives_text(cell, unit));
        let found = FoundTable { view: VIEW, query: &query, scope, moment: None, which: &which };
        let (total, _, table) = found.advance(context, &self.options, (shared, &mut self.search));
        let summary = format!("{} {which} (the filter {filter}).", Count(total).of("allocation", "allocations"));
        (summary, table)
    }
}

/// Returns the unit of lifetimes: time, unless the recording has no times or the user chose events.
fn unit_of(options: &Options<Mode>, context: &Context<'_>) -> LifeUnit {
    let is_events = options.mode == Some(Mode::Events) || context.recording.info().lacks_times;
    if is_events { LifeUnit::Events } else { LifeUnit::Time }
}

/// Returns the command that selects a cell; `None` selects none.
fn select_command(cell: Option<LifetimeCell>) -> Command {
    Command::Set(VIEW.into(), OptionChange::Number(cell.map(LifetimeCell::number)))
}

/// Returns the filter that finds the allocations of a cell.
fn filter_of(cell: LifetimeCell, unit: LifeUnit) -> String {
    let size = cell.min_size();
    let mut filter = format!("size>={size}");
    if let Some(end) = size.checked_mul(2) {
        filter += &format!(" size<{end}");
    }
    if cell.life == LifetimeCell::NOT_FREED {
        return filter + " freed:no";
    }
    let suffix = if unit == LifeUnit::Time { "ns" } else { "ev" };
    match cell.lives(unit) {
        (from, u64::MAX) => format!("{filter} life>={from}{suffix}"),
        (from, to) => format!("{filter} life>={from}{suffix} life<{to}{suffix}"),
    }
}

/// Returns a sentence with the number and bytes of all allocations, and with the class of lifetimes
/// that has most of the bytes.
fn summary(context: &Context<'_>, histogram: &LifetimeHistogram, unit: LifeUnit) -> String {
    let whole = if context.has_range { "the selected range" } else { "the recording" };
    let mut by_life = [0u64; 256];
    for (cell, sum) in &histogram.cells {
        let bytes = &mut by_life[usize::from(cell.life)];
        *bytes = bytes.saturating_add(sum.bytes);
    }
    let most = (0..=u8::MAX).max_by_key(|life| by_life[usize::from(*life)]).unwrap_or_default();
    let lives = lives_text(LifetimeCell { size: 0, life: most }, unit);
    let verb = if most == LifetimeCell::NOT_FREED { "was" } else { "lived" };
    format!(
        "{} made in {whole}, {} in all; the largest part, {}, {verb} {lives}.",
        Count(histogram.all.allocations).of("allocation", "allocations"),
        ByteSize(histogram.all.bytes),
        ByteSize(by_life[usize::from(most)]),
    )
}

/// Returns the legend: the colors of few and of many bytes.
fn legend(theme: &Theme) -> Element {
    let item = |(amount, text): (f32, &str)| {
        Element::new(Tag::Li).with_child(swatch(theme.sequential(amount))).with_text(text)
    };
    Element::new(Tag::Ul).with_children([(0.0, "few bytes"), (1.0, "many bytes")].map(item))
}

/// Returns the table of the cells, those with the most bytes first.
fn table(histogram: &LifetimeHistogram, unit: LifeUnit) -> Table {
    let mut cells: Vec<(LifetimeCell, AllocationSum)> =
        histogram.cells.iter().map(|(cell, sum)| (*cell, *sum)).collect();
    cells.sort_by_key(|(cell, sum)| (std::cmp::Reverse(sum.bytes), *cell));
    TableBuilder::new(VIEW, "Allocations by lifetime and size", &cells)
        .text("lifetime", "lifetime", |(cell, _)| lives_text(*cell, unit))
        .text("size", "size", |(cell, _)| sizes_text(*cell))
        .bar("bytes", "allocated", |(_, sum)| sum.bytes)
        .count("allocations", "count", |(_, sum)| sum.allocations)
        .hidden("filter", |(cell, _)| filter_of(*cell, unit).into())
        .commands(|(cell, _)| select_command(Some(*cell)))
        .build()
}
