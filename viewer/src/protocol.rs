//! Messages between the page and the engine.
//!
//! The *page* (the browser's main thread) owns the elements and receives input. The *engine* (a web
//! worker) owns the recording, computes texts and pictures, and draws them. They exchange the
//! messages of this module, encoded with postcard; files and pictures travel beside a message, in
//! order.
//!
//! The page asks for frames, at most one at a time and never more often than the browser paints;
//! the engine asks it to when something has changed ([`FromEngine::FrameWanted`]).

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::open::SaveFormat;
use crate::page_texts::PageTexts;
use crate::saved_picture::SavedPicture;
use crate::ui::Node;

/// A picture of the page that the engine draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Surface {
    /// The timeline at the top.
    Timeline,
    /// The picture of the left pane.
    Left,
    /// The picture of the right pane.
    Right,
}

impl Surface {
    /// All pictures.
    pub const ALL: [Self; 3] = [Self::Timeline, Self::Left, Self::Right];
    /// The pictures of the panes, from left to right.
    pub const PANES: [Self; 2] = [Self::Left, Self::Right];

    /// Returns the index of the picture's pane, 0 (left) or 1 (right); `None` for the timeline.
    #[must_use]
    pub const fn pane(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }
}

/// The size of the page's pictures, its scale and its colors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Screen {
    /// Width and height in pixels of each picture, in the order of [`Surface::ALL`]; (0, 0) if it
    /// is not on the page.
    pub sizes: [(u32, u32); 3],
    /// Pixels per unit of layout; a unit is a CSS pixel at the default font size.
    pub scale: f32,
    /// Whether the dark colors are used.
    pub is_dark: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self { sizes: [(1, 1); 3], scale: 1.0, is_dark: false }
    }
}

/// A pointer action on a picture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PointerKind {
    /// It was pressed.
    Down,
    /// It moved; `buttons` tells whether it is pressed.
    Move,
    /// It was released.
    Up,
    /// It left the picture.
    Leave,
    /// It was pressed and released twice.
    DoubleClick,
    /// The wheel was turned by (horizontal, vertical) CSS pixels.
    Wheel(f64, f64),
    /// Two fingers changed their distance by this factor.
    Pinch(f64),
}

/// A pointer event on a picture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pointer {
    /// The picture.
    pub surface: Surface,
    /// The action of the pointer.
    pub kind: PointerKind,
    /// Pixels from the picture's left edge.
    pub x: f64,
    /// Pixels from the picture's upper edge.
    pub y: f64,
    /// Whether Shift is held, or the middle button is used.
    pub shift: bool,
    /// Whether Ctrl or Meta is held.
    pub ctrl: bool,
    /// Whether Alt is held.
    pub alt: bool,
    /// Whether it is a finger.
    pub is_touch: bool,
}

/// Something that the user did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// A command.
    Command(Command),
    /// A pointer event.
    Pointer(Pointer),
}

/// A request for a frame, with the user's actions since the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FrameRequest {
    /// The page's clock in milliseconds.
    pub clock_ms: f64,
    /// Size, scale and colors, if they have changed.
    pub screen: Option<Screen>,
    /// The user's actions, in order.
    pub actions: Vec<Action>,
}

/// The source of a recording on the page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordingSource {
    /// There is no recording.
    #[default]
    None,
    /// The running program that serves the page.
    Program,
    /// A URL, as the user or the page's address states it.
    Url(String),
    /// A file that travels beside the message, with the page's number for it.
    File(u64),
}

/// The sources of the recording on the page and of the recording that it is compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The recording on the page.
    pub recording: RecordingSource,
    /// The recording that it is compared with.
    pub second: RecordingSource,
}

/// A call of `window.vramscope` that the engine answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// Opens a recording; answered when it is on the screen.
    Open(RecordingSource),
    /// Compares with a recording; answered when the comparison is on the screen.
    Compare(RecordingSource),
    /// Goes to the moment after this many events; answered when it is on the screen.
    Seek(u64),
    /// Returns the rows of a view, described by an object in JSON.
    Rows {
        /// The view's name.
        view: String,
        /// Options in JSON.
        options: String,
    },
    /// Selects a range of event numbers, or clears the selection; answered when that is on the
    /// screen.
    SelectRange(Option<(u64, u64)>),
    /// Shows a view; answered when it is on the screen.
    Show(String),
    /// Returns a checksum of the memory state on the screen.
    Digest,
}

/// A message to the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToEngine {
    /// Starts the engine: opens the recording in the page's address, or the file beside the
    /// message.
    Start {
        /// The page's whole address.
        address: String,
        /// The file that travels beside the message, if one does.
        file: RecordingSource,
    },
    /// Asks for a frame. Buffers of pictures that were shown travel beside the message.
    Frame(FrameRequest),
    /// The user's actions before the next message, and the page's clock in milliseconds.
    Actions(Vec<Action>, f64),
    /// A call with the number under which to answer it.
    Call(u32, Call),
    /// The fragment of the page's address has changed.
    Link(String),
    /// The user went back or forward in the browser's history: shows these recordings, whose files
    /// travel beside the message, at the view of a URL fragment.
    GoBack(Sources, String),
    /// Opens the file beside the message, which has this number.
    OpenFile(u64),
    /// Compares with the recording in the file beside the message, which has this number.
    CompareFile(u64),
    /// Asks for the recording's bytes, to save them.
    Save(SaveFormat),
    /// Asks for a recording to save: a part, or without names.
    SaveExcerpt {
        /// Whether it is of the selected or visible range; else of everything.
        is_range: bool,
        /// Whether placeholders replace the names.
        is_redacted: bool,
    },
    /// Stops opening a file.
    CancelOpening,
}

/// The stage of the page: a text while loading, the start page, or a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageStage {
    /// A file is being opened, or the live connection has no events yet.
    Loading,
    /// Nothing is open.
    StartPage,
    /// A recording.
    Content,
}

/// The content of a pane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PaneContent {
    /// The name of the view.
    pub view: String,
    /// Whether the pane has a picture.
    pub has_picture: bool,
    /// Description of the picture, for screen readers.
    pub picture_label: String,
    /// Controls in the pane's header.
    pub controls: Vec<Node>,
    /// Legend of the picture's colors.
    pub legend: Vec<Node>,
    /// Content beside or below the picture.
    pub content: Vec<Node>,
}

/// The tooltip of the timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tooltip {
    /// Distance of the pointer from the picture's left edge, in pixels of the picture.
    pub x: i32,
    /// Content.
    pub content: Vec<Node>,
}

/// A drawn frame of the page: the parts that have changed since the last frame. The pixels of the
/// pictures (RGBA) travel beside the message, in the order of `pictures`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageUpdate {
    /// The pictures that have changed, with their width and height in pixels.
    pub pictures: Vec<(Surface, u32, u32)>,
    /// Texts of the page, if they have changed.
    pub texts: Option<Box<PageTexts>>,
    /// Contents of the left and the right pane, where they have changed.
    pub panes: [Option<PaneContent>; 2],
    /// Number of panes: 1 or 2.
    pub pane_count: u8,
    /// Number of lanes of devices for which the timeline needs room.
    pub lanes: u8,
    /// The state that `window.vramscope.state()` returns, in JSON.
    pub state: String,
    /// The view as a URL fragment.
    pub link: String,
    /// Number of changes of the view so far that are entries of the browser's history.
    pub entry: u64,
    /// The texts of the memory that is lit.
    pub lit: Vec<String>,
    /// Milliseconds after which another frame is needed, because texts are older than the pictures.
    pub next_frame_ms: Option<f64>,
    /// Whether another frame is needed at once, because something moves.
    pub is_animated: bool,
    /// Content of the bar above the timeline, if it has changed.
    pub timeline_bar: Option<Vec<Node>>,
    /// The tooltip of the timeline, if it has changed; without content, it is hidden.
    pub tooltip: Option<Tooltip>,
    /// Content of the bar with the verdict, if it has changed.
    pub verdict: Option<Vec<Node>>,
    /// Content of the details panel, if it has changed.
    pub details: Option<Vec<Node>>,
    /// Whether the recording is of a running program, or of one whose connection has ended.
    pub is_live: bool,
    /// Whether the program is connected.
    pub is_connected: bool,
}

/// A message from the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromEngine {
    /// A drawn frame.
    Frame(Box<PageUpdate>),
    /// Something has changed: the page should ask for a frame, after this many milliseconds.
    FrameWanted(f64),
    /// The answer to a call: JSON, or an error's message.
    Answer(u32, Result<String, String>),
    /// A message for the user; `None` hides the last one.
    Message(Option<String>),
    /// Another stage of the page, with title and text.
    Stage(PageStage, String, String),
    /// Progress of an opening, 0 to 1, with a text; `None` when it has ended.
    Progress(Option<(f64, String)>),
    /// The recording to save under this name, as a blob beside the message or at a URL relative to
    /// the page.
    Download {
        /// File name.
        name: String,
        /// URL; empty if the blob travels beside the message.
        url: String,
        /// Whether the page puts the recording into an HTML file.
        is_html: bool,
    },
    /// A text for the clipboard.
    Clipboard(String),
    /// Title, legend and other parts around the pixels of a picture that the page saves as a file.
    Picture(Surface, Box<SavedPicture>),
    /// The recordings on the page have changed.
    Sources(Sources),
    /// The view that [`ToEngine::GoBack`] requested is on the screen, or cannot be shown.
    WentBack,
    /// The running program's commands may have changed: ask its server for them.
    LoadControls,
    /// The engine is ready: the recording in the page's address is open, or could not be opened.
    Ready,
    /// The engine has stopped because of an internal error.
    Panic(String),
}
