//! Recording without names: `VRAMSCOPE_REDACT`.
//!
//! Names are replaced before anything leaves the recorder, so file, page and pushes have none.

use vramscope_pool::RecordedConf;
use vramscope_trace::{DeviceId, DeviceState, RecordingInfo, Redactor};

use super::merge::DeviceStateSink;
use super::outputs::Outputs;
use super::streams::Streams;

/// The sink that a recorder's thread passes events to: [`Streams`], or a [`Redactor`] that replaces
/// names and then passes events to `Streams`.
pub(super) trait RecorderSink: DeviceStateSink {
    /// Returns the encoders of file and hub.
    fn streams(&mut self) -> &mut Streams;

    /// Converts this sink to the encoders of file and hub, without the redactor.
    fn into_streams(self) -> Streams;
}

impl RecorderSink for Streams {
    fn streams(&mut self) -> &mut Streams {
        self
    }

    fn into_streams(self) -> Streams {
        self
    }
}

impl RecorderSink for Redactor<Streams> {
    fn streams(&mut self) -> &mut Streams {
        self.sink_mut()
    }

    fn into_streams(self) -> Streams {
        self.into_inner()
    }
}

impl DeviceStateSink for Redactor<Streams> {
    fn device_state(&mut self, device: DeviceId, state: &DeviceState) {
        self.sink_mut().device_state(device, state);
    }
}

/// Creates streams that receive no names.
pub(super) fn redacted_streams(info: &RecordingInfo, outputs: Outputs) -> Redactor<Streams> {
    // Settings that the allocator does not know may contain any text.
    let alloc_conf = RecordedConf::parse(&info.alloc_conf).settings.to_conf();
    Redactor::new(info, alloc_conf, |info| Streams::new(info, outputs))
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Recording, RecordingInfo, StringId};

    use crate::hub::Hub;
    use crate::recorder::{Outputs, Recorder};

    #[test]
    fn no_name_leaves_the_recorder() {
        let hub = Hub::default();
        let info = RecordingInfo {
            source: "secret_program".to_owned(),
            alloc_conf: "secret_option:1".to_owned(),
            ..RecordingInfo::default()
        };
        let outputs = Outputs { hub: Some(hub.clone()), redact: true, ..Outputs::default() };
        let (recorder, mut handle) = Recorder::start(info, outputs).expect("a thread");
        handle.mark(DeviceId(0), "secret_mark");
        handle.mark(DeviceId(0), "secret_mark");
        handle.mark(DeviceId(0), "another_secret");
        handle.flush();
        assert!(hub.is_redacted());
        assert_eq!(hub.figures().program, "redacted");
        recorder.stop();
        let mut recording = Recording::new();
        for chunk in hub.everything() {
            recording.push(&chunk.bytes).expect("the recording is valid");
        }
        assert_eq!([1, 2, 3].map(|id| recording.definitions().string(StringId(id))), ["mark_1", "mark_2", ""]);
        assert_eq!((recording.info().source.as_str(), recording.info().alloc_conf.as_str()), ("redacted", ""));
        assert_eq!(recording.end_event(), 3);
    }
}
