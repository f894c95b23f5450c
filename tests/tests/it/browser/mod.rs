//! The page in a real browser, served by the real binary.
//!
//! These tests need Chromium, chromedriver and a binary with the page embedded, so they are
//! ignored by default; `cargo xtask test` sets all of that up and runs them.

mod accessibility;
mod benchmark;
mod connection;
mod first_screen;
mod fleet;
mod golden;
mod layout;
mod live;
mod numbers;
mod page;
mod questions;
mod ranges;
mod saving;
mod what_if;
