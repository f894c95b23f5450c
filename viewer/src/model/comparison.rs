//! The second side of a comparison with the recording on the page: another recording, another
//! device, or another moment.

use vramscope_trace::{DeviceId, Recording};

/// A second recording, completely loaded, with which the recording on the page is compared.
pub struct SecondRecording {
    /// Name of the file, or of the simulated run.
    pub name: String,
    /// The second recording itself.
    pub recording: Recording,
    /// Whether it is a simulation of the recording on the page under other allocator settings.
    pub is_simulated: bool,
    /// Number that identifies this second recording among all that the model has opened.
    pub id: u64,
}

impl SecondRecording {
    /// Returns the time of the second recording, in nanoseconds, that is compared with the start of
    /// `recording`, the one on the page. A simulated run has the times of `recording`.
    pub(crate) fn start_of(&self, recording: &Recording) -> u64 {
        if self.is_simulated { recording.start_ns() } else { self.recording.start_ns() }
    }
}

/// The second side of a comparison with the recording on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareWith {
    /// A device of the second recording.
    Recording(DeviceId),
    /// Another device of the recording on the page.
    Device(DeviceId),
    /// The pinned moment.
    Pinned,
    /// The beginning of the selected range, compared with its end.
    Range,
}

impl CompareWith {
    /// Returns the side's name in commands: `recording 0`, `device 1`, `pinned` or `range`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Recording(device) => format!("recording {}", device.0),
            Self::Device(device) => format!("device {}", device.0),
            Self::Pinned => "pinned".to_owned(),
            Self::Range => "range".to_owned(),
        }
    }

    /// Returns the side with this [`name`](Self::name), or `None` if no side has it.
    pub fn from_name(name: &str) -> Option<Self> {
        let (kind, device) = name.split_once(' ').unwrap_or((name, ""));
        match kind {
            "recording" => device.parse().ok().map(|device| Self::Recording(DeviceId(device))),
            "device" => device.parse().ok().map(|device| Self::Device(DeviceId(device))),
            "pinned" => Some(Self::Pinned),
            "range" => Some(Self::Range),
            _ => None,
        }
    }
}

/// The possible second sides of a comparison with the recording on the page, and the user's choice.
#[derive(Default)]
pub struct Comparison {
    second: Option<SecondRecording>,
    /// Number of second recordings opened so far.
    opened: u64,
    /// The pinned moment: device and event number.
    pub pinned: Option<(DeviceId, u64)>,
    /// The side that the user chose, even if it does not exist any more; `None` without a choice.
    pub chosen: Option<CompareWith>,
}

impl Comparison {
    /// Sets the second recording, which replaces an earlier one, and forgets the user's choice.
    /// `name` is the name of its file.
    pub fn open(&mut self, name: &str, recording: Recording) {
        self.opened += 1;
        self.second = Some(SecondRecording { name: name.to_owned(), recording, is_simulated: false, id: self.opened });
        self.chosen = None;
    }

    /// Sets `run`, a simulation of the recording on the page under the allocator settings `conf`,
    /// as the second recording. `None` closes an earlier simulation, but not a file.
    pub fn show_run(&mut self, conf: &str, run: Option<Recording>) {
        match run {
            Some(run) => {
                self.open(&format!("what if {conf}"), run);
                self.second.iter_mut().for_each(|second| second.is_simulated = true);
            }
            None => drop(self.second.take_if(|second| second.is_simulated)),
        }
    }

    /// Closes the second recording, if there is one.
    pub fn close(&mut self) {
        self.second = None;
    }

    /// Returns the second recording; `None` if none is open.
    pub fn second(&self) -> Option<&SecondRecording> {
        self.second.as_ref()
    }

    /// Returns the second recording if it is a simulation of the recording on the page.
    pub fn run(&self) -> Option<&Recording> {
        self.second.as_ref().filter(|second| second.is_simulated).map(|second| &second.recording)
    }

    /// Pins a moment (event number) of a device, and chooses it as the second side.
    pub fn pin(&mut self, device: DeviceId, event: u64) {
        self.pinned = Some((device, event));
        self.chosen = Some(CompareWith::Pinned);
    }

    /// Returns the possible second sides of a comparison with a device of `recording`, the
    /// recording on the page. `has_range` is true if a range of moments is selected.
    pub fn choices(&self, recording: &Recording, device: DeviceId, has_range: bool) -> Vec<CompareWith> {
        let second = self.second.iter().flat_map(|second| second.recording.devices().map(CompareWith::Recording));
        let mut choices: Vec<CompareWith> = second.collect();
        choices.extend(self.pinned.map(|_| CompareWith::Pinned));
        choices.extend(has_range.then_some(CompareWith::Range));
        choices.extend(recording.devices().filter(|other| *other != device).map(CompareWith::Device));
        choices
    }

    /// Returns the second side of a comparison with a device of `recording`: the user's choice if
    /// it exists, else the device with this number of the second recording, else the first of
    /// [`choices`](Self::choices). `None` if there are no choices.
    pub fn subject(&self, recording: &Recording, device: DeviceId, has_range: bool) -> Option<CompareWith> {
        let choices = self.choices(recording, device, has_range);
        let chosen = self.chosen.filter(|chosen| choices.contains(chosen));
        let same_device = CompareWith::Recording(device);
        chosen.or_else(|| choices.contains(&same_device).then_some(same_device)).or_else(|| choices.first().copied())
    }
}
