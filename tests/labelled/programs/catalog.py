"""The names, seeds and parameters of all programs."""

from dataclasses import dataclass, field

from . import caches, copies, dead_weight, evaluations, exceptions, failures, fragmentation, growth, healthy
from . import layer_buffers, optimizer_steps, peaks, pools_kept, reserved, servers, sharing, small_tensors, states
from . import stranded
from .compose import Draw, Options


@dataclass(frozen=True)
class Entry:
    """A program of the catalog. `build` takes a `Draw` and the parameters."""

    build: object
    seed: int
    parameters: dict = field(default_factory=dict)

    def compose(self, options=None, seed=None):
        """Returns the composed program."""
        return self.build(Draw(self.seed if seed is None else seed, options or Options()), **self.parameters)


def entry(build, seed, family=None, **parameters):
    if family is not None:
        parameters["family"] = family
    return Entry(build, seed, parameters)


DEVELOPMENT = {
    # Growth.
    "growth_outputs_1": entry(growth.outputs, 101, "mlp"),
    "growth_outputs_2": entry(growth.outputs, 102, "transformer"),
    "growth_summed_loss_1": entry(growth.summed_loss, 103, "recurrent"),
    "growth_summed_loss_2": entry(growth.summed_loss, 104, "mlp"),
    "growth_cache_1": entry(growth.cache, 105, "attention"),
    "growth_cache_2": entry(growth.cache, 107, "conv"),
    "growth_hooks_1": entry(growth.hooks, 108, "transformer"),
    "growth_hooks_2": entry(growth.hooks, 109, "conv"),
    "growth_optimizers_1": entry(growth.optimizers, 110, "mlp"),
    "growth_optimizers_2": entry(growth.optimizers, 111, "attention"),
    "growth_key_values_1": entry(growth.key_values, 112),
    "growth_key_values_2": entry(growth.key_values, 113),
    # Fragmentation and segments.
    "near_failure_1": entry(fragmentation.near_failure, 120, order="growing"),
    "near_failure_2": entry(fragmentation.near_failure, 121, order="shuffled"),
    "empty_cache_1": entry(fragmentation.emptied_caches, 122, "mlp", place="train"),
    "empty_cache_2": entry(fragmentation.emptied_caches, 123, "transformer", place="evaluate"),
    "recreated_1": entry(fragmentation.recreated_segments, 124),
    "recreated_2": entry(fragmentation.recreated_segments, 125),
    # Peaks.
    "peak_logits_1": entry(peaks.logits, 130),
    "peak_logits_2": entry(peaks.logits, 131),
    "peak_mask_1": entry(peaks.mask, 132),
    "peak_broadcast_1": entry(peaks.broadcast, 133, "mlp"),
    "peak_broadcast_2": entry(peaks.broadcast, 134, "recurrent"),
    "start_loaded_twice_1": entry(peaks.loaded_twice, 135, "mlp"),
    "start_loaded_twice_2": entry(peaks.loaded_twice, 136, "transformer"),
    "start_warm_up_1": entry(peaks.warm_up, 137, "conv"),
    "start_statistics_1": entry(peaks.statistics, 138, "mlp"),
    # What dominates.
    "optimizer_states_1": entry(states.optimizer_states, 140, "mlp", kind="amsgrad"),
    "optimizer_states_2": entry(states.optimizer_states, 141, "transformer", kind="master"),
    "gradients_1": entry(states.gradients, 142, "mlp", kind="tasks"),
    "gradients_2": entry(states.gradients, 143, "recurrent", kind="float32"),
    "activations_1": entry(states.activations, 144, "transformer"),
    "activations_2": entry(states.activations, 145, "conv"),
    # Streams, pools, rounding, outside.
    "streams_1": entry(sharing.stream_uses, 150),
    "streams_2": entry(sharing.stream_uses, 151),
    "pools_1": entry(sharing.own_pools, 152),
    "pools_2": entry(sharing.own_pools, 153),
    "rounding_1": entry(sharing.rounding, 154, kind="seven"),
    "rounding_2": entry(sharing.rounding, 155, kind="divisions"),
    "rounding_3": entry(sharing.rounding, 156, kind="streams"),
    "rounding_4": entry(sharing.rounding, 157, kind="small"),
    "outside_1": entry(sharing.outside_growth, 158, "mlp", library="driver"),
    "outside_2": entry(sharing.outside_growth, 159, "conv", library="cupy"),
    # Failures.
    "oom_activations_1": entry(states.growing_batch, 160, "transformer"),
    "oom_activations_2": entry(states.growing_batch, 161, "mlp"),
    "oom_fragmentation_1": entry(fragmentation.alternating, 162, story="serve"),
    "oom_fragmentation_2": entry(fragmentation.alternating, 163, story="layers"),
    "oom_leak_1": entry(growth.outputs, 164, "mlp", limit_mib=1400),
    "oom_leak_2": entry(growth.cache, 165, "conv", limit_mib=1600),
    "oom_optimizer_state_1": entry(states.first_step, 166, "mlp"),
    "oom_outside_1": entry(sharing.outside_taken, 167, "mlp", kind="process"),
    "oom_outside_2": entry(sharing.outside_taken, 168, "transformer", kind="library"),
    "oom_temporary_1": entry(peaks.broadcast, 169, "mlp", capped=True),
    "oom_never_fits_1": entry(states.never_fits, 170, over="device"),
    "oom_never_fits_2": entry(states.never_fits, 171, over="cap"),
    "oom_other_stream_1": entry(failures.other_streams, 172),
    "oom_private_pool_1": entry(failures.private_pool, 173),
    "oom_pending_frees_1": entry(failures.pending_frees, 174),
    "oom_parameters_1": entry(states.too_small_cap, 175, "transformer"),
    # Defects of the allocator, besides oom_pending_frees.
    "oom_pool_without_release_1": entry(failures.pool_without_release, 176),
    "defect_deferred_frees_1": entry(failures.deferred_frees, 177),
    "defect_oversize_1": entry(failures.oversize_expandable, 178),
    "defect_threshold_1": entry(failures.ignored_threshold, 179),
    # Healthy.
    "healthy_train_1": entry(healthy.train, 180, "mlp"),
    "healthy_train_2": entry(healthy.train, 181, "transformer"),
    "healthy_train_3": entry(healthy.train, 182, "conv"),
    "healthy_train_4": entry(healthy.train, 183, "attention"),
    "healthy_train_5": entry(healthy.train, 184, "recurrent"),
    "healthy_inference_1": entry(healthy.inference, 185, "transformer"),
    "healthy_mixed_1": entry(healthy.mixed_precision, 186, "mlp"),
    "healthy_accumulation_1": entry(healthy.accumulation, 187, "recurrent"),
    "healthy_checkpoint_1": entry(healthy.checkpointing, 188, "transformer"),
    "healthy_lengths_1": entry(healthy.variable_lengths, 189, "transformer"),
    "healthy_stops_1": entry(healthy.growth_that_stops, 190, "mlp"),
    "healthy_bounded_1": entry(healthy.bounded_cache, 191, "conv"),
    "healthy_average_1": entry(healthy.averaged_model, 192, "mlp"),
    "healthy_evaluation_1": entry(healthy.evaluation, 193, "transformer"),
}

HELDOUT = {
    "kept_growth_outputs": entry(growth.outputs, 501, "conv"),
    "kept_growth_summed_loss": entry(growth.summed_loss, 502, "attention"),
    "kept_growth_cache": entry(growth.cache, 503, "transformer"),
    "kept_growth_hooks": entry(growth.hooks, 504, "recurrent"),
    "kept_growth_optimizers": entry(growth.optimizers, 505, "transformer"),
    "kept_growth_key_values": entry(growth.key_values, 506),
    "kept_near_failure": entry(fragmentation.near_failure, 510),
    "kept_empty_cache": entry(fragmentation.emptied_caches, 511, "recurrent"),
    "kept_recreated": entry(fragmentation.recreated_segments, 512),
    "kept_peak_mask": entry(peaks.mask, 513),
    "kept_peak_broadcast": entry(peaks.broadcast, 514, "attention"),
    "kept_start_loaded_twice": entry(peaks.loaded_twice, 515, "mlp"),
    "kept_start_warm_up": entry(peaks.warm_up, 516, "transformer"),
    "kept_optimizer_states": entry(states.optimizer_states, 517, "attention", kind="amsgrad"),
    "kept_gradients": entry(states.kept_gradients, 518, "mlp"),
    "kept_activations": entry(states.activations, 519, "mlp"),
    "kept_streams": entry(sharing.stream_uses, 520),
    "kept_pools": entry(sharing.own_pools, 521),
    "kept_rounding_1": entry(sharing.rounding, 522, kind="seven"),
    "kept_rounding_2": entry(sharing.rounding, 523, kind="divisions"),
    "kept_outside": entry(sharing.outside_growth, 524, "attention", library="driver"),
    "kept_oom_activations": entry(states.growing_batch, 530, "recurrent"),
    "kept_oom_fragmentation": entry(fragmentation.alternating, 531, story="shards"),
    "kept_oom_leak": entry(growth.summed_loss, 532, "transformer", limit_mib=1200),
    "kept_oom_optimizer_state": entry(states.first_step, 533, "transformer"),
    "kept_oom_outside": entry(sharing.outside_taken, 534, "attention"),
    "kept_oom_temporary": entry(peaks.broadcast, 535, "transformer", capped=True),
    "kept_oom_never_fits": entry(states.never_fits, 536, over="device"),
    "kept_oom_other_stream": entry(failures.other_streams, 537),
    "kept_oom_private_pool": entry(failures.private_pool, 538),
    "kept_oom_pending_frees": entry(failures.pending_frees, 539, again=False),
    "kept_oom_parameters": entry(states.too_small_cap, 540, "mlp"),
    "kept_healthy_train": entry(healthy.gradient_reuse, 550, "transformer"),
    "kept_healthy_inference": entry(healthy.inference, 551, "conv"),
    "kept_healthy_lengths": entry(healthy.variable_lengths, 552, "mlp"),
    "kept_healthy_evaluation": entry(healthy.evaluation, 553, "recurrent"),
    "kept_healthy_generation": entry(healthy.generation, 554),
    "kept_healthy_bounded": entry(healthy.bounded_cache, 555, "attention"),
}

# Four programs with each of four problems, and four that nearly have it.
VERDICTS = {
    # Much more reserved than the blocks need.
    "reserved_1": entry(reserved.varying, 701, data="images"),
    "reserved_2": entry(reserved.varying, 702, data="texts"),
    "reserved_3": entry(reserved.varying, 703, data="series", order="growing", late=True),
    "reserved_4": entry(reserved.varying, 704, data="requests"),
    "reserved_near_1": entry(reserved.varying, 705, data="texts", order="bucketed"),
    "reserved_near_2": entry(reserved.varying, 706, data="images", conf="expandable_segments:True", late=True),
    "reserved_near_3": entry(reserved.varying, 707, data="series", order="decreasing"),
    "reserved_near_4": entry(reserved.varying, 708, data="texts", order="small"),
    # The peak is in the optimizer's step.
    "optimizer_step_1": entry(optimizer_steps.temporaries, 711, "mlp", optimizer="adamw"),
    "optimizer_step_2": entry(optimizer_steps.temporaries, 712, "transformer", optimizer="sgd"),
    "optimizer_step_3": entry(optimizer_steps.temporaries, 713, "recurrent", optimizer="rmsprop", late=True),
    "optimizer_step_4": entry(optimizer_steps.temporaries, 714, "transformer", optimizer="adam"),
    "optimizer_step_near_1": entry(optimizer_steps.near, 715, "mlp", kind="fused"),
    "optimizer_step_near_2": entry(optimizer_steps.near, 716, "transformer", kind="activations"),
    "optimizer_step_near_3": entry(optimizer_steps.near, 717, "recurrent", kind="plain"),
    "optimizer_step_near_4": entry(optimizer_steps.near, 718, "mlp", kind="few", late=True),
    # Two copies of the weights or of the optimizer's state.
    "copies_1": entry(copies.needless, 721, "transformer", kind="loaded"),
    "copies_2": entry(copies.needless, 722, "mlp", kind="deepcopy"),
    "copies_3": entry(copies.needless, 723, "attention", kind="second", late=True),
    "copies_4": entry(copies.needless, 724, "recurrent", kind="optimizer"),
    "copies_near_1": entry(copies.needed, 725, "conv", kind="average"),
    "copies_near_2": entry(copies.needed, 726, "transformer", kind="reference", late=True),
    "copies_near_3": entry(copies.needed, 727, "mlp", kind="pair"),
    "copies_near_4": entry(copies.needed, 728, "recurrent", kind="host"),
    # Lists, caches and hooks that grow.
    "cache_1": entry(caches.key_values, 731),
    "cache_2": entry(caches.results, 732, "mlp"),
    "cache_3": entry(caches.replay, 733, late=True),
    "cache_4": entry(caches.kept_by_hook, 734, "conv"),
    "cache_near_1": entry(caches.static_key_values, 735),
    "cache_near_2": entry(caches.cleared_results, 736, "transformer"),
    "cache_near_3": entry(caches.replay, 737, bounded=True),
    "cache_near_4": entry(caches.removed_hooks, 738, "recurrent", late=True),
}

# Two programs with each of seven problems, and two that nearly have it.
KINDS = {
    # One buffer for each layer, kept until the end of the pass.
    "layer_buffers_1": entry(layer_buffers.widened_weights, 901),
    "layer_buffers_2": entry(layer_buffers.workspaces, 902),
    "layer_buffers_near_1": entry(layer_buffers.needed_activations, 903),
    "layer_buffers_near_2": entry(layer_buffers.mixed_states, 904),
    # A private pool without live blocks.
    "unused_pool_1": entry(pools_kept.failed_capture, 911),
    "unused_pool_2": entry(pools_kept.phase_pool, 912, used=False),
    "unused_pool_near_1": entry(pools_kept.captured, 913),
    "unused_pool_near_2": entry(pools_kept.phase_pool, 914, used=True),
    # Free memory of a private pool between live blocks.
    "stranded_1": entry(stranded.weights_in_pool, 921),
    "stranded_2": entry(stranded.pruned_experts, 922),
    "stranded_near_1": entry(stranded.weights_in_pool, 923, final=True),
    "stranded_near_2": entry(stranded.pruned_experts, 924, reused=True),
    # Many requests without steps.
    "server_1": entry(servers.profiles, 931),
    "server_2": entry(servers.statistics, 932),
    "server_near_1": entry(servers.profiles, 933, bounded=True),
    "server_near_2": entry(servers.waves, 934),
    # Many small tensors.
    "small_tensors_1": entry(small_tensors.averages, 941),
    "small_tensors_2": entry(small_tensors.documents, 942),
    "small_tensors_near_1": entry(small_tensors.averages, 943, dominated=True),
    "small_tensors_near_2": entry(small_tensors.documents, 944, exact=True),
    # The exception of a failed step.
    "exception_1": entry(exceptions.batch_finder, 951),
    "exception_2": entry(exceptions.failed_step, 952, "conv"),
    "exception_near_1": entry(exceptions.failed_step, 953, "mlp", only_message=True),
    "exception_near_2": entry(exceptions.best_sample, 954, "transformer"),
    # Evaluation that needs more than training.
    "evaluation_1": entry(evaluations.kept_graphs, 961, "mlp"),
    "evaluation_2": entry(evaluations.gathered_scores, 962),
    "evaluation_near_1": entry(evaluations.small_evaluation, 963, "recurrent"),
    "evaluation_near_2": entry(evaluations.small_evaluation, 964, "mlp", larger=2),
    # Memory that is kept after its last use.
    "dead_1": entry(dead_weight.gradients, 971, "mlp"),
    "dead_2": entry(dead_weight.results, 972),
    "dead_near_1": entry(dead_weight.gradients, 973, "recurrent", cleared=True),
    "dead_near_2": entry(dead_weight.results, 974, freed=True),
}

SETS = {"development": DEVELOPMENT, "heldout": HELDOUT, "verdicts": VERDICTS, "kinds": KINDS}


def find(name):
    """Returns the set and the entry of a name."""
    for kind, entries in SETS.items():
        if name in entries:
            return kind, entries[name]
    raise SystemExit(f"cannot find the program {name}: see the names in programs/catalog.py")
