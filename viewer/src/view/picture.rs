//! The inputs of views' pictures, and when a picture must be drawn again.

use std::cell::OnceCell;

use vramscope_draw::MomentAxis;

/// Number of frames for which the view must stay unchanged before values are computed from many
/// events, which takes up to 30 ms.
pub(crate) const QUIET_FRAMES: u32 = 5;

/// The inputs of a picture that the session provides: its size and others.
pub struct PictureFrame<'a> {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Pixels per unit of layout; a unit is a CSS pixel at the default font size.
    pub scale: f32,
    /// Whether the dark colors are used.
    pub is_dark: bool,
    /// The page's clock, in milliseconds.
    pub clock_ms: f64,
    /// The range of time that the timeline shows if it is only a part, in nanoseconds.
    pub zoomed_ns: Option<(u64, u64)>,
    /// Whether the recording grows or is being read.
    pub is_growing: bool,
    /// Whether the newest event is followed.
    pub is_following: bool,
    /// Creates the axis of a chart whose columns show the moments of the timeline's columns.
    pub create_axis: &'a dyn Fn() -> MomentAxis,
    /// The axis, once it is needed.
    pub axis: OnceCell<MomentAxis>,
}

impl PictureFrame<'_> {
    /// Returns the axis of a chart: its columns show the moments of the timeline's columns; the
    /// timeline may be wider. The axis has no columns until the timeline has been computed.
    pub fn axis(&self) -> &MomentAxis {
        self.axis.get_or_init(self.create_axis)
    }

    /// Creates the key of a picture. `numbers` are the view's inputs of the picture.
    pub(crate) fn key(&self, numbers: Vec<u64>) -> PictureKey {
        PictureKey { size: self.size, scale: self.scale, is_dark: self.is_dark, numbers, edges: Vec::new() }
    }

    /// Creates the key of a chart with the columns of the timeline. `numbers` are the view's inputs
    /// of the picture.
    pub(crate) fn chart_key(&self, numbers: Vec<u64>) -> PictureKey {
        PictureKey { edges: self.axis().edges().to_vec(), ..self.key(numbers) }
    }
}

/// The inputs of a picture's base, the picture without cursor and highlights; the base is drawn
/// again when they change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PictureKey {
    pub(crate) size: (u32, u32),
    pub(crate) scale: f32,
    pub(crate) is_dark: bool,
    /// The view's own inputs.
    pub(crate) numbers: Vec<u64>,
    /// The moments of a chart's columns.
    pub(crate) edges: Vec<u64>,
}

/// Input on a picture that changes how it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PictureInput {
    /// The wheel was turned at a pixel.
    Wheel {
        /// The pixel.
        point: (i32, i32),
        /// Movement (horizontal, vertical) in pixels of the picture.
        pixels: (f64, f64),
        /// Factor by which it zooms in.
        factor: f64,
        /// Whether Ctrl or Meta is held.
        ctrl: bool,
        /// Whether Alt is held.
        alt: bool,
        /// Whether Shift is held.
        shift: bool,
    },
    /// The pointer was pressed at a pixel. A view that answers it, because a control of the picture
    /// is there, gets the movements until the release, and no click.
    Press((i32, i32)),
    /// The pressed pointer moved the picture by (horizontal, vertical) pixels.
    Drag {
        /// The pixel under the pointer.
        point: (i32, i32),
        /// The movement of the picture's content: positive to the right and down.
        pixels: (i32, i32),
        /// Whether the pointer is a finger.
        is_touch: bool,
    },
    /// Two fingers changed their distance by a factor around a pixel.
    Pinch((i32, i32), f64),
    /// The pointer was pressed and released twice.
    DoubleClick,
    /// A command zooms by a factor around the selection, or around the middle.
    Zoom(f64),
    /// A command shows the whole picture.
    Fit,
}
