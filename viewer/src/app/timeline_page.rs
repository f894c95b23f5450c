//! The elements of the page that belong to the timeline: the bar above it and the tooltip on it.

use vramscope_draw::Theme;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, DurationNs, Percent};

use crate::command::{Command, Field};
use crate::linked_memory::LinkedMemory;
use crate::protocol::{PageUpdate, Tooltip};
use crate::timeline::{AxisKind, Hover, StackLayer, Stacking, TimelineScene};
use crate::ui::{Attribute, Element, Node, Tag, swatch};
use crate::view::{choice, group_title, linked_item};

use super::session::Session;
use super::timeline_commands::STACKS;

/// Maximum number of groups in the legend of the stacked timeline.
const MAX_LEGEND: usize = 8;

impl Session {
    /// Adds the bar above the timeline and the tooltip to `update` if they have changed.
    pub(super) fn update_timeline_page(&mut self, update: &mut PageUpdate) {
        let bar = self.timeline_bar();
        if self.timeline.sent.bar.as_ref() != Some(&bar) {
            update.timeline_bar = Some(bar.clone());
            self.timeline.sent.bar = Some(bar);
        }
        let tooltip = self.timeline_hover().map(|hover| tooltip(&hover, &self.display.theme));
        if self.timeline.sent.tooltip != tooltip {
            update.tooltip = Some(tooltip.clone().unwrap_or_default());
            self.timeline.sent.tooltip = tooltip;
        }
    }

    /// Returns the bar above the timeline: its title, a legend, and the selected range.
    fn timeline_bar(&mut self) -> Vec<Node> {
        let model = &self.model;
        let stacks = STACKS.iter().map(|&by| (by.name(), group_title(by)));
        let stacks = std::iter::once((Stacking::COUNTERS, Stacking::COUNTERS)).chain(stacks);
        let stack = model.stack().map_or(Stacking::COUNTERS, GroupBy::name);
        let axes = AxisKind::ALL.map(|axis| (axis.name(), axis.name()));
        let idle_ns = self.timeline.scene.as_ref().map_or(0, |timeline| timeline.axis.idle_ns());
        let cut = match idle_ns {
            0 => "hide idle time".to_owned(),
            _ => format!("idle time hidden: {}", DurationNs(idle_ns)),
        };
        let cut = Element::button(cut, Command::CutIdle)
            .with(Attribute::Title, "Leave out long times without events, or show them (Shift+X)")
            .with(Attribute::AriaPressed, if model.cuts_idle() { "true" } else { "false" });
        let mut bar = vec![
            choice("stack", Field::Stack, stack, stacks).into(),
            choice("axis", Field::Axis, model.axis().name(), axes).into(),
        ];
        bar.extend((model.scale().kind() == AxisKind::Time).then(|| cut.into()));
        if model.recording().devices().count() > 1 {
            let lanes = Element::button("device lanes", Command::Lanes)
                .with(Attribute::Title, "Show a lane for each device (Shift+R)")
                .with(Attribute::AriaPressed, if self.timeline.hides_lanes { "false" } else { "true" });
            bar.push(lanes.into());
        }
        bar.extend(self.axis_note().map(|note| Element::text(Tag::Span, note).with_class("note").into()));
        bar.extend(self.stack_legend().map(Node::from));
        bar.extend(self.run_legend().map(Node::from));
        if let Some(totals) = self.selection_totals() {
            let selection = Element::new(Tag::Span)
                .with_class("selection")
                .with_text(format!("selected: {}", totals.text()))
                .with_child(Element::button("Zoom", Command::Fit).with(Attribute::Title, "Show the selected range (F)"))
                .with_child(
                    Element::button("Clear", Command::RangeClear).with(Attribute::Title, "Clear the selection (R)"),
                );
            bar.push(selection.into());
        }
        bar
    }

    /// Returns the legend of a simulated run's lines on the timeline; `None` without a simulated
    /// run.
    fn run_legend(&self) -> Option<Element> {
        let run = self.model.comparison.run()?;
        let [allocated, reserved] = TimelineScene::run_colors(&self.display.theme);
        let peak = run.series(self.model.device()).map_or(0, |series| series.peak_reserved().bytes);
        let line = |color, text: String| {
            let line = swatch(color).with_class("swatch swatch-line");
            Element::new(Tag::Li).with_child(line).with_child(Element::text(Tag::Span, text))
        };
        let reserved = line(reserved, format!("what if: reserved, up to {}", ByteSize(peak)));
        let entries = [reserved, line(allocated, "what if: allocated".to_owned())];
        let legend = Element::new(Tag::Ul).with_class("stack-legend").with(Attribute::AriaLabel, "Simulated run");
        Some(legend.with_children(entries))
    }

    /// Returns why the timeline does not show what the user wants; `None` if it does.
    fn axis_note(&self) -> Option<String> {
        let model = &self.model;
        let is_waiting = model.scale().kind() != model.axis() || self.is_stack_pending() || model.cuts_idle();
        if self.complete_history().is_none() {
            return is_waiting.then(|| {
                let (read, known) = (self.analysis.progress(), 1.0);
                format!("reading the recording: {}", Percent(read / known))
            });
        }
        if model.scale().kind() != model.axis() {
            return Some("this recording has no steps".to_owned());
        }
        self.is_stack_pending().then(|| "adding up the groups…".to_owned())
    }

    /// Returns the legend of the stacked timeline's largest groups in view; `None` if the timeline
    /// shows the counters.
    fn stack_legend(&self) -> Option<Element> {
        let stack = self.timeline.scene.as_ref()?.stack.as_ref()?;
        // Recorded and inferred memory of a category is one entry.
        let mut layers: Vec<(&StackLayer, u64)> = Vec::new();
        for (layer, bytes) in stack.largest() {
            if layer.memory.is_none() || layers.iter().all(|(known, _)| known.memory != layer.memory) {
                layers.push((layer, bytes));
            }
        }
        let entry = |(layer, _): &(&StackLayer, u64)| {
            let name = match layer.memory {
                Some(LinkedMemory::Part(part)) => part.name(),
                _ => &*layer.name,
            };
            let sample = swatch(layer.color).with_texture(&self.display.theme, layer.texture);
            linked_item(sample, name, layer.memory, &self.details.lights.kept)
        };
        let mut legend = Element::new(Tag::Ul)
            .with_class("stack-legend")
            .with(Attribute::AriaLabel, "Largest groups in view")
            .with_child(Element::text(Tag::Li, "active bytes:"))
            .with_children(layers.iter().take(MAX_LEGEND).map(entry));
        if layers.len() > MAX_LEGEND {
            let text = format!("and {} more", layers.len() - MAX_LEGEND);
            legend = legend.with_child(Element::text(Tag::Li, text));
        }
        Some(legend)
    }
}

/// Builds the timeline's tooltip from the texts about a pixel column.
fn tooltip(hover: &Hover, theme: &Theme) -> Tooltip {
    let mut content: Vec<Node> = vec![Element::text(Tag::P, &*hover.title).with_class("title").into()];
    content.extend(hover.incidents.iter().map(|text| Element::text(Tag::P, &**text).with_class("alarm").into()));
    let spans = (!hover.spans.is_empty()).then(|| hover.spans.join(" › "));
    for text in spans.iter().chain(&hover.span_box) {
        content.push(Element::text(Tag::P, &**text).with_class("spans").into());
    }
    let fact = |name: Node, value: &str| {
        Element::new(Tag::Tr)
            .with_child(Element::new(Tag::Th).with(Attribute::Scope, "row").with_child(name))
            .with_child(Element::text(Tag::Td, value).with_class("number"))
    };
    let mut table = Element::new(Tag::Table);
    for (name, value) in &hover.counters {
        table = table.with_child(fact((*name).into(), value));
    }
    for group in &hover.groups {
        let mut name = Element::new(Tag::Span);
        if let Some((color, texture)) = group.look {
            name = name.with_child(swatch(color).with_texture(theme, texture));
        }
        table = table.with_child(fact(name.with_text(&*group.name).into(), &ByteSize(group.bytes).to_string()));
    }
    content.push(table.into());
    Tooltip { x: hover.x, content }
}
