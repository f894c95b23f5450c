//! The state of the live connection.

/// The state of the live connection, which the page's header shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// The page does not show a live recording: it has not connected yet, or shows a file.
    #[default]
    None,
    /// The program's stream is connected, and its messages are decoded as they arrive.
    Live,
    /// The connection was lost and is being restored.
    Reconnecting,
    /// The server reported that the recording has ended.
    Ended,
    /// The connection was lost or given up; the page reconnects only if the user asks.
    Disconnected,
}

impl ConnectionState {
    /// Returns the state's name in the scripting interface (`window.vramscope`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Ended => "ended",
            Self::Disconnected => "disconnected",
        }
    }
}
