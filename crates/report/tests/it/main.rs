//! Tests of reports, with the samples and golden pictures of the viewer's tests.

#[path = "../../../../viewer/src/testing/mod.rs"]
mod testing;

mod report;
