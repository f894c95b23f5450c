//! Links: the page's state in the URL fragment, so that a copied link shows the same view.
//!
//! A fragment is a list of parameters, in any order: `event=3182&range=10-20&panes=sites;by:site`.
//!
//! | parameter | meaning |
//! | --- | --- |
//! | `event` | moment, as an event number; a live recording without it is followed |
//! | `axis`, `idle`, `stack` | what the timeline's axis shows, idle time `cut` or `shown`, what areas show |
//! | `from`, `to` | range of the timeline, in the unit of its axis |
//! | `range` | selected range of event numbers |
//! | `device` | device |
//! | `select`, `since` | selected address, and the event number from which the allocation exists |
//! | `group` | selected group of blocks: what they are grouped by, and its name |
//! | `color`, `sort`, `zoom` | look of the device map |
//! | `panes` | views from left to right with their options; see [`PaneLink`] |
//! | `step` | name of the span that is a step |
//! | `with`, `pin` | what the recording is compared with; device and event number of the pinned moment |
//! | `outside`, `others` | whether bands of memory outside the pool are shown |
//!
//! Links omit defaults. Fragments are not trusted: an overlong one is ignored, and so are invalid
//! values.

use std::ops::Range;

use vramscope_insight::group::GroupBy;
use vramscope_trace::DeviceId;

use crate::bands::{Band, BandChoice};
use crate::device_map::{ColorBy, SortBy};
use crate::pane_link::{decoded, encoded};
use crate::timeline::{AxisKind, Stacking};

pub use crate::pane_link::PaneLink;

/// Maximum size in bytes of a fragment; a longer fragment is ignored.
const MAX_FRAGMENT_BYTES: usize = 16 << 10;

/// Values of a band's parameter in a link: index 0 hides the band, index 1 shows it.
const BAND_VALUES: [&str; 2] = ["hidden", "shown"];

/// Values of the parameter `idle`: index 0 shows idle time, index 1 cuts it out of the timeline.
const IDLE_VALUES: [&str; 2] = ["shown", "cut"];

/// Zoom of the device map in a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapZoom {
    /// The factor by which bytes are wider than if the whole pool fits the map.
    pub zoom: f64,
    /// The position on the memory line of the first byte in view.
    pub first_byte: u64,
}

impl MapZoom {
    /// Parses `ZOOM,BYTE`; `None` if one of them is missing or not a finite number. Links of former
    /// versions have three numbers, of which the second is the width of bytes.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Option<Vec<f64>> =
            text.split(',').map(|part| part.parse::<f64>().ok().filter(|number| number.is_finite())).collect();
        match numbers?[..] {
            [zoom, first_byte] => Some(Self { zoom, first_byte: first_byte as u64 }),
            [_, columns, _] => Some(Self { zoom: columns, first_byte: 0 }),
            _ => None,
        }
    }
}

/// Maximum number of panes in a link; further panes are ignored.
const MAX_PANES: usize = 2;

/// The content of a link: a view of a recording. The parts of the view that a link omits (`None`)
/// stay as they are when the link is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// The moment, as an event number.
    pub event: Option<u64>,
    /// Unit of the timeline's horizontal axis.
    pub axis: Option<AxisKind>,
    /// Whether the timeline cuts out idle time; `None` to cut it out if most of the recording is
    /// idle.
    pub cuts_idle: Option<bool>,
    /// The areas that the timeline shows; `None` for the usual ones.
    pub stack: Option<Stacking>,
    /// Range that the timeline shows, in the unit of its axis: nanoseconds of the recording, event
    /// numbers, or steps.
    pub range: Option<Range<u64>>,
    /// First and last event number of the selected range.
    pub selected: Option<(u64, u64)>,
    /// The device on the page.
    pub device: Option<DeviceId>,
    /// Selected device address.
    pub select: Option<u64>,
    /// The event number from which the selected allocation exists; only with a selected address.
    pub since: Option<u64>,
    /// The selected group of blocks: what they are grouped by, and the group's name.
    pub group: Option<(GroupBy, String)>,
    /// The property that block colors show.
    pub color_by: Option<ColorBy>,
    /// The order of the segments on the map.
    pub sort: Option<SortBy>,
    /// Zoom of the map.
    pub zoom: Option<MapZoom>,
    /// The panes from left to right; empty if the link omits them.
    pub panes: Vec<PaneLink>,
    /// Name of the span that the user chose as a step.
    pub step_span: Option<String>,
    /// The second side of a comparison, as in the command `compare-with`.
    pub compare_with: Option<String>,
    /// The pinned moment: device and event number.
    pub pinned: Option<(DeviceId, u64)>,
    /// The user's choice to show or to hide each band of the timeline.
    pub bands: BandChoice,
}

impl Link {
    /// Parses a URL fragment with or without its `#`. Ignores unknown and invalid parameters, and a
    /// fragment that is too long.
    pub fn parse(fragment: &str) -> Self {
        let mut link = Self::default();
        if fragment.len() > MAX_FRAGMENT_BYTES {
            return link;
        }
        let (mut from, mut to) = (None, None);
        for part in fragment.trim_start_matches('#').split('&') {
            let Some((name, value)) = part.split_once('=') else { continue };
            match name {
                "event" => link.event = value.parse().ok(),
                "from" => from = value.parse().ok(),
                "to" => to = value.parse().ok(),
                "axis" => link.axis = AxisKind::from_name(value),
                "idle" => link.cuts_idle = IDLE_VALUES.iter().position(|one| *one == value).map(|index| index == 1),
                "stack" => link.stack = Stacking::from_name(value),
                "range" => {
                    let numbers = value.split_once('-').and_then(|(from, to)| from.parse().ok().zip(to.parse().ok()));
                    link.selected = numbers.filter(|(from, to)| from <= to);
                }
                "device" => link.device = value.parse().ok().map(DeviceId),
                "select" => link.select = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()),
                "since" => link.since = value.parse().ok(),
                "group" => {
                    let parts = value.split_once(':');
                    link.group = parts.and_then(|(by, name)| Some((GroupBy::from_name(by)?, decoded(name)?)));
                }
                "color" => link.color_by = ColorBy::from_name(value),
                "sort" => link.sort = SortBy::from_name(value),
                "zoom" => link.zoom = MapZoom::parse(value),
                "panes" => link.panes = value.split(',').take(MAX_PANES).map(PaneLink::parse).collect(),
                "step" => link.step_span = decoded(value).filter(|name| !name.is_empty()),
                "with" => link.compare_with = decoded(value).map(|name| name.replace(':', " ")),
                "pin" => {
                    let numbers = value.split_once(':');
                    link.pinned =
                        numbers.and_then(|(device, event)| Some((DeviceId(device.parse().ok()?), event.parse().ok()?)));
                }
                _ => {
                    let band = Band::ALL.into_iter().find(|band| band.id() == name);
                    let is_shown = BAND_VALUES.iter().position(|name| *name == value);
                    if let (Some(band), Some(is_shown)) = (band, is_shown) {
                        link.bands.set(band, is_shown == 1);
                    }
                }
            }
        }
        link.since = link.since.filter(|_| link.select.is_some());
        link.range = from.zip(to).filter(|(from, to)| from < to).map(|(from, to)| from..to);
        link
    }

    /// Returns the link as a URL fragment without `#`; empty if the link omits everything.
    pub fn fragment(&self) -> String {
        let range = self.range.as_ref().map(|range| format!("from={}&to={}", range.start, range.end));
        let since = self.since.filter(|_| self.select.is_some());
        let zoom = self.zoom.map(|MapZoom { zoom, first_byte }| format!("zoom={zoom},{first_byte}"));
        let panes: Vec<String> = self.panes.iter().map(PaneLink::text).collect();
        let with = self.compare_with.as_ref().map(|with| with.replace(' ', ":"));
        let parts = [
            self.event.map(|event| format!("event={event}")),
            self.axis.map(|axis| format!("axis={}", axis.name())),
            self.cuts_idle.map(|cuts| format!("idle={}", IDLE_VALUES[usize::from(cuts)])),
            self.stack.map(|stacking| format!("stack={}", stacking.name())),
            self.selected.map(|(from, to)| format!("range={from}-{to}")),
            range,
            self.device.map(|DeviceId(device)| format!("device={device}")),
            self.select.map(|address| format!("select={address:#x}")),
            since.map(|since| format!("since={since}")),
            self.group.as_ref().map(|(by, name)| format!("group={}:{}", by.name(), encoded(name))),
            self.color_by.map(|color_by| format!("color={}", color_by.name())),
            self.sort.map(|sort| format!("sort={}", sort.name())),
            zoom,
            (!panes.is_empty()).then(|| format!("panes={}", panes.join(","))),
            self.step_span.as_ref().map(|name| format!("step={}", encoded(name))),
            with.map(|with| format!("with={}", encoded(&with))),
            self.pinned.map(|(DeviceId(device), event)| format!("pin={device}:{event}")),
        ];
        let band = |band: Band| {
            let is_shown = self.bands.get(band)?;
            Some(format!("{}={}", band.id(), BAND_VALUES[usize::from(is_shown)]))
        };
        let parts: Vec<String> = parts.into_iter().chain(Band::ALL.map(band)).flatten().collect();
        parts.join("&")
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_parameters_are_ignored() {
        for fragment in [
            "",
            "#",
            "event",
            "#event=&from=3",
            "#event=-1&device=70000&select=12&from=9&to=3&color=x&others=1",
            "#since=4&group=line&group=nothing:a&group=line:%f&group=line:%ff&scale=x&sort=&zoom=1&zoom=1,inf,0&zoom=1,2,3,4",
        ] {
            assert_eq!(Link::parse(fragment), Link::default(), "{fragment}");
        }
    }

    /// Returns a strategy for arbitrary panes.
    fn pane() -> impl Strategy<Value = PaneLink> {
        let by = proptest::option::of(0..GroupBy::ALL.len());
        let sort = proptest::option::of(("[a-z_]{1,12}", any::<bool>()));
        let texts = ("[a-z]{1,12}", proptest::option::of(".{1,20}"), ".{0,40}");
        (texts, by, sort, any::<Option<u64>>()).prop_map(|((view, mode, filter), by, sort, number)| PaneLink {
            view,
            by: by.map(|by| GroupBy::ALL[by]),
            mode,
            sort,
            filter,
            number,
        })
    }

    #[test]
    fn overlong_fragments_are_ignored() {
        let long = format!("event=3&step={}", "x".repeat(MAX_FRAGMENT_BYTES));
        assert_eq!(Link::parse(&long), Link::default());
    }

    proptest! {
        #[test]
        fn any_text_can_be_parsed(text in ".{0,200}", value in "[a-z;:,%0-9-]{0,60}") {
            prop_assert!(Link::parse(&text).fragment().len() <= 16 * text.len() + 100);
            for name in ["panes", "with", "pin", "step", "zoom", "range", "group", "select"] {
                let link = Link::parse(&format!("{name}={value}"));
                prop_assert_eq!(Link::parse(&link.fragment()), link);
            }
        }

        #[test]
        fn parsing_a_fragment_restores_the_link(
            event: Option<u64>, from in 0..u64::MAX, length in 1..u64::MAX, has_range: bool, device: Option<u16>,
            select: Option<u64>, outside: Option<bool>, others: Option<bool>,
            axis in 0..4usize, cuts_idle: Option<bool>, stack in 0..12usize, selected: Option<(u64, u64)>,
            since: Option<u64>, group: Option<(prop::sample::Index, String)>,
            look in (0..5usize, 0..10usize),
            zoom in proptest::option::of((1f64..1e7, 0u64..1 << 50)),
            panes in proptest::collection::vec(pane(), 0..3),
            compared in (proptest::option::of(".{1,20}"), 0..3usize, proptest::option::of(0u64..1000)),
        ) {
            let mut bands = BandChoice::default();
            for (band, shown) in [(Band::Outside, outside), (Band::Others, others)] {
                shown.into_iter().for_each(|shown| bands.set(band, shown));
            }
            let link = Link {
                event,
                axis: AxisKind::ALL.get(axis).copied(),
                cuts_idle,
                stack: [Stacking::Counters].into_iter().chain(GroupBy::ALL.map(Stacking::By)).nth(stack),
                selected: selected.map(|(one, other)| (one.min(other), one.max(other))),
                range: has_range.then(|| from..from.saturating_add(length)),
                device: device.map(DeviceId),
                select,
                since: since.filter(|_| select.is_some()),
                group: group.map(|(by, name)| (*by.get(&GroupBy::ALL), name)),
                color_by: ColorBy::ALL.get(look.1).copied(),
                sort: SortBy::ALL.get(look.0).copied(),
                zoom: zoom.map(|(zoom, first_byte)| MapZoom { zoom, first_byte }),
                panes,
                step_span: compared.0,
                compare_with: ["recording 3", "pinned"].get(compared.1).map(|name| (*name).to_owned()),
                pinned: compared.2.map(|event| (DeviceId(2), event)),
                bands,
            };
            prop_assert_eq!(Link::parse(&format!("#{}", link.fragment())), link);
        }
    }
}
