//! The recorder's ring with the atomics of [loom](https://docs.rs/loom), which tries every order in
//! which two threads can access it.
//!
//! The code is that of the collector. It is compiled here because it needs other atomics: in the
//! collector, these would need a compiler flag that compiles every dependency again.

#[path = "../../src/ring.rs"]
pub mod ring;
