//! Two threads for an import: one reads and tells, the other encodes what it is told and writes.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use vramscope_trace::{Annotation, Definition, Event, Info, Item, MemoryState, Sink};

/// Items that go over together. As many as make a waking up cheap, few enough that a batch stays in the processor's cache.
const BATCH_ITEMS: usize = 1024;
/// Batches that may wait.
const BATCHES: usize = 16;

/// A sink whose items are taken in another thread.
pub(crate) struct Relay {
    batch: Vec<Item>,
    sender: SyncSender<Vec<Item>>,
}

impl Relay {
    fn push(&mut self, item: Item) {
        self.batch.push(item);
        if self.batch.len() == BATCH_ITEMS {
            self.send();
        }
    }

    fn send(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_ITEMS));
        // Nobody listens any more where the other side cannot write; it says why.
        let _ = self.sender.send(batch);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.send();
    }
}

impl Sink for Relay {
    fn event(&mut self, event: &Event) {
        self.push(Item::Event(*event));
    }
    fn define(&mut self, definition: &Definition) {
        self.push(Item::Define(definition.clone()));
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.push(Item::Annotation(*annotation));
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.push(Item::FullState(Box::new(state.clone())));
    }
}

/// Runs `tell` in a thread of its own, and gives what it puts into its [`Relay`] to the sink that `begin` makes once it says what comes.
/// Both are done when this returns. The sink is `None` where nothing was told.
pub(crate) fn relay<T: Send, S: Sink>(
    tell: impl FnOnce(Opening) -> T + Send,
    begin: impl FnOnce(&Info) -> S,
) -> (T, Option<S>) {
    let (sender, receiver) = sync_channel(BATCHES);
    thread::scope(|scope| {
        let telling = scope.spawn(move || tell(Opening(sender)));
        let sink = take(&receiver, begin);
        // The other side need not wait for anyone.
        drop(receiver);
        (telling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), sink)
    })
}

/// The way to a [`Relay`].
pub(crate) struct Opening(SyncSender<Vec<Item>>);

impl Opening {
    /// Begins to tell.
    pub(crate) fn begin(self, info: &Info) -> Relay {
        Relay { batch: vec![Item::Info(info.clone())], sender: self.0 }
    }
}

fn take<S: Sink>(receiver: &Receiver<Vec<Item>>, begin: impl FnOnce(&Info) -> S) -> Option<S> {
    let mut items = receiver.iter().flatten();
    let Some(Item::Info(info)) = items.next() else { return None };
    let mut sink = begin(&info);
    for item in items {
        match item {
            Item::Info(_) => {}
            Item::Define(definition) => sink.define(&definition),
            Item::FullState(state) => sink.full_state(&state),
            Item::Event(event) => sink.event(&event),
            Item::Annotation(annotation) => sink.annotation(&annotation),
        }
    }
    Some(sink)
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, EventKind, Memory};

    use super::*;

    #[test]
    fn everything_arrives_in_order() {
        let event = |lost: u64| Event { device: DeviceId(1), time_ns: lost, kind: EventKind::Gap { lost } };
        let info = Info { source: "here".to_owned(), ..Info::default() };
        for count in [0, 1, BATCH_ITEMS as u64 - 1, 100_000] {
            let tell = |opening: Opening| {
                let mut relay = opening.begin(&info);
                relay.define(&Definition::String("name".to_owned()));
                (0..count).for_each(|number| relay.event(&event(number)));
                relay.full_state(&MemoryState::default());
                count
            };
            let (told, memory) = relay(tell, |got| {
                assert_eq!(got, &info);
                Memory::default()
            });
            let memory = memory.expect("something was told");
            assert_eq!(told, count);
            assert!(memory.events.iter().copied().eq((0..count).map(event)));
            assert_eq!((memory.definitions.len(), memory.states.len()), (1, 1));
        }
        let (told, memory) = relay(|_| "nothing", |_| Memory::default());
        assert!(told == "nothing" && memory.is_none());
    }
}
