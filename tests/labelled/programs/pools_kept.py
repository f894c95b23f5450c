"""Programs with a private pool: unused by most steps, or used by each."""

from .compose import FAULT, Script, program

UNUSED = "pools.unused"


def graph_parts(draw, title):
    """Returns a script with a model, and the functions that draw a batch and run a step."""
    script = Script(draw, title)
    script.use("from torch import nn")
    width, rows = draw.choice((512, 768)), draw.batch(draw.int(16, 22) * 1024)
    wide = 4 * width
    read, run = draw.name(), draw.name()
    script.constant("ROWS", rows)
    script.function(
        """
        def $read(batches, step):
            return batches[step % len(batches)].to(DEVICE)
        """,
        read=read,
    )
    layers = f"nn.Linear({width}, {wide}), nn.GELU(), nn.Linear({wide}, {wide}), nn.GELU(), nn.Linear({wide}, {width})"
    script.do(
        f"model = nn.Sequential({layers}).to(DEVICE).eval()\nbatches = [torch.randn(ROWS, {width}) for _ in range(2)]"
    )
    return script, read, run, 4 * rows * wide


def failed_capture(draw):
    """A capture fails, and its pool stays reserved while the program runs eagerly."""
    titles = ("Serves a model with CUDA graphs.", "Runs inference with a captured graph.")
    script, read, run, hidden = graph_parts(draw, draw.choice(titles))
    capture = draw.name()
    script.function(
        f"""
        @torch.no_grad()
        def $run(model, inputs):
            outputs = model(inputs){"" if draw.fixed else FAULT}
            largest = outputs.abs().amax().item()
            return outputs / max(largest, 1e-6)
        """,
        run=run,
    )
    if not draw.fixed:
        script.function(
            """
            def $capture(model, inputs):
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                graph, outputs = torch.cuda.CUDAGraph(), None
                with torch.cuda.stream(side):
                    $run(model, inputs)
                    side.synchronize()
                    try:
                        with torch.cuda.graph(graph, stream=side):
                            outputs = $run(model, inputs)
                    except RuntimeError as error:
                        print("cannot capture, continuing without a graph:", str(error)[:80])
                torch.cuda.synchronize()
                return graph, outputs
            """,
            capture=capture, run=run,
        )  # fmt: skip
    script.do(f"inputs = {read}(batches, 0)")
    body = f"outputs = {run}(model, inputs)"
    if not draw.fixed:
        script.do(f"graph, static_outputs = {capture}(model, inputs)")
        body = f"if static_outputs is None:\n    {body}\nelse:\n    graph.replay()\n    outputs = static_outputs"
    script.loop(draw.int(10, 14), f"inputs.copy_({read}(batches, step))\n{body}\nprint(step, float(outputs.mean()))")
    return program(
        draw, script, "pools: the pool of a failed capture stays reserved", UNUSED, sites=[run, capture],
        remedy="capture no step that waits for the GPU", has_fix=True, bytes=2 * hidden,
    )  # fmt: skip


def captured(draw):
    """A captured graph, replayed in each step."""
    titles = ("Serves a model with CUDA graphs.", "Runs inference with a captured graph.")
    script, read, run, _ = graph_parts(draw, draw.choice(titles))
    capture = draw.name()
    script.function(
        """
        @torch.no_grad()
        def $run(model, inputs):
            outputs = model(inputs)
            return outputs / outputs.abs().amax().clamp(min=1e-6)
        """,
        run=run,
    )
    script.function(
        """
        def $capture(model, inputs):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                $run(model, inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                outputs = $run(model, inputs)
            return graph, outputs
        """,
        capture=capture, run=run,
    )  # fmt: skip
    script.do(f"inputs = {read}(batches, 0)\ngraph, outputs = {capture}(model, inputs)")
    script.loop(
        draw.int(10, 14),
        f"inputs.copy_({read}(batches, step))\ngraph.replay()\nprint(step, float(outputs.mean()))",
    )
    return program(draw, script, "none (a captured graph, replayed in each step)", "none", near=UNUSED)


def phase_pool(draw, used):
    """A pool for the statistics of a data set: for one phase at the start, or in each step."""
    script = Script(draw, draw.choice(("Trains on normalized features.", "Fits a model to standardized data.")))
    script.use("from torch import nn", "from torch.nn import functional")
    rows, width = draw.batch(draw.int(64, 96, 16) * 1024), draw.choice((768, 1024))
    measure, train = draw.name(), draw.name()
    if not (draw.fixed and not used):
        script.constant("POOL", "torch.cuda.MemPool()")
    body = [
        f"values = features.to(DEVICE).repeat({rows} // len(features), 1){FAULT}",
        "mean = values.mean(dim=0)",
        "squares = (values - mean).square_()",
        "return mean.cpu(), squares.mean(dim=0).sqrt_().cpu()",
    ]
    if used or not draw.fixed:
        body = ["with torch.cuda.use_mem_pool(POOL):", *(f"    {line}" for line in body)]
    lines = "\n".join(f"    {line}" for line in body)
    script.function(f"def $measure(features):\n{lines}", measure=measure)
    batch, wide = draw.batch(16_384), 2 * width
    script.function(
        f"""
        def $train(model, optimizer, mean, deviation):
            inputs = torch.randn({batch}, {width}, device=DEVICE)
            inputs = (inputs - mean.to(DEVICE)) / (deviation.to(DEVICE) + 1e-6)
            loss = functional.mse_loss(model(inputs), inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=train,
    )
    script.do(
        f"""
        features = torch.randn(1024, {width})
        model = nn.Sequential(nn.Linear({width}, {wide}), nn.ReLU(), nn.Linear({wide}, {width})).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        """
    )
    call = f"mean, deviation = {measure}(features)"
    if not used:
        script.do(call)
    step = f"loss = {train}(model, optimizer, mean, deviation)\nprint(step, loss)"
    script.loop(draw.int(10, 14), f"{call}\n{step}" if used else step)
    if used:
        return program(draw, script, "none (a pool that each step uses)", "none", near=UNUSED)
    return program(
        draw, script, "pools: the pool of a finished phase stays reserved", UNUSED, sites=[measure],
        remedy="use the default pool in the first phase", has_fix=True, bytes=2 * rows * width * 4,
    )  # fmt: skip
