//! Recordings through a real NATS broker. Needs `nats-server`: `cargo xtask test` installs it and
//! runs these tests.

mod archive;
mod attacks;
mod credentials;
mod faults;
mod harness;
mod open;
mod redaction;
mod summaries;
mod transport;
