// Runs the analyzer, which computes over a whole recording, in a worker. The worker's memory is
// free again when it ends. It gets the recording with the first request, and answers as
// `web/engine/page_worker.rs` of the viewer says.
import init, { open_recording } from "./pkg/vramscope_analyzer.js";

// The compiled analyzer of an exported page; undefined if init() loads it from the server.
let module;
// A promise of the opened recording.
let recording;

// Returns the length of a recording and a function that reads a range of its bytes.
const access = async source => {
  if (typeof source === "string") {
    const range = (from, to) => fetch(source, { headers: { range: `bytes=${from}-${to - 1}` } });
    const head = await range(0, 64);
    const [, length] = head.headers.get("content-range")?.match(/\/(\d+)$/) ?? [];
    if (head.status === 206 && length) {
      return [Number(length), async (from, to) => {
        const part = await range(from, to);
        if (part.status !== 206) throw `${source}: the server answered ${part.status} ${part.statusText}`;
        return part.arrayBuffer();
      }];
    }
    if (head.status >= 400) throw `${source}: the server answered ${head.status} ${head.statusText}`;
    source = await (head.status === 200 ? head : await fetch(source)).blob();
  }
  return [source.size, (from, to) => source.slice(from, to).arrayBuffer()];
};

onmessage = async ({ data: { wasm, source, request } }) => {
  if (wasm) {
    // Only an exported HTML page sends this, before the recording: it contains the analyzer.
    const bytes = wasm.stream().pipeThrough(new DecompressionStream("gzip"));
    module = WebAssembly.compileStreaming(new Response(bytes, { headers: { "Content-Type": "application/wasm" } }));
    return;
  }
  try {
    recording ??= Promise.all([access(source), init(module && { module_or_path: module })])
      .then(([[length, read]]) => open_recording(length, read));
    const result = await (await recording).answer(
      request,
      part => postMessage({ part }, [part]),
      (share, text) => postMessage({ share, text }),
    );
    postMessage({ done: result });
  } catch (error) {
    postMessage({ failure: String(error?.message ?? error) });
  }
};
