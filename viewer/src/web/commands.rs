//! The user's commands that buttons and keys share.

use super::app::App;
use super::browser::now_ms;
use super::live;
use crate::connection::ConnectionEvent;
use crate::heatmap::ColorBy;
use crate::model::{Model, Origin};
use crate::playback::SPEEDS;

/// Switches between coloring blocks by state and by category.
pub(super) fn toggle_color(model: &mut Model) {
    model.color_by = match model.color_by {
        ColorBy::State => ColorBy::Category,
        ColorBy::Category => ColorBy::State,
    };
}

/// Starts or pauses playback.
pub(super) fn play_or_pause(app: &App) {
    let clock_ms = now_ms();
    app.change(|state| state.model.play_or_pause(clock_ms));
}

/// Changes playback to the next faster speed (`is_faster`) or the next slower one; stays at the
/// fastest or slowest.
pub(super) fn change_speed(model: &mut Model, is_faster: bool) {
    let speed = model.playback.speed();
    let next = if is_faster { (speed + 1).min(SPEEDS.len() - 1) } else { speed.saturating_sub(1) };
    model.playback.set_speed(next);
}

/// Follows the newest event of a live recording; reconnects if the connection has ended. Does
/// nothing for files.
pub(super) fn follow(app: &App) {
    let origin = app.0.state.borrow().model.origin();
    match origin {
        Origin::Live => app.change(|state| state.model.follow()),
        Origin::Disconnected => live::handle(app, ConnectionEvent::WatchRequested),
        Origin::Empty | Origin::File => {}
    }
}

/// Opens or closes the help dialog.
pub(super) fn toggle_help(app: &App) {
    let help = app.0.state.borrow().page.help.clone();
    if help.open() {
        help.close();
    } else {
        // Fails only if it is open already.
        let _ = help.show_modal();
    }
}

/// Opens the browser's dialog for choosing a file to show.
pub(super) fn choose_file(app: &App) {
    let file = app.0.state.borrow().page.file.clone();
    // Cleared, so that choosing the same file again counts as a change.
    file.set_value("");
    file.click();
}
