//! The phase in which memory was requested, from the stack of the request.

use vramscope_trace::{Definitions, Site, SiteId};

use crate::frames::{EnginePhase, FactsCache, RecordedStacks, StackFacts};

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

/// Returns the phase of one site's requests, by the rules of [`group`](crate::group); `None` if
/// nothing tells. `before_recording` tells whether the block is older than the recording.
#[must_use]
pub fn phase_of_site(
    definitions: &Definitions,
    recorded: &RecordedStacks,
    site: SiteId,
    before_recording: bool,
) -> Option<Phase> {
    let site = definitions.site(site);
    let facts = FactsCache::default().get(definitions, site.stack);
    let lacks_python = facts.frames == 0 && recorded.has_python() && !before_recording;
    phase(definitions, SiteRequest { site, facts: &facts, lacks_python })
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Category;

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
    const TO: (&str, u32, &str) = ("??", 0, "at::native::_to_copy(at::Tensor const&)");

    /// Returns the phase of requests at a site that are not older than the recording.
    fn phase_at(sites: &TestSites, site: SiteId) -> Option<Phase> {
        phase_of_site(sites.definitions(), &RecordedStacks::default(), site, false)
    }

    #[track_caller]
    fn check(frames: &[(&str, u32, &str)], expected: Option<Phase>) {
        let mut sites = TestSites::default();
        let site = sites.stack(frames);
        assert_eq!(phase_at(&sites, site), expected);
    }

    #[test]
    fn phase_follows_from_the_stack() {
        check(&[], None);
        check(&[TRAIN], Some(Phase::Other));
        check(&[TRAIN, APPLY], Some(Phase::Other));
        check(&[TRAIN, CALL, LINEAR], Some(Phase::Forward));
        check(&[TRAIN, CALL, TRAIN], Some(Phase::Forward));
        check(&[TRAIN, CALL, AUTOGRAD, TRAIN], Some(Phase::Forward));
        check(&[TRAIN, LOSS], Some(Phase::Backward));
        check(&[ENGINE, MM], Some(Phase::Backward));
        check(&[CHECKPOINT, CALL, LINEAR], Some(Phase::Backward));
        check(&[TRAIN, WRAPPER, ADAM_INIT], Some(Phase::Optimizer));
        check(&[TRAIN, WRAPPER, ADAM], Some(Phase::Optimizer));
        check(&[TRAIN, WRAPPER, TRAIN, CALL, LINEAR], Some(Phase::Forward));
        check(&[TRAIN, WRAPPER, TRAIN, LOSS], Some(Phase::Backward));
        check(&[LOADER], Some(Phase::Other));
        check(&[TRAIN, CALL, TO], Some(Phase::Forward));
    }

    #[test]
    fn qualified_names_are_recognized() {
        let [call, init, backward] =
            [(CALL, "Module._call_impl"), (ADAM_INIT, "Adam._init_group"), (LOSS, "Tensor.backward")]
                .map(|((file, line, _), name)| (file, line, name));
        check(&[TRAIN, call, LINEAR], Some(Phase::Forward));
        check(&[TRAIN, WRAPPER, init], Some(Phase::Optimizer));
        check(&[TRAIN, backward], Some(Phase::Backward));
    }

    #[test]
    fn scope_takes_precedence_over_the_stack() {
        let mut sites = TestSites::default();
        for scope in ["backward/GPT/head", "step/Backward/layer0"] {
            let site = sites.site(scope, Category::Unknown, &[TRAIN, CALL, LINEAR]);
            assert_eq!(phase_at(&sites, site), Some(Phase::Backward));
        }
    }

    #[test]
    fn requests_without_python_frames_belong_to_the_backward_pass() {
        let mut sites = TestSites::default();
        sites.stack(&[TRAIN]);
        let recorded = RecordedStacks::new(sites.definitions());
        assert_eq!(phase_of_site(sites.definitions(), &recorded, SiteId(0), false), Some(Phase::Backward));
        assert_eq!(phase_of_site(sites.definitions(), &recorded, SiteId(0), true), None);
    }
}
