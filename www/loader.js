// Starts the viewer with the recording in this file. Follows the script that wasm-bindgen
// generated, in the same module, and calls its `__wbg_init` and `start`. `window.vramscope.ready`
// exists at once, so that other scripts can await it.
{
  const takeBytes = id => {
    const element = document.getElementById(id);
    const bytes = Uint8Array.from(atob(element.textContent), c => c.charCodeAt(0));
    element.textContent = "";
    return new Blob([bytes]);
  };
  // Returns compressed WebAssembly as a server's answer. The engine's worker gets this function's
  // text.
  const unpack = blob => new Response(
    blob.stream().pipeThrough(new DecompressionStream("gzip")),
    { headers: { "Content-Type": "application/wasm" } },
  );
  const module = WebAssembly.compileStreaming(unpack(takeBytes("viewer-wasm")));
  // The functions that the viewer loads after its first picture.
  const later = takeBytes("viewer-later-wasm");
  self.openLaterModule = () => unpack(later);
  const name = document.getElementById("recording").dataset.name;
  const file = new File([takeBytes("recording")], name);

  // Returns a module's text as a classic script: for pages opened from disk, browsers refuse
  // workers that are modules.
  const asClassicScript = text => text
    .replace(/^export \{.*$/gm, "")
    .replace(/^export /gm, "")
    .replaceAll("import.meta.url", "self.location.href");

  // Starts the engine in a worker, whose script is the generated part of this one, and returns the
  // page's end of the channel to it. The engine starts workers for long computations.
  const workers = [["startImporter", "importer"], ["startAnalyzer", "analyzer"]].map(([start, name]) =>
    [start, asClassicScript(document.getElementById(`${name}-script`).textContent), takeBytes(`${name}-wasm`)]);
  const connect = () => {
    const script = [...document.querySelectorAll("script[type=module]")].at(-1).textContent;
    const generated = script.slice(0, script.indexOf("\n// Starts the viewer with the recording"));
    const receive = `onmessage = async ({ data: { module, later, port, workers } }) => {
      self.openLaterModule = () => (${unpack})(later);
      for (const [start, script, wasm] of workers) {
        const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
        self[start] = () => {
          const worker = new Worker(url);
          worker.postMessage({ wasm });
          return worker;
        };
      }
      await __wbg_init({ module_or_path: module });
      start_engine(port);
    };`;
    const url = URL.createObjectURL(new Blob([asClassicScript(generated), receive], { type: "text/javascript" }));
    const worker = new Worker(url);
    const { port1, port2 } = new MessageChannel();
    module.then(compiled =>
      worker.postMessage({ module: compiled, later, port: port2, workers }, [port2]));
    return port1;
  };

  window.vramscope = {};
  const starting = module.then(compiled => __wbg_init({ module_or_path: compiled }));
  window.vramscope.ready = starting.then(() => start(file, connect)).catch(error => {
    document.getElementById("empty-title").textContent = "The viewer could not start";
    document.getElementById("empty-text").textContent = String(error);
    throw error;
  });
}
