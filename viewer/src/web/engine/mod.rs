//! The engine: owns the recording and draws, in a web worker or, where workers are not available,
//! beside the page.
//!
//! Its session does everything that needs no browser; the modules here read files, follow live
//! programs and exchange [messages](crate::protocol) with the page.

mod analyzing;
mod app;
mod byte_source;
mod calls;
mod excerpt;
mod fetching;
mod importing;
mod later_module;
mod live;
mod message_queue;
mod open_file;
mod page_worker;
mod recording_bytes;
mod recording_worker;
mod save;
mod socket;

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;
use web_sys::MessagePort;

use self::app::App;
use super::panic_message;
use crate::command::Command;
use crate::connection::ConnectionEvent;
use crate::link::Link;
use crate::model::Origin;
use crate::open::SaveFormat;
use crate::protocol::{FromEngine, RecordingSource, ToEngine};

/// Starts an engine that exchanges messages with the page at the other end of `port`.
#[wasm_bindgen]
pub fn start_engine(port: MessagePort) -> Result<(), JsValue> {
    later_module::init();
    let app = App::new(port, react)?;
    panic_message::report_to(move |text| app.send(&FromEngine::Panic(text)));
    Ok(())
}

/// Handles a message from the page. `objects` are the files and buffers beside it.
fn react(app: &App, message: ToEngine, objects: Vec<JsValue>) {
    match message {
        ToEngine::Start { address, file } => {
            *app.0.address.borrow_mut() = address;
            let app = app.clone();
            spawn_local(async move {
                match file {
                    RecordingSource::None => open_file::open_address(&app).await,
                    file => open_file::open_embedded_file(&app, &file, objects).await,
                }
                app.send(&FromEngine::Ready);
            });
        }
        ToEngine::Frame(request) => {
            for command in app.frame(&request, objects) {
                execute(app, command);
            }
            later_module::update(app);
            analyzing::update(app);
        }
        ToEngine::Actions(actions, clock_ms) => {
            for command in app.act(&actions, clock_ms) {
                execute(app, command);
            }
        }
        ToEngine::Call(number, call) => calls::answer(app, number, call, objects),
        ToEngine::Link(fragment) => app.change(|state| state.session.go_to_link(&Link::parse(&fragment))),
        ToEngine::GoBack(sources, fragment) => {
            let app = app.clone();
            spawn_local(async move {
                open_file::go_back(&app, &sources, &fragment, objects).await;
                app.send(&FromEngine::WentBack);
            });
        }
        ToEngine::OpenFile(number) => open_file::open_in_background(app, RecordingSource::File(number), objects),
        ToEngine::CompareFile(number) => open_file::compare_in_background(app, RecordingSource::File(number), objects),
        ToEngine::Save(SaveFormat::Snapshot) => save::save_snapshot(app),
        ToEngine::Save(format) => save::save(app, format),
        ToEngine::SaveExcerpt { is_range, is_redacted } => save::save_excerpt(app, is_range, is_redacted),
        ToEngine::CancelOpening => {
            open_file::cancel(app);
            analyzing::cancel(app);
        }
    }
}

/// Executes a command that the session cannot execute, because it needs the connection or the
/// browser.
fn execute(app: &App, command: Command) {
    match command {
        Command::Follow => follow(app),
        Command::LoadAll => live::load_everything(app),
        Command::CompareUrl(url) => {
            open_file::compare_in_background(app, RecordingSource::Url(url), Vec::new());
        }
        // All others are the session's or the page's.
        _ => {}
    }
}

/// Follows the newest event of a live recording; reconnects if the connection has ended.
fn follow(app: &App) {
    let origin = app.0.state.borrow().session.model.origin();
    match origin {
        Origin::Live => app.change(|state| state.session.model.follow()),
        Origin::Disconnected => live::handle(app, ConnectionEvent::WatchRequested),
        Origin::Empty | Origin::File => app.show_message("only the recording of a running program can be followed"),
    }
}
