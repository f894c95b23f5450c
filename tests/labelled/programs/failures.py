"""Out-of-memory errors whose free bytes are out of reach, and defects of PyTorch's allocator."""

from .compose import FAULT, MIB, Script, program


def other_streams(draw):
    """Most free bytes belong to a second stream, whose segment a small tensor pins."""
    script = Script(draw, draw.choice(("Prefetches on a second stream.", "Overlaps copies.")))
    stage, build = draw.name(), draw.name()
    size = draw.int(640, 960, 64)
    need = size * draw.choice((5, 6)) // 8
    script.function(
        f"""
        def $stage(side):
            with torch.cuda.stream(side):
                buffer = torch.ones({size} << 18, device=DEVICE)
                total = buffer.sum()
                del buffer
                table = torch.zeros({draw.int(12, 20)} << 18, device=DEVICE)
            side.synchronize()
            return total.item(), table
        """,
        stage=stage,
    )
    script.function(f"def $build():\n    return torch.ones({need} << 18, device=DEVICE){FAULT}", build=build)
    script.limit((size + need // 2) * MIB)
    script.do("side = torch.cuda.Stream()\ntotal, table = $stage(side)\nreport(0)", stage=stage)
    script.do("values = $build()\nreport(1)\nprint(total, values.mean().item(), table.shape)", build=build)
    return program(
        draw, script, "oom: free memory of another stream", "oom.other_stream", sites=[build, stage],
        remedy="expandable_segments:True", bytes=need * MIB,
    )  # fmt: skip


def private_pool(draw):
    """Most free bytes are in the private pool of a CUDA graph."""
    script = Script(draw, draw.choice(("Replays a captured graph.", "Serves a captured model.")))
    script.use("from torch import nn")
    width, rows = draw.choice((384, 512)), draw.int(14, 20) * 1024
    capture, build = draw.name(), draw.name()
    hidden = rows * 8 * width * 4
    need = hidden * 3 // 2 // MIB
    script.function(
        f"""
        @torch.no_grad()
        def $capture(model):
            inputs = torch.randn({rows}, {width}, device=DEVICE)
            model(inputs[:32])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = model(inputs)
            return graph, inputs, outputs
        """,
        capture=capture,
    )
    script.function(f"def $build():\n    return torch.ones({need} << 18, device=DEVICE){FAULT}", build=build)
    small = 2 * rows * width * 4 + 2 * 8 * width * width * 4
    script.limit(int(2.75 * hidden) + small + 96 * MIB)
    layers = f"nn.Linear({width}, {8 * width}), nn.GELU(), nn.Linear({8 * width}, {width})"
    script.do(f"model = nn.Sequential({layers}).to(DEVICE)")
    script.do("graph, inputs, outputs = $capture(model)\ngraph.replay()\nreport(0)", capture=capture)
    script.do("values = $build()\nreport(1)\nprint(outputs.mean().item(), values.mean().item())", build=build)
    return program(
        draw, script, "oom: free memory of a private pool", "oom.private_pool", sites=[build, capture],
        remedy="share the pool", bytes=need * MIB,
    )  # fmt: skip


def pending_frees(draw, again=True):
    """A fitting block is freed while a second stream uses it: pytorch/pytorch#189504.

    The failing request waits for the second stream and so frees the block, but does not look for
    it again. The same request succeeds right after the error.
    """
    script = Script(draw, draw.choice(("Reduces values on a second stream.", "Overlaps two streams.")))
    size = draw.int(640, 1024, 64)
    pin, slow = draw.int(16, 32, 4), draw.int(25, 35)
    begin, reduce, build = draw.name(), draw.name(), draw.name()
    script.function(f"def $begin():\n    return torch.zeros({size} << 18, device=DEVICE).sum().item()", begin=begin)
    script.function(
        f"""
        def $reduce(values, weights, side):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range({slow}):
                    weights = (weights @ weights) * 0.01
                total = values.sum()
            values.record_stream(side)
            return total
        """,
        reduce=reduce,
    )
    need = f"{size - 2 * pin} << 18"
    script.function(f"def $build():\n    return torch.ones({need}, device=DEVICE){FAULT}", build=build)
    # The segment, the products and workspaces of both streams, and less than the request needs.
    script.limit((size + size // 4 + 416) * MIB)
    script.do(
        f"""
        side = torch.cuda.Stream()
        weights = torch.randn(4096, 4096, device=DEVICE)
        with torch.cuda.stream(side):
            print((weights @ weights).mean().item())
        torch.cuda.empty_cache()
        print($begin())
        table = torch.zeros({pin} << 18, device=DEVICE)
        values = torch.ones({size - pin - 4} << 18, device=DEVICE)
        torch.cuda.synchronize()
        total = $reduce(values, weights, side)
        del values
        $wait
        report(0)
        """,
        begin=begin, reduce=reduce,
        wait="torch.cuda.synchronize()" if draw.fixed else "print(torch.cuda.memory_reserved())",
    )  # fmt: skip
    if again:
        script.do(
            """
            try:
                values = $build()
            except torch.OutOfMemoryError as error:
                print(error)
                values = $build()
            """,
            build=build,
        )
    else:
        script.do("values = $build()", build=build)
    script.do("report(1)\nprint(total.item(), values.mean().item(), table.shape)")
    return program(
        draw, script, "oom: pending frees (pytorch/pytorch#189504)", "oom.pending_frees", sites=[build, reduce],
        remedy="synchronize before", has_fix=True, defect=189504, bytes=(size - 2 * pin) * MIB,
    )  # fmt: skip


def pool_without_release(draw):
    """Inside `use_mem_pool`, a request fails while the default pool caches whole free segments.

    pytorch/pytorch#159674: the allocator treats the pool as a graph capture and does not release
    cached segments.
    """
    script = Script(draw, draw.choice(("Keeps results in a pool.", "Uses a pool for its tables.")))
    first, need = draw.int(512, 768, 64), draw.int(448, 640, 64)
    prepare, build = draw.name(), draw.name()
    script.function(
        f"""
        def $prepare():
            values = torch.ones({first} << 18, device=DEVICE)
            return values.square().mean().item()
        """,
        prepare=prepare,
    )
    script.function(
        f"""
        def $build(pool):
            with torch.cuda.use_mem_pool(pool):
                return torch.ones({need} << 18, device=DEVICE){FAULT}
        """,
        build=build,
    )
    script.limit((2 * first + need // 2) * MIB)
    script.do("print($prepare())\nreport(0)\npool = torch.cuda.MemPool()", prepare=prepare)
    script.do("values = $build(pool)\nreport(1)\nprint(values.mean().item())", build=build)
    return program(
        draw, script, "oom: no release inside use_mem_pool (pytorch/pytorch#159674)", "oom.pool_without_release",
        sites=[build], remedy="empty_cache before", defect=159674, bytes=need * MIB,
    )  # fmt: skip


def deferred_frees(draw):
    """Inside `use_mem_pool`, frees on a second stream are deferred: pytorch/pytorch#175015."""
    script = Script(draw, draw.choice(("Reduces values on a second stream.", "Overlaps two streams.")))
    size, consume, visit = draw.int(64, 128, 16), draw.name(), draw.name()
    wait = "torch.cuda.current_stream().wait_stream(side)" if draw.fixed else f"values.record_stream(side){FAULT}"
    script.function(
        f"""
        def $consume(side):
            values = torch.ones({size} << 18, device=DEVICE)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                total = values.sum()
            {wait}
            return total.item()
        """,
        consume=consume,
    )
    steps = draw.int(7, 10)
    script.function(
        f"""
        def $visit(pool, side):
            with torch.cuda.use_mem_pool(pool):
                for step in range({steps}):
                    print(step, $consume(side))
                    torch.cuda.synchronize()
                    report(step)
        """,
        visit=visit, consume=consume,
    )  # fmt: skip
    script.do("side, pool = torch.cuda.Stream(), torch.cuda.MemPool()\n$visit(pool, side)\nreport(-1)", visit=visit)
    return program(
        draw, script, "streams: frees deferred inside use_mem_pool (pytorch/pytorch#175015)", "streams.pending",
        sites=[consume, visit], remedy="wait for the stream instead of record_stream", has_fix=True, defect=175015,
        bytes=(steps - 1) * size * MIB,
    )  # fmt: skip


def oversize_expandable(draw):
    """Expandable segments do not reuse free ranges above max_split_size: pytorch/pytorch#193400."""
    script = Script(draw, draw.choice(("Processes groups of tensors.", "Runs rounds of requests.")))
    piece, count = draw.int(48, 72, 8), draw.int(5, 7)
    split = draw.int(3, 4) * piece
    build, visit = draw.name(), draw.name()
    script.function(f"def $build():\n    return torch.ones({piece} << 18, device=DEVICE){FAULT}", build=build)
    script.function(
        f"""
        def $visit(kept, step):
            group = [$build() for _ in range({count})]
            kept.append(torch.full((2 << 18,), float(step), device=DEVICE))
            return sum(it.mean().item() for it in group)
        """,
        visit=visit, build=build,
    )  # fmt: skip
    script.do("kept = []")
    script.loop(draw.int(7, 9), f"print(step, {visit}(kept, step))")
    return program(
        draw, script, "fragmentation: free ranges above max_split_size (pytorch/pytorch#193400)",
        "fragmentation.oversize", sites=[build, visit], conf=f"expandable_segments:True,max_split_size_mb:{split}",
        remedy="no max_split_size_mb", defect=193400, bytes=6 * piece * count * MIB,
    )  # fmt: skip


def ignored_threshold(draw):
    """garbage_collection_threshold needs a memory fraction: pytorch/pytorch#106660."""
    script = Script(draw, draw.choice(("Embeds documents.", "Scores sequences.")))
    apply, start = draw.name(), draw.int(512, 640, 32)
    script.function(
        f"""
        def $apply(size):
            values = torch.ones(size << 18, device=DEVICE)
            return (values * 2).mean().item(){FAULT}
        """,
        apply=apply,
    )
    if draw.fixed:
        script.do("torch.cuda.set_per_process_memory_fraction(0.9)")
    script.loop(draw.int(8, 10), f"print(step, {apply}({start} + {draw.int(96, 128, 8)} * step))")
    return program(
        draw, script, "fragmentation: threshold without effect (pytorch/pytorch#106660)",
        "fragmentation.ignored_threshold", sites=[apply], conf="garbage_collection_threshold:0.01",
        remedy="set_per_process_memory_fraction", has_fix=True, defect=106660,
    )  # fmt: skip
