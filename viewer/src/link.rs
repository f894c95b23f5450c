//! The page's state in the URL fragment, so that a copied link shows the same view.

use std::ops::Range;

use vramscope_trace::DeviceId;

use crate::bands::{Band, BandChoice};
use crate::heatmap::ColorBy;

/// Values of a band's parameter in a link: index 0 hides the band, index 1 shows it.
const BAND_VALUES: [&str; 2] = ["hidden", "shown"];

/// A view of a recording as in a link: moment, time range, device, selection, coloring and bands.
/// What a link omits stays unchanged when the link is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Moment, as an event number.
    pub event: Option<u64>,
    /// Range of the timeline, in the recording's nanoseconds.
    pub range: Option<Range<u64>>,
    /// Device.
    pub device: Option<DeviceId>,
    /// Selected address.
    pub select: Option<u64>,
    /// What block colors show.
    pub color_by: Option<ColorBy>,
    /// Bands of memory outside the pool.
    pub bands: BandChoice,
}

impl Link {
    /// Parses a URL fragment with or without its `#`. Unknown or invalid parameters are ignored.
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
                "color" => link.color_by = ColorBy::from_name(value),
                _ => {
                    let band = Band::ALL.into_iter().find(|band| band.id() == name);
                    let is_shown = BAND_VALUES.iter().position(|name| *name == value);
                    if let (Some(band), Some(is_shown)) = (band, is_shown) {
                        link.bands.set(band, is_shown == 1);
                    }
                }
            }
        }
        link.range = from.zip(to).filter(|(from, to)| from < to).map(|(from, to)| from..to);
        link
    }

    /// Returns the view as a URL fragment without `#`; empty if the link omits everything.
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
            if let Some(is_shown) = self.bands.get(band) {
                parts.push(format!("{}={}", band.id(), BAND_VALUES[usize::from(is_shown)]));
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
    fn invalid_parameters_are_ignored() {
        for fragment in
            ["", "#", "event", "#event=&from=3", "#event=-1&device=70000&select=12&from=9&to=3&color=x&others=1"]
        {
            assert_eq!(Link::parse(fragment), Link::default(), "{fragment}");
        }
    }

    proptest! {
        #[test]
        fn parsing_a_fragment_restores_the_link(
            event: Option<u64>, from in 0..u64::MAX, length in 1..u64::MAX, has_range: bool, device: Option<u16>,
            select: Option<u64>, by_category: Option<bool>, outside: Option<bool>, others: Option<bool>,
        ) {
            let mut bands = BandChoice::default();
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
