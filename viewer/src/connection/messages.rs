//! The page's messages to the user about the live connection.

/// Message after a reconnection found another recording, which the page then shows.
pub(super) const FOLLOWS_NEW_RUN: &str = "A new run has started here. This page now follows it.";
/// Message after a reconnection found another recording, which the page does not show, because the
/// user looks at an earlier moment.
pub(super) const NEW_RUN: &str = "A new run has started here. Press L to watch it.";
/// Message after a reconnection whose stream does not continue where the page's recording ends,
/// while the user looks at an earlier moment.
pub(super) const CANNOT_RESUME: &str = "Reconnected, but cannot resume where the connection ended. This page \
     keeps what it has; press L to show what the server holds now.";
/// Message after the user asked to watch the program and the connection attempt failed.
pub(super) const NO_PROGRAM: &str = "No program is running here. This page keeps the last recording.";
/// Message after the server closed the connection because the page's address lacks the token.
pub(super) const TOKEN_REQUIRED: &str = "This server needs a token. Open the full address that the program printed.";
/// Message after the server closed the connection because too many viewers are connected.
pub(super) const TOO_MANY_VIEWERS: &str = "The server has reached its limit of viewers; trying again.";
/// Message after the page reconnected because it could not decode events as fast as they arrived.
pub(super) const TOO_SLOW: &str =
    "This page could not keep up with the program. It continues with the newest events and counts the missed ones.";
