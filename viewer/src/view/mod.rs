//! What several views use: their inputs, controls, tables, and cached results.

pub mod caches;
pub mod computed;
pub mod context;
pub mod controls;
pub mod fit;
pub mod groups;
pub mod searches;
pub(crate) mod small_map;
pub mod table;
pub(crate) mod table_builder;
