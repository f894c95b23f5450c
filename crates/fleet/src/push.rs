//! Starts a push to a broker, for addresses with the schemes `nats` and `tls`.

use std::io;
use std::sync::Arc;

use vramscope_collector::{Hub, Process, Push, PushServer, Rank, register_push_scheme};

use crate::address::FleetAddress;
use crate::subjects;
use crate::transport::NatsTransport;

/// Registers the schemes `nats://` and `tls://` for addresses to push to, such as that in the
/// environment variable `VRAMSCOPE_PUSH`.
pub fn register() {
    for scheme in ["nats", "tls"] {
        register_push_scheme(scheme, |url| Ok(Arc::new(FleetAddress::parse(url)?)));
    }
}

impl PushServer for FleetAddress {
    fn start(&self, program: &str, rank: Rank, hub: &Hub) -> io::Result<Push> {
        let identity = subjects::process_identity(&hub.identity().to_string(), rank.global);
        let process = Process::this(identity, program, rank, hub.is_redacted());
        Push::start_with(NatsTransport::new(self.for_rank(rank.global), hub)?, self.to_string(), process, hub)
    }
}
