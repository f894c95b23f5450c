//! A channel for the items of a recording, so that one thread reads a file and another encodes it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use vramscope_trace::{Annotation, DecodedItem, Definition, Event, MemoryState, RecordingInfo, Relabel, Sink};

/// Number of items (events, definitions, full states) that the reading thread sends at once: enough
/// that waking the receiver costs little, few enough to stay in the CPU's cache.
const BATCH_ITEMS: usize = 1024;
/// Maximum number of batches in the channel. The reading thread waits while the channel is full.
const CHANNEL_BATCHES: usize = 16;

/// A sink that sends a recording's items (events, definitions, full states) to another thread, in
/// batches.
pub(crate) struct ItemSender {
    batch: Vec<DecodedItem>,
    channel: SyncSender<Vec<DecodedItem>>,
}

impl ItemSender {
    /// Adds an item to the batch, and sends the batch when it is full.
    fn push(&mut self, item: DecodedItem) {
        self.batch.push(item);
        if self.batch.len() == BATCH_ITEMS {
            self.send();
        }
    }

    /// Sends the batch, which may be incomplete; waits while the channel is full.
    fn send(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_ITEMS));
        // The receiver ends early only on a write error, which it reports itself.
        let _ = self.channel.send(batch);
    }
}

impl Drop for ItemSender {
    fn drop(&mut self) {
        self.send();
    }
}

impl Sink for ItemSender {
    fn event(&mut self, event: &Event) {
        self.push(DecodedItem::Event(*event));
    }
    fn define(&mut self, definition: &Definition) {
        self.push(DecodedItem::Define(definition.clone()));
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.push(DecodedItem::Annotation(*annotation));
    }
    fn relabel(&mut self, relabel: &Relabel) {
        self.push(DecodedItem::Relabel(*relabel));
    }
    fn replace_state(&mut self, state: &MemoryState) {
        self.push(DecodedItem::FullState(Box::new(state.clone())));
    }
}

/// The sending end of the channel before the recording's description has been sent.
pub(crate) struct PendingSender(SyncSender<Vec<DecodedItem>>);

impl PendingSender {
    /// Sends the recording's description and returns the sink for the recording's items.
    pub(crate) fn begin(self, info: &RecordingInfo) -> ItemSender {
        ItemSender { batch: vec![DecodedItem::Info(info.clone())], channel: self.0 }
    }
}

/// Runs `read` on another thread and passes the recording's items that it sends (events,
/// definitions, full states) to a sink on this thread.
///
/// `make_sink` creates the sink from the recording's description. Returns when both are done; the
/// sink is `None` if `read` sent nothing.
pub(crate) fn read_on_thread<T: Send, S: Sink>(
    read: impl FnOnce(PendingSender) -> T + Send,
    make_sink: impl FnOnce(&RecordingInfo) -> S,
) -> (T, Option<S>) {
    let (sender, receiver) = sync_channel(CHANNEL_BATCHES);
    thread::scope(|scope| {
        let reader = scope.spawn(move || read(PendingSender(sender)));
        let sink = receive(&receiver, make_sink);
        // Unblocks the reader if the sink ended first.
        drop(receiver);
        (reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), sink)
    })
}

/// Passes received items to the sink that `make_sink` creates from the recording's description,
/// until the sender is dropped. Returns `None` if no description arrived first.
fn receive<S: Sink>(receiver: &Receiver<Vec<DecodedItem>>, make_sink: impl FnOnce(&RecordingInfo) -> S) -> Option<S> {
    let mut items = receiver.iter().flatten();
    let Some(DecodedItem::Info(info)) = items.next() else { return None };
    let mut sink = make_sink(&info);
    for item in items {
        match item {
            DecodedItem::Info(_) => {}
            DecodedItem::Define(definition) => sink.define(&definition),
            DecodedItem::FullState(state) => sink.replace_state(&state),
            DecodedItem::Event(event) => sink.event(&event),
            DecodedItem::Annotation(annotation) => sink.annotation(&annotation),
            DecodedItem::Relabel(relabel) => sink.relabel(&relabel),
        }
    }
    Some(sink)
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, EventKind, MemorySink};

    use super::*;

    #[test]
    fn all_items_arrive_in_order() {
        let event = |lost: u64| Event { device: DeviceId(1), time_ns: lost, kind: EventKind::Gap { lost } };
        let info = RecordingInfo { source: "train.py".to_owned(), ..RecordingInfo::default() };
        for count in [0, 1, BATCH_ITEMS as u64 - 1, 100_000] {
            let read = |pending: PendingSender| {
                let mut sender = pending.begin(&info);
                sender.define(&Definition::String("name".to_owned()));
                (0..count).for_each(|number| sender.event(&event(number)));
                sender.replace_state(&MemoryState::default());
                count
            };
            let (returned, memory) = read_on_thread(read, |received| {
                assert_eq!(received, &info);
                MemorySink::default()
            });
            let memory = memory.expect("the reader sent items");
            assert_eq!(returned, count);
            assert!(memory.events.iter().copied().eq((0..count).map(event)));
            assert_eq!((memory.definitions.len(), memory.states.len()), (1, 1));
        }
        let (returned, memory) = read_on_thread(|_| "nothing", |_| MemorySink::default());
        assert!(returned == "nothing" && memory.is_none());
    }
}
