"""Tells the recording what blocks are used for: parameters, gradients, optimizer state, input.

The allocator does not know it when it allocates a block. PyTorch's hooks for all optimizers do, at
each step; ``annotate`` adds what a model and its optimizer know before the first step.
"""

import importlib
import sys

from . import _workspaces
from ._blocks import add_blocks
from ._messages import print_message, raise_if_of_handler
from ._module_calls import Observer
from ._object_table import ObjectTable
from ._steps import StepMarks

#: Steps after which all optimizer state and all parameters are labelled again.
RELABEL_STEPS = 50
#: First steps at which they are always labelled: optimizers create their state in the first one.
FIRST_STEPS = 3
#: Calls of a module whose inputs are labelled. Requests of the same lines are inputs from then on.
INPUT_CALLS = 2


class Labels:
    """Labels the blocks of a session."""

    def __init__(self, session):
        self._session = session
        self._handles = []
        self.step_marks = StepMarks(session)
        #: The number of steps of each optimizer.
        self._steps = ObjectTable()
        #: The scope of each parameter of an annotated model.
        self._scopes = ObjectTable()
        #: False to leave out gradients, which are labelled at every step.
        self.labels_gradients = True
        self._workspaces = []
        #: The modules whose inputs are labelled or were, and what observes each.
        self._roots = ObjectTable()
        #: By address: the weak references to modules that were found last.
        self._root_references = {}

    def install(self):
        """Starts to label at every step of every optimizer."""
        # The package hides the module of this name.
        hooks = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            hooks.register_optimizer_step_pre_hook(_harmless(self._before_step)),
            hooks.register_optimizer_step_post_hook(_harmless(self._after_step)),
        ]
        self._workspaces = _workspaces.of_devices(sys.modules["torch"])

    def remove(self):
        """Stops to label."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._root_references = {}
        for observer in self._roots.clear():
            observer.remove()

    @property
    def is_installed(self):
        """True while the steps of optimizers label blocks."""
        return bool(self._handles)

    def label_inputs(self, root):
        """Labels the arguments of a module's next calls as inputs."""
        if root not in self._roots:
            self._roots.set(root, _InputCalls(root, self._relabel).observer)

    def label_inputs_of(self, roots):
        """Labels the arguments of the next calls of modules, to which ``roots`` has weak
        references. The program may delete a module meanwhile, so this holds one at a time, and each
        only after the first search that found it."""
        new_roots = [reference for reference in roots if id(reference) not in self._root_references]
        self._root_references = {id(reference): reference for reference in roots}
        for reference in new_roots:
            root = reference()
            if root is not None:
                _harmless(self.label_inputs)(root)
            del root

    def annotate(self, model, optimizer=None):
        """Labels a model's parameters, buffers and inputs, and the state of its optimizer."""
        root = type(model).__name__
        labelled = []
        for name, parameter in model.named_parameters():
            scope = _scope(root, name)
            self._scopes.set(parameter, scope)
            add_blocks(labelled, parameter, scope)
        for name, buffer in model.named_buffers():
            add_blocks(labelled, buffer, _scope(root, name))
        self._relabel("parameter", labelled)
        self.label_inputs(model)
        if optimizer is not None:
            self._label_state(optimizer)

    def _before_step(self, optimizer, _arguments, _keywords):
        step = self._steps.get(optimizer, 0)
        labels_all = step < FIRST_STEPS or step % RELABEL_STEPS == 0
        if not labels_all and not self.labels_gradients:
            return
        gradients = []
        parameters = []
        scopes = self._scopes
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and self.labels_gradients:
                    add_blocks(gradients, gradient, scopes.get(parameter, ""))
                if labels_all:
                    add_blocks(parameters, parameter, scopes.get(parameter, ""))
        self._relabel("gradient", gradients)
        self._relabel("parameter", parameters)

    def _after_step(self, optimizer, _arguments, _keywords):
        step = self._steps.get(optimizer, 0) + 1
        self._steps.set(optimizer, step)
        if step <= FIRST_STEPS or step % RELABEL_STEPS == 0:
            self._label_state(optimizer)
            self._session.end_step(self._workspaces)
        self.step_marks.after_step(optimizer)

    def _label_state(self, optimizer):
        labelled = []
        for parameter, state in list(optimizer.state.items()):
            scope = self._scopes.get(parameter, "")
            if isinstance(state, dict):
                for value in state.values():
                    add_blocks(labelled, value, scope)
        self._relabel("optimizer state", labelled)

    def _relabel(self, category, labelled):
        if labelled:
            self._session.relabel(category, labelled)


class _InputCalls:
    """Labels the arguments of a module's first calls as inputs."""

    def __init__(self, root, relabel):
        self._label = _harmless(lambda arguments: relabel("input", _nested(arguments)))
        self._calls = 0
        self._is_compiling = sys.modules["torch"].compiler.is_compiling
        self.observer = Observer(root, self._begin)

    def _begin(self, _module, arguments):
        if self._is_compiling():
            return
        self._label(arguments)
        self._calls += 1
        if self._calls == INPUT_CALLS:
            self.observer.remove()


def _scope(root, name):
    """Returns the scope of a parameter's module: ``GPT/blocks/0`` for ``blocks.0.weight``."""
    return "/".join([root, *name.split(".")[:-1]])


def _harmless(function):
    """Returns a function that calls ``function`` and keeps its errors from the program. The first
    error is printed."""

    def call(*arguments):
        try:
            function(*arguments)
        except Exception as error:
            raise_if_of_handler(error)
            global _has_failed
            if not _has_failed:
                _has_failed = True
                print_message(f"some blocks have no category: {error!r}")

    return call


_has_failed = False


def _nested(value):
    """Returns the blocks of the CUDA tensors in lists, tuples and dictionaries."""
    labelled = []
    _add_nested(labelled, value)
    return labelled


def _add_nested(labelled, value, depth=4):
    """Adds the blocks of the CUDA tensors in lists, tuples and dictionaries."""
    if isinstance(value, (list, tuple)):
        values = value
    elif isinstance(value, dict):
        values = value.values()
    else:
        add_blocks(labelled, value, "")
        return
    if depth > 0:
        for inner in values:
            _add_nested(labelled, inner, depth - 1)
