"""Programs with free memory between the live blocks of a private pool."""

from .compose import FAULT, MIB, Script, program

FINDING = "pools.stranded"


def weights_in_pool(draw, final=False):
    """Loads weights in a pool: as float32 that is converted there, or (`final`) as they stay."""
    script = Script(draw, draw.choice(("Runs a loaded model.", "Answers requests with loaded weights.")))
    layers, width, wide = draw.int(48, 60, 6), 1024, 1536
    rows = draw.batch(draw.int(12, 16) * 1024)
    script.constant("LAYERS", layers)
    script.constant("POOL", "torch.cuda.MemPool()")
    read, load, answer = draw.name(), draw.name(), draw.name()
    script.function(
        f"""
        def $read(number):
            shape = ({width}, {wide}) if number % 2 == 0 else ({wide}, {width})
            return torch.randn(shape) * 0.02
        """,
        read=read,
    )
    if final or draw.fixed:
        body = """
            with torch.cuda.use_mem_pool(POOL):
                for number in range(LAYERS):
                    weights[number] = $read(number).to(torch.bfloat16).to(DEVICE)
        """
    else:
        body = f"""
            with torch.cuda.use_mem_pool(POOL):
                for number in range(LAYERS):
                    weights[number] = $read(number).to(DEVICE)
                for number in range(LAYERS):
                    weights[number] = weights[number].to(torch.bfloat16){FAULT}
        """
    script.function(f"""
        def $load():
            weights = {{}}
{body.strip(chr(10)).rstrip()}
            return weights
        """, load=load, read=read)  # fmt: skip
    script.function(
        """
        @torch.inference_mode()
        def $answer(weights, x):
            for number in range(0, LAYERS - 1, 2):
                x = x + torch.relu(x @ weights[number]) @ weights[number + 1]
            return x.float().mean().item()
        """,
        answer=answer,
    )
    script.do(f"weights = {load}()")
    script.loop(
        draw.int(10, 14),
        f"x = torch.randn({rows}, {width}, dtype=torch.bfloat16, device=DEVICE)\nprint(step, {answer}(weights, x))",
    )
    if final:
        return program(draw, script, "none (a pool of final weights)", "none", near=FINDING)
    return program(
        draw, script, "pools: free memory stranded between weights", FINDING, sites=[load],
        remedy="convert the weights before they enter the pool", has_fix=True, bytes=layers * width * wide * 2,
    )  # fmt: skip


def pruned_experts(draw, reused=False):
    """Loads experts into a pool and keeps one a layer. With `reused`, steps use the rest."""
    script = Script(draw, draw.choice(("Runs a pruned mixture of experts.", "Serves the best experts.")))
    layers, rows = draw.int(16, 22), 1280
    for name, value in (("LAYERS", layers), ("EXPERTS", 4), ("POOL", "torch.cuda.MemPool()")):
        script.constant(name, value)
    read, prune, answer = draw.name(), draw.name(), draw.name()
    # Four experts of 5 MiB fill a segment.
    script.function(
        "def $read(layer, number):\n    return torch.full((1280, 1024), 0.001 * (layer + number + 1))", read=read
    )
    if draw.fixed and not reused:
        body = "[$read(layer, best[layer]).to(DEVICE) for layer in range(LAYERS)]"
        body = f"with torch.cuda.use_mem_pool(POOL):\n    return {body}"
    else:
        body = (
            "with torch.cuda.use_mem_pool(POOL):\n"
            "    experts = [\n"
            f"        [$read(layer, number).to(DEVICE) for number in range(EXPERTS)]{FAULT}\n"
            "        for layer in range(LAYERS)\n"
            "    ]\n"
            "return [group[chosen] for group, chosen in zip(experts, best)]"
        )
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    script.function(f"def $prune(best):\n{lines}", prune=prune, read=read)
    script.do(
        f"""
        best = torch.rand(LAYERS, EXPERTS).argmax(dim=1).tolist()
        experts = {prune}(best)
        """
    )
    if reused:
        script.function(
            """
            @torch.inference_mode()
            def $answer(experts, x):
                states = []
                with torch.cuda.use_mem_pool(POOL):
                    for layer, expert in enumerate(experts):
                        x, expert = x[16:], expert[16 * (layer + 1) :]
                        states += [x * expert, x + expert, x - expert]
                return sum(float(state.mean()) for state in states)
            """,
            answer=answer,
        )
        script.loop(
            draw.int(10, 14), f"x = torch.randn({rows}, 1024, device=DEVICE)\nprint(step, {answer}(experts, x))"
        )
        return program(draw, script, "none (each step uses the free memory of the pool)", "none", near=FINDING)
    script.function(
        """
        @torch.inference_mode()
        def $answer(experts, x):
            for expert in experts:
                x = torch.tanh(x @ expert.t()) @ expert
            return x.mean().item()
        """,
        answer=answer,
    )
    script.loop(
        draw.int(10, 14), f"x = torch.randn({8 * rows}, 1024, device=DEVICE)\nprint(step, {answer}(experts, x))"
    )
    return program(
        draw, script, "pools: free memory stranded between kept experts", FINDING, sites=[prune],
        remedy="load only the kept experts", has_fix=True, bytes=layers * 15 * MIB,
    )  # fmt: skip
