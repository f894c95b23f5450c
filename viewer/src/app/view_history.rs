//! Undo and redo of changes of the view, and the changes that browsers go back to.
//!
//! After each frame, the session notes its [`Link`]. If the user has changed it, the link before is
//! kept to be undone. The steps of one gesture (a drag, turns of the wheel, a held key) are one
//! change. What changes by itself, such as the moment while a live recording is followed, cannot be
//! undone.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};

use crate::command::{Command, HistoryEffect};
use crate::link::Link;
use crate::protocol::{Pointer, PointerKind, Surface};

/// Maximum number of changes that can be undone.
const MAX_CHANGES: usize = 200;
/// Maximum time in milliseconds between two steps that are undone as one change.
const MERGE_MS: f64 = 800.0;

/// The user's action that changed the view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cause {
    /// A command with its arguments. Immediate repetitions, as by a held key, belong to one change.
    Command(Command),
    /// A seek or range of a script, or a step from event to event. Immediate repetitions belong to
    /// one change, whatever their arguments are.
    Repeated(Discriminant<Command>),
    /// The wheel, or two fingers, on a picture.
    Wheel(Surface),
    /// A press of a pointer until it is released, or playback until it is paused; gestures are
    /// numbered.
    Gesture(u64),
}

impl Cause {
    /// Returns true if a change caused by `self`, `elapsed_ms` milliseconds after a change caused
    /// by `before`, belongs to that earlier change.
    fn continues(&self, before: &Self, elapsed_ms: f64) -> bool {
        match (self, before) {
            (Self::Gesture(number), Self::Gesture(other)) => number == other,
            (Self::Command(command), Self::Command(other)) if is_gradual(command) => {
                let are_steps = matches!((command, other), (Command::Step(_), Command::Step(_)));
                (are_steps || command == other) && elapsed_ms <= MERGE_MS
            }
            _ => self == before && elapsed_ms <= MERGE_MS,
        }
    }

    /// Returns true if a change from `before` to `after` is an entry of the browser's history: the
    /// user has opened, selected or gone to something.
    fn is_entry(&self, before: &Link, after: &Link) -> bool {
        match self {
            Self::Command(command) => !is_gradual(command),
            Self::Repeated(_) => true,
            Self::Wheel(_) => false,
            Self::Gesture(_) => {
                let gradual =
                    Link { event: before.event, range: before.range.clone(), zoom: before.zoom, ..after.clone() };
                gradual != *before
            }
        }
    }
}

/// Returns true if a command changes the view in small steps.
fn is_gradual(command: &Command) -> bool {
    command.history_effect() == HistoryEffect::Step
}

/// The views that the user has seen, as links.
#[derive(Default)]
pub(super) struct ViewHistory {
    /// The views before the one on the screen, oldest first.
    past: VecDeque<Link>,
    /// The views that were undone, the next one last.
    future: Vec<Link>,
    /// The view on the screen, with the recording's number; `None` before the first frame.
    shown: Option<(u64, Link)>,
    /// The cause of the last change, and the page's clock then.
    last: Option<(Cause, f64)>,
    /// The user's action since the last frame.
    cause: Option<Cause>,
    /// Number of gestures so far.
    gestures: u64,
    /// Number of entries for the browser's history so far.
    entries: u64,
}

impl ViewHistory {
    /// Records a command of the user as the cause of the next change of the view.
    pub(super) fn commanded(&mut self, command: &Command) {
        match command.history_effect() {
            HistoryEffect::None => {}
            HistoryEffect::Gesture => self.begin_gesture(),
            HistoryEffect::Step | HistoryEffect::Change => self.cause = Some(Cause::Command(command.clone())),
        }
    }

    /// Records a command as the cause of the next change of the view. Changes by one command in
    /// quick succession are one change, even if its arguments differ.
    pub(super) fn repeated(&mut self, command: &Command) {
        self.cause = Some(Cause::Repeated(discriminant(command)));
    }

    /// Records a pointer event as the cause of the next change of the view.
    pub(super) fn pointed(&mut self, pointer: &Pointer) {
        match pointer.kind {
            PointerKind::Down | PointerKind::DoubleClick => self.begin_gesture(),
            PointerKind::Wheel(..) | PointerKind::Pinch(_) => self.cause = Some(Cause::Wheel(pointer.surface)),
            PointerKind::Move | PointerKind::Up | PointerKind::Leave => {}
        }
    }

    /// Starts a new gesture: a pointer was pressed, or playback has begun or ended.
    fn begin_gesture(&mut self) {
        self.gestures += 1;
        self.cause = Some(Cause::Gesture(self.gestures));
    }

    /// Records that the last gesture continues: a pointer is pressed, or the recording is being
    /// played.
    pub(super) fn gesture_continues(&mut self) {
        self.cause.get_or_insert(Cause::Gesture(self.gestures));
    }

    /// Records the view that is on the screen after a frame. `recording` is the recording's number;
    /// the views of another one are forgotten. `clock_ms` is the page's clock.
    pub(super) fn record_view(&mut self, recording: u64, link: &Link, clock_ms: f64) {
        let cause = self.cause.take();
        let Some((_, before)) = self.shown.replace((recording, link.clone())).filter(|(known, _)| *known == recording)
        else {
            (self.past, self.future, self.last) = Default::default();
            return;
        };
        let Some(cause) = cause.filter(|_| before != *link) else { return };
        let continues = self.last.as_ref().is_some_and(|(last, at_ms)| cause.continues(last, clock_ms - at_ms));
        let is_entry = cause.is_entry(&before, link);
        self.last = Some((cause, clock_ms));
        self.future.clear();
        if continues {
            return;
        }
        self.entries += u64::from(is_entry);
        self.past.push_back(before);
        if self.past.len() > MAX_CHANGES {
            self.past.pop_front();
        }
    }

    /// Stores the view on the screen as a change to undo, because the view of a link will replace
    /// it.
    pub(super) fn replaced(&mut self) {
        self.cause = None;
        self.last = None;
        if let Some((_, shown)) = &self.shown {
            self.past.push_back(shown.clone());
            self.future.clear();
        }
    }

    /// Steps back by one change: returns the view before it, which the caller shows; `None` if
    /// there is no change to undo.
    pub(super) fn undo(&mut self) -> Option<Link> {
        let link = self.past.pop_back()?;
        let shown = self.take_shown(&link);
        self.future.extend(shown);
        Some(link)
    }

    /// Steps forward by one undone change: returns the view before the undo, which the caller
    /// shows; `None` if the view has changed since, or nothing was undone.
    pub(super) fn redo(&mut self) -> Option<Link> {
        let link = self.future.pop()?;
        let shown = self.take_shown(&link);
        self.past.extend(shown);
        Some(link)
    }

    /// Returns the view on the screen and stores `link` in its place.
    fn take_shown(&mut self, link: &Link) -> Option<Link> {
        (self.last, self.cause) = (None, None);
        let (_, shown) = self.shown.as_mut()?;
        Some(std::mem::replace(shown, link.clone()))
    }

    /// Returns the number of entries for the browser's history so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a view of a moment.
    fn at(event: u64) -> Link {
        Link { event: Some(event), ..Link::default() }
    }

    /// Runs a command that leads to a view.
    fn run(history: &mut ViewHistory, command: &str, link: &Link, clock_ms: f64) {
        history.commanded(&Command::parse(command).expect("a command"));
        history.record_view(1, link, clock_ms);
    }

    fn pointed(history: &mut ViewHistory, kind: PointerKind, link: &Link, clock_ms: f64) {
        let (surface, x, y) = (Surface::Timeline, 0.0, 0.0);
        history.pointed(&Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false });
        history.record_view(1, link, clock_ms);
    }

    #[test]
    fn changes_are_undone_and_redone_in_order() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        run(&mut history, "seek 5", &at(5), 10.0);
        run(&mut history, "seek 9", &at(9), 20.0);
        assert_eq!(history.entries(), 2);
        assert_eq!(history.undo(), Some(at(5)));
        history.record_view(1, &at(5), 30.0);
        assert_eq!(history.undo(), Some(at(0)));
        history.record_view(1, &at(0), 40.0);
        assert_eq!(history.undo(), None);
        assert_eq!(history.redo(), Some(at(5)));
        history.record_view(1, &at(5), 50.0);
        run(&mut history, "seek 7", &at(7), 60.0);
        assert_eq!(history.redo(), None, "a change after an undo ends redoing");
        assert_eq!(history.undo(), Some(at(5)));
        assert_eq!(history.entries(), 3, "undo makes no entry");
    }

    #[test]
    fn steps_of_a_gesture_are_one_change() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        for event in 1..30 {
            run(&mut history, "step 1", &at(event), event as f64 * 33.0);
        }
        assert_eq!(history.undo(), Some(at(0)));
        history.record_view(1, &at(0), 2000.0);
        run(&mut history, "step 1", &at(1), 3000.0);
        run(&mut history, "step 1", &at(2), 5000.0);
        assert_eq!(history.undo(), Some(at(1)), "there was a pause");
        history.record_view(1, &at(1), 5000.0);
        // A drag may pause.
        pointed(&mut history, PointerKind::Down, &at(10), 6000.0);
        for event in 11..20 {
            history.gesture_continues();
            history.record_view(1, &at(event), event as f64 * 1000.0);
        }
        pointed(&mut history, PointerKind::Up, &at(19), 30_000.0);
        assert_eq!(history.undo(), Some(at(1)));
        assert_eq!(history.entries(), 0, "gestures are no entries");
    }

    #[test]
    fn seeks_of_a_script_are_one_change() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        for event in 1..300 {
            history.repeated(&Command::seek(event));
            history.record_view(1, &at(event), event as f64 * 5.0);
        }
        assert_eq!(history.entries(), 1);
        assert_eq!(history.undo(), Some(at(0)));
    }

    #[test]
    fn selecting_with_the_pointer_is_an_entry() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(3), 0.0);
        let selected = Link { select: Some(64), ..at(3) };
        pointed(&mut history, PointerKind::Down, &at(3), 0.0);
        history.gesture_continues();
        history.record_view(1, &selected, 1.0);
        assert_eq!(history.entries(), 1);
        assert_eq!(history.undo(), Some(at(3)));
    }

    #[test]
    fn changes_without_the_user_are_not_undone() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        for event in 1..1000 {
            history.record_view(1, &at(event), event as f64);
        }
        assert_eq!((history.undo(), history.entries()), (None, 0));
        run(&mut history, "color age", &at(999), 2000.0);
        assert_eq!(history.undo(), None, "the command has changed nothing");
    }

    #[test]
    fn views_of_another_recording_are_forgotten() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        run(&mut history, "seek 5", &at(5), 10.0);
        history.record_view(2, &at(0), 20.0);
        assert_eq!(history.undo(), None);
    }

    #[test]
    fn undo_keeps_a_bounded_number_of_changes() {
        let mut history = ViewHistory::default();
        history.record_view(1, &at(0), 0.0);
        for event in 1..2 * MAX_CHANGES as u64 {
            run(&mut history, &format!("seek {event}"), &at(event), 0.0);
        }
        assert_eq!(std::iter::from_fn(|| history.undo()).count(), MAX_CHANGES);
    }
}
