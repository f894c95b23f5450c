//! The phase and the category of memory, inferred from the stack of the request.

use vramscope_trace::{Category, Definitions, Site, SiteId};

use crate::frames::{EnginePhase, FactsCache, FrameMark, RecordedStacks, StackFacts};

/// The part of a training step in which memory was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The forward pass of a module.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step.
    Optimizer,
    /// None of these.
    Other,
}

impl Phase {
    /// Returns the phase's name for users, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Other => "other",
        }
    }
}

/// Where a category comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CategorySource {
    /// The program recorded it.
    #[default]
    Recorded,
    /// It follows from the call stack by the rules of this [module](crate::group).
    Inferred,
}

/// The category of a site's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteCategory {
    /// The category; unknown if it was not recorded and no rule applies.
    pub category: Category,
    /// Where it comes from.
    pub source: CategorySource,
}

impl SiteCategory {
    /// Returns the category's name for users: `gradient`, or `gradient (inferred)`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.source, self.category) {
            (CategorySource::Recorded, category) => category.name(),
            (CategorySource::Inferred, category) => match category {
                Category::Unknown => "unknown",
                Category::Parameter => "parameter (inferred)",
                Category::Gradient => "gradient (inferred)",
                Category::OptimizerState => "optimizer state (inferred)",
                Category::Activation => "activation (inferred)",
                Category::Input => "input (inferred)",
                Category::Temporary => "temporary (inferred)",
                Category::Workspace => "workspace (inferred)",
                Category::Cache => "cache (inferred)",
                Category::Communication => "communication (inferred)",
            },
        }
    }
}

/// A request's site, with properties that its definition does not contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiteRequest<'a> {
    pub(crate) site: Site,
    /// The facts of its stack.
    pub(crate) facts: &'a StackFacts,
    /// Whether the thread ran no Python code although Python frames were recorded.
    pub(crate) lacks_python: bool,
}

/// Returns the phase in which a site's requests are made, by the rules of [`group`](crate::group);
/// `None` if nothing tells.
pub(crate) fn phase(definitions: &Definitions, request: SiteRequest<'_>) -> Option<Phase> {
    if let Some(phase) = named_phase(definitions, request.site) {
        return Some(phase);
    }
    let facts = request.facts;
    match facts.engine {
        Some(EnginePhase::Backward) => Some(Phase::Backward),
        Some(EnginePhase::Optimizer) if facts.forward_inside => Some(Phase::Forward),
        Some(EnginePhase::Optimizer) => Some(Phase::Optimizer),
        None if facts.forward_inside => Some(Phase::Forward),
        None if facts.frames > 0 => Some(Phase::Other),
        None if request.lacks_python => Some(Phase::Backward),
        None if request.site.scope.0 != 0 => Some(Phase::Other),
        None => None,
    }
}

/// Returns the phase that a site's scopes name; the innermost scope with a known name decides.
#[inline(never)] // Smaller code: the page is downloaded.
pub(super) fn named_phase(definitions: &Definitions, site: Site) -> Option<Phase> {
    definitions.string(site.scope).rsplit('/').find_map(scope_phase)
}

/// Returns the phase that a scope of the program names.
fn scope_phase(scope: &str) -> Option<Phase> {
    match () {
        () if scope.eq_ignore_ascii_case("forward") => Some(Phase::Forward),
        () if scope.eq_ignore_ascii_case("backward") => Some(Phase::Backward),
        () if scope.eq_ignore_ascii_case("optimizer") || scope.starts_with("Optimizer.step") => Some(Phase::Optimizer),
        () => None,
    }
}

/// Returns the category of a site's memory: the recorded one, or else the one that follows from its
/// stack by the rules of [`group`](crate::group).
pub(super) fn category(definitions: &Definitions, request: SiteRequest<'_>) -> SiteCategory {
    if request.site.category != Category::Unknown {
        return SiteCategory { category: request.site.category, source: CategorySource::Recorded };
    }
    let facts = request.facts;
    let has = |mark| facts.marks.contains(mark);
    let category = match facts.engine {
        _ if has(FrameMark::Workspace) => Category::Workspace,
        // The stack may be that of the forward operation.
        _ if named_phase(definitions, request.site) == Some(Phase::Backward) => Category::Gradient,
        Some(EnginePhase::Optimizer) if has(FrameMark::OptimizerState) => Category::OptimizerState,
        Some(EnginePhase::Backward) if has(FrameMark::Checkpoint) && facts.forward_inside => Category::Activation,
        Some(EnginePhase::Backward) => Category::Gradient,
        Some(EnginePhase::Optimizer) if !facts.forward_inside => Category::Temporary,
        _ if has(FrameMark::Parameter) => Category::Parameter,
        _ if facts.forward_inside => Category::Activation,
        _ if has(FrameMark::DataLoader) || has(FrameMark::Copy) => Category::Input,
        None if facts.frames == 0 && request.lacks_python => Category::Gradient,
        _ => Category::Unknown,
    };
    SiteCategory { category, source: CategorySource::Inferred }
}

/// Returns the category and the phase of one site's memory, by the rules of
/// [`group`](crate::group); the phase is `None` if nothing tells. `before_recording` tells whether
/// the block is older than the recording.
///
/// For many blocks, use [`Grouping::category_of`](crate::group::Grouping::category_of).
#[must_use]
pub fn infer_site(
    definitions: &Definitions,
    recorded: &RecordedStacks,
    site: SiteId,
    before_recording: bool,
) -> (SiteCategory, Option<Phase>) {
    let site = definitions.site(site);
    let facts = FactsCache::default().get(definitions, site.stack);
    let lacks_python = facts.frames == 0 && recorded.has_python() && !before_recording;
    let request = SiteRequest { site, facts: &facts, lacks_python };
    (category(definitions, request), phase(definitions, request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_definitions::TestSites;

    const TRAIN: (&str, u32, &str) = ("train.py", 80, "train");
    const CALL: (&str, u32, &str) = ("site-packages/torch/nn/modules/module.py", 1790, "_call_impl");
    const LINEAR: (&str, u32, &str) = ("site-packages/torch/nn/modules/linear.py", 134, "forward");
    const WRAPPER: (&str, u32, &str) = ("site-packages/torch/optim/optimizer.py", 533, "wrapper");
    const ADAM_INIT: (&str, u32, &str) = ("site-packages/torch/optim/adam.py", 178, "_init_group");
    const ADAM: (&str, u32, &str) = ("site-packages/torch/optim/adam.py", 791, "_multi_tensor_adam");
    const LOSS: (&str, u32, &str) = ("site-packages/torch/_tensor.py", 631, "backward");
    const AUTOGRAD: (&str, u32, &str) = ("site-packages/torch/autograd/function.py", 300, "apply");
    const CHECKPOINT: (&str, u32, &str) = ("site-packages/torch/utils/checkpoint.py", 240, "backward");
    const APPLY: (&str, u32, &str) = ("site-packages/torch/nn/modules/module.py", 965, "_apply");
    const LOADER: (&str, u32, &str) = ("site-packages/torch/utils/data/_utils/pin_memory.py", 98, "pin_memory");
    const ENGINE: (&str, u32, &str) = ("??", 0, "torch::autograd::Engine::thread_main(int)");
    const MM: (&str, u32, &str) = ("??", 0, "torch::autograd::generated::MmBackward0::apply(X&&)");
    const BLAS: (&str, u32, &str) = ("??", 0, "at::cuda::getCurrentCUDABlasHandle()");
    const TO: (&str, u32, &str) = ("??", 0, "at::native::_to_copy(at::Tensor const&)");

    #[track_caller]
    fn check(frames: &[(&str, u32, &str)], expected_phase: Option<Phase>, expected: Category) {
        let mut sites = TestSites::default();
        let site = sites.stack(frames);
        let (category, phase) = infer_site(sites.definitions(), &RecordedStacks::default(), site, false);
        assert_eq!(phase, expected_phase);
        assert_eq!(category, SiteCategory { category: expected, source: CategorySource::Inferred });
    }

    #[test]
    fn phase_and_category_follow_from_the_stack() {
        check(&[], None, Category::Unknown);
        check(&[TRAIN], Some(Phase::Other), Category::Unknown);
        check(&[TRAIN, APPLY], Some(Phase::Other), Category::Parameter);
        check(&[TRAIN, CALL, LINEAR], Some(Phase::Forward), Category::Activation);
        check(&[TRAIN, CALL, TRAIN], Some(Phase::Forward), Category::Activation);
        check(&[TRAIN, CALL, AUTOGRAD, TRAIN], Some(Phase::Forward), Category::Activation);
        check(&[TRAIN, LOSS], Some(Phase::Backward), Category::Gradient);
        check(&[ENGINE, MM], Some(Phase::Backward), Category::Gradient);
        check(&[ENGINE, MM, BLAS], Some(Phase::Backward), Category::Workspace);
        check(&[CHECKPOINT, CALL, LINEAR], Some(Phase::Backward), Category::Activation);
        check(&[TRAIN, WRAPPER, ADAM_INIT], Some(Phase::Optimizer), Category::OptimizerState);
        check(&[TRAIN, WRAPPER, ADAM], Some(Phase::Optimizer), Category::Temporary);
        check(&[TRAIN, WRAPPER, TRAIN, CALL, LINEAR], Some(Phase::Forward), Category::Activation);
        check(&[TRAIN, WRAPPER, TRAIN, LOSS], Some(Phase::Backward), Category::Gradient);
        check(&[LOADER], Some(Phase::Other), Category::Input);
        check(&[TRAIN, TO], Some(Phase::Other), Category::Input);
        check(&[TRAIN, CALL, TO], Some(Phase::Forward), Category::Activation);
    }

    #[test]
    fn qualified_names_are_recognized() {
        let [call, init, backward] =
            [(CALL, "Module._call_impl"), (ADAM_INIT, "Adam._init_group"), (LOSS, "Tensor.backward")]
                .map(|((file, line, _), name)| (file, line, name));
        check(&[TRAIN, call, LINEAR], Some(Phase::Forward), Category::Activation);
        check(&[TRAIN, WRAPPER, init], Some(Phase::Optimizer), Category::OptimizerState);
        check(&[TRAIN, backward], Some(Phase::Backward), Category::Gradient);
    }

    #[test]
    fn backward_scope_with_the_stack_of_the_forward_operation_is_a_gradient() {
        let mut sites = TestSites::default();
        let site = sites.site("backward/GPT/head", Category::Unknown, &[TRAIN, CALL, LINEAR]);
        let (category, phase) = infer_site(sites.definitions(), &RecordedStacks::default(), site, false);
        assert_eq!((category.category, phase), (Category::Gradient, Some(Phase::Backward)));
    }

    #[test]
    fn recorded_category_and_scope_take_precedence() {
        let mut sites = TestSites::default();
        let site = sites.site("step/Backward/layer0", Category::Workspace, &[TRAIN, CALL, LINEAR]);
        let (category, phase) = infer_site(sites.definitions(), &RecordedStacks::default(), site, false);
        assert_eq!(phase, Some(Phase::Backward));
        assert_eq!(category, SiteCategory { category: Category::Workspace, source: CategorySource::Recorded });
        assert_eq!(category.name(), "workspace");
    }

    #[test]
    fn requests_without_python_frames_belong_to_the_backward_pass() {
        let mut sites = TestSites::default();
        sites.stack(&[TRAIN]);
        let recorded = RecordedStacks::new(sites.definitions());
        let (category, phase) = infer_site(sites.definitions(), &recorded, SiteId(0), false);
        assert_eq!((category.name(), phase), ("gradient (inferred)", Some(Phase::Backward)));
        let (category, phase) = infer_site(sites.definitions(), &recorded, SiteId(0), true);
        assert_eq!((category.name(), phase), ("unknown", None));
    }
}
