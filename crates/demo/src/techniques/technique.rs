//! The types of techniques and of the programs that they change.

use super::settings::Settings;

/// A program that techniques change. Techniques that work in one program can be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Trains GPTs.
    Training,
    /// Trains a ResNet.
    ResNet,
    /// Computes results of a two-layer network.
    TwoLayer,
    /// Computes predictions of a GPT.
    Inference,
    /// Generates text with a GPT.
    Generation,
    /// Trains a two-layer network with data from a loader.
    Loading,
    /// Trains a GPT with the largest batch that fits.
    BatchSearch,
    /// Uses memory on two streams.
    Streams,
    /// Captures and replays graphs.
    Graphs,
}

impl Program {
    /// Returns a description of the program, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Training => "GPT training",
            Self::ResNet => "ResNet training",
            Self::TwoLayer => "two-layer network",
            Self::Inference => "GPT inference",
            Self::Generation => "text generation",
            Self::Loading => "data loading",
            Self::BatchSearch => "batch search",
            Self::Streams => "two streams",
            Self::Graphs => "captured graphs",
        }
    }
}

/// A change of a program's settings.
pub(super) type Change = fn(&mut Settings);

/// A memory technique: a change of a program, turned on by its name.
pub struct Technique {
    /// The name, in kebab case.
    pub name: &'static str,
    /// Its effect on memory, in one sentence.
    pub summary: &'static str,
    /// The program that it changes.
    pub program: Program,
    /// Other programs that it can change when combined with their baseline: `resnet,mixed-bf16`.
    pub(super) also_in: &'static [Program],
    /// The name of the baseline to compare it with. A baseline has its own name here.
    pub baseline: &'static str,
    /// The setting that it chooses. Techniques that choose the same setting exclude each other.
    pub(super) choice: Option<&'static str>,
    /// Sets the sizes at which its effect shows. In a comparison, both runs use these sizes.
    pub(super) sizes: Change,
    /// Turns it on.
    pub(super) apply: Change,
}

impl Technique {
    /// Returns true if the technique works in `program`.
    pub(super) fn works_in(&self, program: Program) -> bool {
        self.program == program || self.also_in.contains(&program)
    }

    /// Returns true if the technique is a program without a change, to compare others with.
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        self.name == self.baseline
    }
}
