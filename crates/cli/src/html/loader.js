// Starts the viewer on the recording that this file holds. It stands in one script with what wasm-bindgen made, whose `__wbg_init` and
// `start` it calls; `window.vramscope.ready` is there before anything else, so that a script can wait for the rest.
{
  const take = id => {
    const element = document.getElementById(id);
    const bytes = Uint8Array.from(atob(element.textContent), letter => letter.charCodeAt(0));
    element.textContent = "";
    return new Blob([bytes]);
  };
  const viewer = take("viewer-wasm").stream().pipeThrough(new DecompressionStream("gzip"));
  const response = new Response(viewer, { headers: { "Content-Type": "application/wasm" } });
  const name = document.getElementById("recording").dataset.name;
  const file = new File([take("recording")], name);
  window.vramscope = {};
  window.vramscope.ready = __wbg_init({ module_or_path: response }).then(() => start(file)).catch(error => {
    document.getElementById("empty-title").textContent = "The viewer could not start";
    document.getElementById("empty-text").textContent = String(error);
    throw error;
  });
}
