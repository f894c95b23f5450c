//! The viewer in a browser: the page and the engine behind it.
//!
//! The [`host`] runs on the browser's main thread. The [`engine`] runs in a worker, so that reading
//! and drawing never delay the page; without workers, it runs beside the page. They only exchange
//! [messages](crate::protocol).

mod browser;
mod engine;
mod host;
mod listener;
mod panic_message;
mod port;

pub use engine::start_engine;
pub use host::start;
