//! `/fleet/ws`: all ranks of a training run, for the page that shows them.
//!
//! The server sends one text message, `{"run": "NAME", "allowed": true}` with the name of the run
//! and whether this client may give commands. Then it sends views (the state of all ranks) as
//! binary messages, at most ten a second. A client that receives slowly skips views, because a view
//! is encoded when the previous one has been sent. The client sends commands as JSON:
//! `{"open": "IDENTITY"}` and `{"close": "IDENTITY"}`. Only a command that fails is answered:
//! `{"error": "…"}`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, close_code};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::access::Rights;
use super::fleet_feed::FleetFeed;
use super::guard::TOKEN_REQUIRED;
use super::live::wait_until_stopping;
use super::sockets;

/// Shortest time between two messages with views.
const VIEW_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of commands of one client that are carried out in one second; further ones fail.
const MAX_COMMANDS: u32 = 20;

/// A command of a client. Its argument is the identity of a process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FleetCommand {
    Open(String),
    Close(String),
}

/// Sends the views of a fleet to a client and carries out its commands, until the client
/// disconnects or the server stops.
pub(super) async fn follow(
    mut socket: WebSocket,
    feed: Arc<dyn FleetFeed>,
    rights: Rights,
    mut stopping: watch::Receiver<bool>,
) {
    let mut client = feed.client();
    let greeting = json!({ "run": feed.run(), "allowed": rights.can_command });
    if socket.send(Message::Text(greeting.to_string().into())).await.is_err() {
        return;
    }
    let mut ticks = interval(VIEW_INTERVAL);
    // After a message that took long to send, the next one follows a full interval later.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut tick, mut commands) = (0_u32, 0);
    loop {
        let message = tokio::select! {
            biased;
            () = wait_until_stopping(&mut stopping) => {
                return sockets::close(socket, close_code::AWAY, "the server is stopping".into()).await;
            }
            _ = ticks.tick() => {
                tick = tick.wrapping_add(1);
                if tick.is_multiple_of(10) {
                    commands = 0;
                }
                client.update().map(|view| Message::Binary(view.into()))
            }
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) => {
                    commands += 1;
                    run_command(&*feed, rights, commands, &text).map(|reason| {
                        Message::Text(json!({ "error": reason }).to_string().into())
                    })
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_))) => None,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
        };
        // If a client receives nothing for long, sending returns an error and the connection ends.
        if let Some(message) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

/// Carries out a client's command, its `count`th of this second. Returns why it failed; `None` if
/// it succeeded.
fn run_command(feed: &dyn FleetFeed, rights: Rights, count: u32, text: &str) -> Option<String> {
    if !rights.can_command {
        return Some(TOKEN_REQUIRED.trim_end().to_owned());
    }
    if count > MAX_COMMANDS {
        return Some("too many commands; try again later".to_owned());
    }
    match serde_json::from_str(text) {
        Ok(FleetCommand::Open(identity)) => feed.open(&identity).err(),
        Ok(FleetCommand::Close(identity)) => feed.close(&identity).err(),
        Err(_) => Some(r#"a command is {"open": "IDENTITY"} or {"close": "IDENTITY"}"#.to_owned()),
    }
}

#[cfg(test)]
mod tests;
