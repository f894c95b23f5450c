"""Servers without steps: many small requests, with and without something kept of them."""

from .compose import FAULT, Script, program

FINDING = "growth.server"
# More than the events of 120,000 requests.
MAX_ENTRIES = 1_500_000
REPORT_EVERY = 20_000
TITLES = ("Serves requests.", "Answers queries of a queue.", "A recommendation service.")


def server(draw, table_rows):
    """Returns a script with a table that requests read."""
    script = Script(draw, draw.choice(TITLES))
    script.use("import random")
    script.constant("REQUESTS", 120_000)
    script.do(
        f"""
        choices = random.Random({draw.seed})
        table = torch.randn({table_rows}, 1 << 18, device=DEVICE)
        """
    )
    return script


def serve(script, body, **values):
    """Adds the loop over requests, with a report after every 20,000."""
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").split("\n"))
    script.do(
        "for number in range(1, REQUESTS + 1):\n"
        + lines
        + f"\n    if number % {REPORT_EVERY} == 0:\n        report(number)",
        **values,
    )


def profiles(draw, bounded=False):
    """Keeps a profile for each new user, without or with a bound."""
    script = server(draw, draw.int(96, 128, 16) + (64 if bounded else 0))
    handle = draw.name()
    sizes = (128,) if bounded else draw.choice(((64, 96, 128, 192, 256), (64, 128, 160, 192)))
    script.constant("PROFILE_KIB", sizes)
    script.constant("QUERY_SIZES", "(4096, 8192, 12288, 16384, 32768, 49152, 65536, 131072)")
    bound = f"    if len(profiles) > {draw.int(600, 750, 50)}:\n        profiles.popitem(last=False)\n"
    recent = "    profiles.move_to_end(user)\n"
    place = "" if draw.fixed and not bounded else ", device=DEVICE"
    if bounded:
        script.use("from collections import OrderedDict")
    script.function(
        "def $handle(table, profiles, user, size, kib):\n"
        "    query = table[user % len(table), :size] * 0.5\n"
        "    if user not in profiles:\n"
        f"        profiles[user] = torch.zeros(kib * 256{place}){FAULT}\n"
        + (recent + bound if bounded else "")
        + "    scores = query + profiles[user][0]\n"
        "    return scores.shape[0]",
        handle=handle,
    )
    # One request in fifty comes from a new user.
    script.do(f"profiles = {'OrderedDict()' if bounded else '{}'}\nusers, served = 0, 0")
    serve(
        script,
        """
if number % 50 == 1:
    users += 1
served += $handle(table, profiles, users, choices.choice(QUERY_SIZES), PROFILE_KIB[users % len(PROFILE_KIB)])
""",
        handle=handle,
    )
    script.do("print(len(profiles), served)")
    if bounded:
        return program(
            draw, script, "none (a cache of users with a bound)", "none", near=FINDING, max_entries=MAX_ENTRIES
        )
    return program(
        draw, script, "growth: a server keeps a profile for each user", FINDING, sites=[handle],
        remedy="keep the profiles on the CPU", has_fix=True, max_entries=MAX_ENTRIES,
        bytes=sum(sizes) * 1024 // len(sizes) * 120_000 // 50,
    )  # fmt: skip


def statistics(draw):
    """Appends a small tensor of statistics for each request."""
    script = server(draw, draw.int(64, 96, 16))
    script.use("from collections import deque")
    handle, finish, measure = draw.name(), draw.name(), draw.name()
    groups = draw.choice((256, 512))
    script.constant("SIZES", "(8192, 16384, 32768, 65536, 98304, 131072, 196608, 262144)")
    kept = "values.mean().item()" if draw.fixed else "values"
    script.functions.append(
        "class Metrics:\n    def __init__(self):\n        self.values = []\n\n"
        f"    def {measure}(self, result):\n"
        f"        values = result.view({groups}, -1).amax(dim=1){FAULT}\n"
        f"        self.values.append({kept})"
    )
    script.function(
        """
        def $handle(table, number, size):
            return table[number % len(table), :size] * 2
        """,
        handle=handle,
    )
    script.function(
        """
        def $finish(metrics, waiting):
            metrics.$measure(waiting.popleft())
        """,
        finish=finish, measure=measure,
    )  # fmt: skip
    script.do("metrics, waiting = Metrics(), deque()")
    serve(
        script,
        """
waiting.append($handle(table, number, choices.choice(SIZES)))
while len(waiting) > choices.randint(1, 8):
    $finish(metrics, waiting)
""",
        handle=handle, finish=finish,
    )  # fmt: skip
    script.do("print(len(metrics.values))")
    return program(
        draw, script, "growth: a server keeps statistics of each request", FINDING, sites=[measure, finish],
        remedy="keep numbers", has_fix=True, max_entries=MAX_ENTRIES, bytes=4 * groups * 120_000,
    )  # fmt: skip


def waves(draw):
    """The number of requests in flight goes up and down."""
    script = server(draw, draw.int(64, 96, 16))
    script.use("from collections import deque")
    handle, allowed = draw.name(), draw.name()
    most, period = draw.int(300, 400, 20), draw.choice((4000, 5000))
    script.constant("SIZES", "(16384, 32768, 65536, 98304, 131072, 163840, 196608, 262144)")
    script.function(
        f"""
        def $allowed(number):
            phase = number % {period} / {period}
            return 1 + int({most} * min(phase, 1 - phase) * 2)
        """,
        allowed=allowed,
    )
    script.function(
        """
        def $handle(table, number, size):
            query = table[number % len(table), :size] * 2
            return query + 1
        """,
        handle=handle,
    )
    script.do("waiting, finished = deque(), 0")
    serve(
        script,
        """
waiting.append($handle(table, number, choices.choice(SIZES)))
while len(waiting) > $allowed(number):
    finished += waiting.popleft().shape[0]
""",
        handle=handle, allowed=allowed,
    )  # fmt: skip
    script.do("print(finished)")
    return program(
        draw, script, "none (requests in flight vary with the load)", "none", near=FINDING, max_entries=MAX_ENTRIES
    )
