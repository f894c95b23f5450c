//! Saving a picture as a file, and copying the content of the details panel.

use vramscope_draw::Texture;
use vramscope_trace::Count;

use crate::open::saved_name;
use crate::protocol::Surface;
use crate::saved_picture::{LegendEntry, PictureFormat, SavedPicture, Surroundings, legend_entries};
use crate::timeline::{StackLayer, moment_text};
use crate::ui::plain_text;
use crate::views::ViewId;

use super::session::{Session, SessionReport};

/// Name of the timeline in commands and file names.
const TIMELINE: &str = "timeline";

impl Session {
    /// Reports the picture of a view or of the timeline, by its name, to save as a file; without a
    /// name, the view of the pane that was used last.
    ///
    /// # Errors
    /// If there is no such picture: a message for the user.
    pub(super) fn save_picture(
        &mut self,
        format: PictureFormat,
        name: Option<&str>,
        report: &mut SessionReport,
    ) -> Result<(), String> {
        let (surface, name, title, legend) = if name == Some(TIMELINE) {
            (Surface::Timeline, TIMELINE, "Timeline", self.timeline_legend())
        } else {
            let view = name.map_or(Ok(self.panes.active()), ViewId::named)?;
            let surface = self.panes.surface_of(view);
            let pane = surface.and_then(Surface::pane).unwrap_or(0);
            let content = self.sent.contents[pane].as_ref().filter(|pane| pane.view == view.name() && pane.has_picture);
            let (Some(surface), Some(content)) = (surface, content) else {
                return Err(format!("{} has no picture to save: copy its table instead", view.info().title));
            };
            (surface, view.name(), view.info().title, legend_entries(&content.legend, &self.display.theme))
        };
        let model = &self.model;
        let recording = model.recording();
        let (event, end) = (model.state().event(), recording.end_event());
        let mut subtitle =
            format!("event {} of {}, {}", Count(event), Count(end), moment_text(recording, model.time_ns()));
        if recording.devices().count() > 1 {
            subtitle += &format!(", {}", recording.info().device_label(model.device()));
        }
        let around = Surroundings { title: format!("{}: {title}", model.source()), subtitle, legend };
        let stem = saved_name(model.source());
        let stem = stem.strip_suffix(".vram").unwrap_or(&stem);
        let file = (format!("{stem} {name} event {event}.{}", format.extension()), format);
        let size = self.display.drawn_size(surface);
        let picture = SavedPicture::new(
            file,
            size,
            &around,
            self.display.screen.scale,
            &self.display.theme,
            &mut self.display.typesetter,
        );
        report.picture = Some((surface, Box::new(picture)));
        Ok(())
    }

    /// Returns the legend of the timeline's colors.
    fn timeline_legend(&self) -> Vec<LegendEntry> {
        let theme = &self.display.theme;
        let entry = |color, text: &str| LegendEntry { color: Some(color), stripes: None, text: text.to_owned() };
        let stack = self.timeline.scene.as_ref().and_then(|timeline| timeline.stack.as_ref());
        match stack {
            Some(stack) => {
                let ink = |layer: &StackLayer| match layer.texture {
                    Texture::None => None,
                    _ => Some(theme.texture_ink(layer.color)),
                };
                let layers = stack.largest().into_iter();
                layers.map(|(one, _)| LegendEntry { stripes: ink(one), ..entry(one.color, &one.name) }).collect()
            }
            None => vec![
                entry(theme.allocated, "allocated"),
                entry(theme.pending, "active (pending free)"),
                entry(theme.reserved_line, "reserved"),
            ],
        }
    }

    /// Reports the content of the details panel as a text for the clipboard.
    ///
    /// # Errors
    /// If the panel is empty.
    pub(super) fn copy_details(&self, report: &mut SessionReport) -> Result<(), String> {
        let text = plain_text(self.details.sent.as_deref().unwrap_or_default());
        report.clipboard = Some(text).filter(|text| !text.is_empty());
        report.clipboard.is_some().then_some(()).ok_or_else(|| "there are no details to copy".to_owned())
    }

    /// Reports the call stack in the details panel as a text for the clipboard.
    ///
    /// # Errors
    /// If the panel shows no call stack.
    pub(super) fn copy_stack(&self, report: &mut SessionReport) -> Result<(), String> {
        let nodes = self.details.sent.as_deref().unwrap_or_default();
        let command = nodes.iter().find_map(crate::details::elements::stack_of);
        let text = command.ok_or("the details show no call stack: select an allocation first")?;
        report.clipboard = Some(text.to_owned());
        Ok(())
    }
}
