//! The page's state as the fragment of its address, so that a copied link shows the same view.

use std::ops::Range;

use vramscope_trace::DeviceId;

use crate::bands::{Band, Choice};
use crate::heatmap::ColorBy;

/// How a link says whether a band is drawn.
const SHOWN: [&str; 2] = ["hidden", "shown"];

/// What a link says; what it does not say stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The moment.
    pub event: Option<u64>,
    /// The time on the timeline, in the recording's own nanoseconds.
    pub range: Option<Range<u64>>,
    /// The GPU.
    pub device: Option<DeviceId>,
    /// The selected address.
    pub select: Option<u64>,
    /// What the color of a block says.
    pub color_by: Option<ColorBy>,
    /// The bands of memory outside of the pool.
    pub bands: Choice,
}

impl Link {
    /// Reads a fragment, with or without its `#`. What it does not understand it passes over.
    #[must_use]
    pub fn parse(fragment: &str) -> Self {
        let mut link = Self::default();
        let (mut from, mut to) = (None, None);
        for part in fragment.trim_start_matches('#').split('&') {
            let Some((name, value)) = part.split_once('=') else { continue };
            match name {
                "event" => link.event = value.parse().ok(),
                "from" => from = value.parse().ok(),
                "to" => to = value.parse().ok(),
                "device" => link.device = value.parse().ok().map(DeviceId),
                "select" => link.select = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()),
                "color" => link.color_by = ColorBy::named(value),
                _ => {
                    let band = Band::ALL.into_iter().find(|band| band.id() == name);
                    let shown = SHOWN.iter().position(|word| *word == value);
                    if let (Some(band), Some(shown)) = (band, shown) {
                        link.bands.set(band, shown == 1);
                    }
                }
            }
        }
        link.range = from.zip(to).filter(|(from, to)| from < to).map(|(from, to)| from..to);
        link
    }

    /// The fragment, without `#`.
    #[must_use]
    pub fn fragment(&self) -> String {
        let mut parts = Vec::new();
        if let Some(event) = self.event {
            parts.push(format!("event={event}"));
        }
        if let Some(range) = &self.range {
            parts.push(format!("from={}&to={}", range.start, range.end));
        }
        if let Some(DeviceId(device)) = self.device {
            parts.push(format!("device={device}"));
        }
        if let Some(address) = self.select {
            parts.push(format!("select={address:#x}"));
        }
        if let Some(color_by) = self.color_by {
            parts.push(format!("color={}", color_by.name()));
        }
        for band in Band::ALL {
            if let Some(shown) = self.bands.of(band) {
                parts.push(format!("{}={}", band.id(), SHOWN[usize::from(shown)]));
            }
        }
        parts.join("&")
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nonsense_is_passed_over() {
        for fragment in
            ["", "#", "event", "#event=&from=3", "#event=-1&device=70000&select=12&from=9&to=3&color=x&others=1"]
        {
            assert_eq!(Link::parse(fragment), Link::default(), "{fragment}");
        }
    }

    proptest! {
        #[test]
        fn a_link_says_what_it_was_made_of(
            event: Option<u64>, from in 0..u64::MAX, length in 1..u64::MAX, has_range: bool, device: Option<u16>,
            select: Option<u64>, by_category: Option<bool>, outside: Option<bool>, others: Option<bool>,
        ) {
            let mut bands = Choice::default();
            for (band, shown) in [(Band::Outside, outside), (Band::Others, others)] {
                shown.into_iter().for_each(|shown| bands.set(band, shown));
            }
            let link = Link {
                event,
                range: has_range.then(|| from..from.saturating_add(length)),
                device: device.map(DeviceId),
                select,
                color_by: by_category.map(|yes| if yes { ColorBy::Category } else { ColorBy::State }),
                bands,
            };
            prop_assert_eq!(Link::parse(&format!("#{}", link.fragment())), link);
        }
    }
}
