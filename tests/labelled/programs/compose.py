"""Composes the source text of a program from templates and a seed, and finds the line at fault."""

import ast
import random
import textwrap
from dataclasses import dataclass, field
from string import Template

MIB = 1 << 20
# Ends the line of a template that causes the problem. The composed program does not contain it.
FAULT = "  #!fault"
# Names of functions, for culprits and harmless functions alike, so that no name tells them apart.
FUNCTION_NAMES = """
    train run_epoch evaluate collect update_metrics fit process handle advance iterate apply_model
    consume run_batch do_round visit forward_pass prepare finish compute refresh observe accept
    dispatch track summarize step_once load_part measure gather_results take_turn
""".split()


@dataclass(frozen=True)
class Options:
    """Changes to a program that a remedy may ask for."""

    batch_scale: float = 1.0
    # Checkpoints the repeated blocks of the model.
    checkpoint: bool = False
    # Composes the program without its mistake, where the template knows how.
    fixed: bool = False
    device: str = "cuda"


@dataclass
class Program:
    """A composed program and what is known about it."""

    label: str
    finding: str
    # Source text by file name; `train.py` is the main file.
    files: dict
    remedy: str | None = None
    conf: str = ""
    # The function at fault, as stacks of allocations or releases name it.
    site: str | None = None
    # All functions that an analysis may name.
    sites: list = field(default_factory=list)
    # The line at fault and its function, which may not appear in any stack.
    line: str | None = None
    line_function: str | None = None
    # Bytes that the problem costs, where the template can compute them.
    bytes: int | None = None
    # True if `Options.fixed` changes the program.
    has_fix: bool = False
    # The program measures memory of the device that other programs on it would change.
    alone: bool = False
    family: str | None = None
    # The issue of pytorch/pytorch that describes the cause.
    defect: int | None = None
    # The finding that a healthy program resembles without having it.
    near: str | None = None
    # The program itself starts the history, after it has made its model.
    late_history: bool = False
    # Events that the history holds.
    max_entries: int = 200_000


class Draw:
    """The seeded choices of one program."""

    def __init__(self, seed, options):
        self.rng = random.Random(seed)
        self.seed = seed
        self.options = options
        self.fixed = options.fixed
        self._names = self.rng.sample(FUNCTION_NAMES, len(FUNCTION_NAMES))
        # Steps as annotations of the profiler, as in one program of four.
        self.annotates = self.rng.random() < 0.25

    def name(self):
        """Returns a function name that was not returned before."""
        return self._names.pop()

    def choice(self, values):
        return self.rng.choice(list(values))

    def int(self, low, high, multiple=1):
        """Returns a multiple of `multiple` from `low` to `high`."""
        return self.rng.randint(low // multiple, high // multiple) * multiple

    def batch(self, size):
        """Returns a batch size, scaled by `Options.batch_scale`."""
        return max(1, int(size * self.options.batch_scale))

    def shuffled(self, values):
        return self.rng.sample(list(values), len(values))


def fill(template, **values):
    """Removes the common indentation of a template, and replaces `$name` by values."""
    return Template(textwrap.dedent(template).strip("\n")).substitute(values)


def indent(text, columns=4):
    return textwrap.indent(text, " " * columns)


class Script:
    """The parts of `train.py`."""

    def __init__(self, draw, title):
        self.draw = draw
        self.title = title
        self.imports = ["import torch"]
        self.local_imports = ["from progress import report"]
        self.constants = [f'DEVICE = "{draw.options.device}"']
        self.functions = []
        self.main = []
        self.late_history = False

    def use(self, *imports):
        for line in imports:
            target = self.local_imports if line.startswith("from model") else self.imports
            if line not in target:
                target.append(line)

    def constant(self, name, value):
        self.constants.append(f"{name} = {value}")
        return name

    def function(self, template, **values):
        self.functions.append(fill(template, **values))

    def do(self, template, **values):
        """Adds statements to `main`."""
        self.main.append(fill(template, **values))

    def loop(self, count, body, variable="step", **values):
        """Adds a loop of steps to `main`, each reported at its end."""
        text = fill(body, **values)
        if self.draw.annotates:
            text = f'with torch.profiler.record_function(f"{variable} {{{variable}}}"):\n' + indent(text)
        self.main.append(f"for {variable} in range({count}):\n" + indent(f"{text}\nreport({variable})"))

    def start_history(self, index=None):
        """Starts the history at the end of `main` so far, or before the statement `index`."""
        self.late_history = True
        index = len(self.main) if index is None else index
        self.main.insert(index, "torch.cuda.memory._record_memory_history(max_entries=200_000)")

    def limit(self, limit_bytes):
        """Adds a cap of the pool, in bytes, to the beginning of `main`."""
        self.constant("LIMIT_BYTES", f"{limit_bytes // MIB} << 20")
        self.main.insert(
            0,
            "total = torch.cuda.mem_get_info()[1]\n"
            "torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total)",
        )

    def text(self):
        main = "def main():\n" + indent("\n".join([f"torch.manual_seed({self.draw.seed})", *self.main]))
        functions = [*self.draw.shuffled(self.functions), main]
        imports = sorted(self.imports, key=lambda line: (not line.startswith("import"), line))
        imports += ["", *sorted(self.local_imports)]
        parts = [
            f'"""{self.title}"""\n\n' + "\n".join(imports) + "\n\n" + "\n".join(self.constants),
            *functions,
            'if __name__ == "__main__":\n    main()\n',
        ]
        return "\n\n\n".join(parts)


def program(draw, script, label, finding, family=None, files=None, sites=(), site=None, **facts):
    """Returns the program of a script.

    The line that ends in `FAULT` becomes the line at fault; its function is the site by default.
    """
    files = {"train.py": script.text(), **(files or {})}
    if family is not None:
        files["model.py"] = family.source
        facts["family"] = family.name
    function, line, shown = None, None, None
    for name, text in files.items():
        lines = text.split("\n")
        marked = [index for index, text in enumerate(lines) if text.endswith(FAULT)]
        if marked:
            lines = [text.removesuffix(FAULT) for text in lines]
            line = lines[marked[0]].strip()
            shown = f"{name}:{marked[0] + 1}"
            function = enclosing_function("\n".join(lines), marked[0] + 1)
            files[name] = "\n".join(lines)
        ast.parse(files[name])
    if finding == "none":
        # A template may have the line for another of its kinds.
        function, line, shown = None, None, None
    site = site or function
    if shown is not None:
        sites = (*sites, shown)
    others = [name for name in dict.fromkeys((function, *sites)) if name not in (None, site)]
    # Other programs on the device would change the free bytes that a failure records.
    facts["alone"] = facts.get("alone", False) or finding.startswith("oom")
    return Program(
        label=label,
        finding=finding,
        files=files,
        site=site,
        sites=[site, *others] if site else others,
        line=line,
        line_function=function,
        late_history=script.late_history,
        **facts,
    )


def enclosing_function(source, line):
    """Returns the name of the innermost function that contains a line, or None."""
    found = None
    for node in ast.walk(ast.parse(source)):
        contains = isinstance(node, ast.FunctionDef) and node.lineno <= line <= node.end_lineno
        if contains and (found is None or node.lineno > found.lineno):
            found = node
    return found and found.name
