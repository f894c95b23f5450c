//! The live page of a demo: server, controls, and pushing to `vramscope serve`.

use std::path::PathBuf;

use vramscope_collector::{Controls, Hub, PUSH_VARIABLE, Push, Rank, ServedContent, Server, push_from_env};

use super::arguments::DemoArguments;
use super::recording::{DEVICE, Recording};
use crate::error::{CommandError, Result};
use crate::server::AnnounceOn;
use crate::signals::Interrupts;
use crate::terminal;

/// The page of a demo.
pub(super) struct Page {
    server: Server,
    pub(super) hub: Hub,
    controls: Controls,
}

impl Page {
    /// Starts the server. Call this before a recording's file is created, so that a mistake in the
    /// server's options does not replace an earlier recording.
    pub(super) fn start(arguments: &DemoArguments) -> Result<Self> {
        let (hub, controls) = (Hub::default(), Controls::default());
        let content = ServedContent { controls: Some(controls.clone()), ..ServedContent::live(hub.clone()) };
        Ok(Self { server: arguments.server.start(content)?, hub, controls })
    }

    /// Offers the page's commands, begins to push the recording if an environment variable names a
    /// server, and prints the page's address.
    pub(super) fn announce(&self, arguments: &DemoArguments, recording: &Recording) -> Result<Option<Push>> {
        self.controls.offer_recording(&self.hub, &recording.handle, DEVICE, PathBuf::new());
        recording.offer_empty_cache(&self.controls);
        let address = push_from_env().map_err(CommandError::new)?;
        let push = address.map(|address| Push::start(address, "vramscope demo", Rank::from_env(), &self.hub));
        let push = push.transpose().map_err(|error| CommandError::new(format_args!("{PUSH_VARIABLE}: {error}")))?;
        arguments.server.announce(&self.server, AnnounceOn::Stdout)?;
        Ok(push)
    }

    /// Prints `what`, the result of the run, and serves the page until the command is interrupted.
    pub(super) fn serve(&self, what: impl std::fmt::Display, interrupts: &Interrupts) {
        if !interrupts.requested() {
            let url = self.server.url();
            // Leaves out the token, which is printed only once.
            let url = url.split('?').next().unwrap_or_default();
            terminal::message(format_args!("{what}; serving {url} until Ctrl-C"));
            interrupts.wait();
        }
    }
}
