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
  const wasmBytes = takeBytes("viewer-wasm").stream().pipeThrough(new DecompressionStream("gzip"));
  const response = new Response(wasmBytes, { headers: { "Content-Type": "application/wasm" } });
  const name = document.getElementById("recording").dataset.name;
  const file = new File([takeBytes("recording")], name);
  window.vramscope = {};
  window.vramscope.ready = __wbg_init({ module_or_path: response }).then(() => start(file)).catch(error => {
    document.getElementById("empty-title").textContent = "The viewer could not start";
    document.getElementById("empty-text").textContent = String(error);
    throw error;
  });
}
