//! Every number of the page equals that of `trace` and `insight`, and that of an independent model
//! of the snapshot, at random moments and in random ranges.
//!
//! With `VRAMSCOPE_FULL=1`, 200 moments and ranges of each recording and 1,000 points of each
//! picture are checked instead of a few, and 20 of the recording `big`.

mod bands;
mod flame;
mod hits;
mod moments;
mod open_recording;
mod pointer;
mod ranges;
mod recordings;
mod rows;
mod subject;
mod tables;
mod texts;
