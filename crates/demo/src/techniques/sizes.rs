//! The sizes at which the effect of techniques shows, on the host and on GPUs.

use super::settings::{ADAMW, Settings};
use crate::optimizers::Method;

/// Changes no size.
pub(super) fn nothing(_: &mut Settings) {}

/// Adds a pass over held-out data after each step.
pub(super) fn held_out(settings: &mut Settings) {
    settings.evaluated = settings.pick(2, 8);
}

/// Sets a large vocabulary, so that logits are the largest tensors.
pub(super) fn large_logits(settings: &mut Settings) {
    settings.gpt.vocabulary = settings.pick(4096, 16384);
    settings.gpt.layers = 2;
    settings.batch = settings.pick(4, 8);
}

/// Makes the first step larger than the others, as by a benchmark or the longest sequence.
pub(super) fn large_first_step(settings: &mut Settings) {
    settings.first_batch = Some(settings.pick(48, 64));
    settings.batch = 8;
}

/// Sets two models, which are trained in turns.
pub(super) fn two_models(settings: &mut Settings) {
    settings.models = 2;
    settings.gpt.width = settings.pick(128, 512);
    settings.gpt.heads = settings.pick(4, 8);
    settings.batch = settings.pick(2, 4);
}

/// Sets a batch so large that most bytes of the peak are activations. Sets plain SGD, because Adam
/// would magnify rounding errors where gradients are nearly 0.
pub(super) fn large_batch(settings: &mut Settings) {
    settings.batch = settings.pick(16, 32);
    settings.optimizer = (Method::Sgd { momentum: 0.0 }, 0.1);
}

/// Sets a wide model, whose gradients matter, without optimizer state.
pub(super) fn wide_model(settings: &mut Settings) {
    settings.gpt.width = settings.pick(128, 512);
    settings.gpt.heads = settings.pick(4, 8);
    settings.batch = settings.pick(4, 8);
    settings.optimizer = (Method::Sgd { momentum: 0.0 }, 0.1);
}

/// Sets a wide model with AdamW.
pub(super) fn wide_model_with_state(settings: &mut Settings) {
    wide_model(settings);
    settings.optimizer = (ADAMW, 1e-3);
}

/// Sets a deep model.
pub(super) fn deep_model(settings: &mut Settings) {
    settings.gpt.layers = 12;
    settings.batch = settings.pick(8, 32);
    settings.steps = settings.pick(4, 8);
}

/// Sets long sequences, whose activations are most of the memory.
pub(super) fn long_sequences(settings: &mut Settings) {
    settings.gpt.vocabulary = 256;
    settings.gpt.heads = 8;
    settings.gpt.length = settings.pick(128, 256);
    settings.batch = settings.pick(4, 16);
}

/// Sets sequence lengths that differ from step to step. A longer sequence than all before cannot
/// use the free blocks of shorter ones. The limit simulates a device that the program nearly fills.
pub(super) fn variable_lengths(settings: &mut Settings) {
    settings.lengths = vec![256, 192, 272, 128, 288, 208, 304, 160, 320, 240];
    settings.steps = 10;
    settings.gpt.length = 320;
    settings.gpt.layers = settings.pick(2, 4);
    settings.gpt.width = settings.pick(32, 256);
    settings.gpt.heads = settings.pick(8, 4);
    settings.batch = settings.pick(16, 32);
    settings.optimizer = (Method::Sgd { momentum: 0.0 }, 0.1);
    settings.limit_bytes = Some(settings.pick(640, 2560) << 20);
}

/// Sets sizes for inference whose weights matter.
pub(super) fn large_weights(settings: &mut Settings) {
    settings.gpt.layers = settings.pick(4, 8);
    settings.gpt.width = settings.pick(256, 512);
    settings.gpt.heads = 8;
    settings.batch = settings.pick(1, 4);
}

/// Sets sizes for inference whose activations matter.
pub(super) fn many_sequences(settings: &mut Settings) {
    settings.gpt.layers = 6;
    settings.batch = settings.pick(8, 32);
}

/// Sets sizes for text generation.
pub(super) fn generation(settings: &mut Settings) {
    settings.gpt.width = settings.pick(128, 512);
    settings.gpt.heads = settings.pick(4, 8);
    settings.gpt.length = settings.pick(64, 256);
    settings.batch = settings.pick(4, 32);
    settings.steps = 12;
}

/// Sets a memory limit that small batches do not reach.
pub(super) fn limited(settings: &mut Settings) {
    settings.gpt.layers = 2;
    settings.batch = settings.pick(2, 8);
    settings.steps = 3;
    settings.limit_bytes = Some(settings.pick(64, 512) << 20);
}

/// Sets the size of the data that two streams use.
pub(super) fn stream_data(settings: &mut Settings) {
    settings.rows = settings.pick(4096, 4096);
}

/// Sets the sizes of the forward passes that are captured as graphs.
pub(super) fn graph_rows(settings: &mut Settings) {
    settings.rows = settings.pick(4096, 16384);
    settings.row_width = settings.pick(32, 256);
    settings.hidden = settings.pick(1024, 2048);
}

/// Sets a hidden layer that is most of the memory.
pub(super) fn hidden_rows(settings: &mut Settings) {
    settings.rows = settings.pick(2048, 16384);
    settings.row_width = settings.pick(32, 256);
    settings.hidden = settings.pick(512, 2048);
}

/// Sets images whose activations matter.
pub(super) fn images(settings: &mut Settings) {
    settings.batch = settings.pick(8, 128);
}

/// Sets large batches, whose copy to the device takes long enough to matter.
pub(super) fn large_rows(settings: &mut Settings) {
    settings.rows = settings.pick(1024, 16384);
    settings.hidden = settings.pick(256, 4096);
}
