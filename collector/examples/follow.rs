//! Follows the live recording of another program and prints its largest live allocations.
//!
//! Usage: `cargo run --example follow -- http://127.0.0.1:7791/?token=…`, with the URL that the
//! other program printed.

use std::error::Error;
use std::time::Duration;

use vramscope_collector::{Address, FollowEvent, FollowFrom, FollowOptions, Follower};
use vramscope_trace::Recording;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(url) = std::env::args().nth(1) else {
        return Err("usage: follow URL".into());
    };
    let options = FollowOptions {
        address: Address::parse(&url)?,
        from: FollowFrom::Newest,
        ca: None,
        retry_time: Duration::from_secs(30),
    };
    let mut follower = Follower::connect(options)?;
    let mut recording = Recording::new();
    loop {
        match follower.next(Duration::from_millis(500)) {
            // Whole chunks; `Recording` keeps the memory state at their end.
            FollowEvent::Chunks(bytes) => {
                recording.push(&bytes)?;
                print_largest(&recording);
            }
            FollowEvent::Missed(events) => println!("{events} events were skipped: this client is too slow"),
            // The address now serves another program.
            FollowEvent::NewRecording => recording = Recording::new(),
            FollowEvent::Disconnected(reason) => println!("connection lost: {reason}; trying again"),
            FollowEvent::Resumed | FollowEvent::ResumedWithGap => println!("connected again"),
            FollowEvent::Nothing => {}
            FollowEvent::Ended => return Ok(()),
            FollowEvent::GaveUp(reason) => return Err(reason.into()),
        }
    }
}

fn print_largest(recording: &Recording) {
    for (device, state) in recording.end_state().devices() {
        let mut blocks: Vec<_> = state.blocks().collect();
        blocks.sort_by_key(|block| std::cmp::Reverse(block.size));
        let sizes: Vec<_> = blocks.iter().take(5).map(|block| block.size.to_string()).collect();
        let allocated = state.counters().allocated;
        println!("device {}: {allocated} bytes allocated; largest blocks: {}", device.0, sizes.join(", "));
    }
}
