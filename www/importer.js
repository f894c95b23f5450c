// Runs the importer, which converts a file of another format, in a worker. The worker's memory is
// free again when it ends. It gets one message, and answers as `web/engine/importing.rs` of the
// viewer says.
import init, { import_file } from "./pkg/vramscope_importer.js";

// The compiled importer of an exported page; undefined if init() loads it from the server.
let module;

onmessage = async ({ data: { wasm, name, source } }) => {
  if (wasm) {
    // Only an exported HTML page sends this, before the file: it contains the importer, compressed.
    const bytes = wasm.stream().pipeThrough(new DecompressionStream("gzip"));
    module = WebAssembly.compileStreaming(new Response(bytes, { headers: { "Content-Type": "application/wasm" } }));
    return;
  }
  try {
    const response = typeof source === "string" ? await fetch(source) : new Response(source);
    if (!response.ok) throw `${source}: the server answered ${response.status} ${response.statusText}`;
    // The content-length of a compressed response is not the file's length.
    const isEncoded = response.headers.has("content-encoding");
    const length = source.size ?? (isEncoded ? null : response.headers.get("content-length"));
    await init(module && { module_or_path: module });
    await import_file(
      name,
      response.body,
      length === null ? undefined : Number(length),
      part => postMessage({ part }, [part]),
      (share, text) => postMessage({ share, text }),
    );
    postMessage({ done: true });
  } catch (error) {
    postMessage({ failure: String(error?.message ?? error) });
  }
};
