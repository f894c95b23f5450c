//! A viewer that does not read for so long that the program goes on without it: it must be told exactly what it missed, and then see what the pool
//! holds; one beside it that reads must lack nothing.

use std::thread;
use std::time::Duration;

use vramscope_trace::digest;

use super::PATIENCE;
use super::chaos::{address, through};
use crate::load::Load;
use crate::process::Taken;
use crate::proxy::Proxy;
use crate::watcher::{Manner, Watcher};

/// A viewer sleeps for so long, at so many events a second.
///
/// # Errors
/// What is not as it should be.
///
/// # Panics
/// Where the program does not run.
pub fn slow(rate: u64, time: Duration) -> Result<String, String> {
    let mut load = Load::start(&["--rate", &rate.to_string()]);
    // Between them little is held for one that does not read.
    let proxy = Proxy::start(address(load.url()));
    let viewer = Watcher::start(load.url(), Manner::WHOLE);
    let sleeper = Watcher::start(&through(&proxy, load.url()), Manner::WHOLE);
    sleeper.wait_for_event(1, PATIENCE).map(drop)?;
    sleeper.stall(time);
    thread::sleep(time + Duration::from_secs(2));
    let moment = load.moment();
    let resident = Taken::by(load.pid()).unwrap_or_default().resident_bytes >> 20;
    let mut digests = Vec::new();
    let mut lacking = Vec::new();
    for (name, watcher) in [("the sleeper", &sleeper), ("the other", &viewer)] {
        let seen = watcher.wait_for_event(moment.events(), PATIENCE)?;
        let here = |error: String| format!("{name}: {error}");
        moment.check(seen.recording.end_state(), seen.recording.definitions()).map_err(here)?;
        let (lost, events) = (seen.recording.lost_events(), seen.recording.events());
        if lost != seen.missed || events + lost + seen.recording.first_event() != moment.events() {
            return Err(here(format!("{events} events and {lost} lost of {}, told {}", moment.events(), seen.missed)));
        }
        lacking.push(lost);
        digests.push(digest(seen.recording.end_state()));
    }
    match lacking[..] {
        [slept, 0] if slept > 0 && digests[0] == digests[1] => Ok(format!(
            "{rate} events a second: who slept for {time:?} was told of {slept} of {} events missed, and shows what the pool \
             holds; who did not lacks none; the program took {resident} MiB",
            moment.events()
        )),
        _ => Err(format!("events lacking {lacking:?}, digests {digests:x?}")),
    }
}
