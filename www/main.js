// Loads and starts the viewer: the page on this thread, and the engine, which draws it, in a
// worker. `window.vramscope.ready` is set first, so that scripts can wait for the rest.
import init, { start } from "./pkg/vramscope_viewer.js";
import { shell } from "./start.js";

const module = WebAssembly.compileStreaming(fetch(new URL("./pkg/vramscope_viewer_bg.wasm", import.meta.url)));

// Starts the engine and returns the page's end of the channel to it.
const connect = () => {
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const { port1, port2 } = new MessageChannel();
  module.then(compiled => worker.postMessage({ module: compiled, port: port2 }, [port2]));
  return port1;
};

// Shows the button to the fleet page if this page was opened from there.
try {
  const address = sessionStorage.getItem("vramscope.fleet");
  const button = document.getElementById("fleet");
  button.hidden = !address;
  button.onclick = () => location.assign(address);
} catch {
  // Without storage, the browser's own button leads back.
}

window.vramscope = {};
window.vramscope.ready = module
  .then(compiled => init({ module_or_path: compiled }))
  .then(() => start(undefined, connect, shell))
  .catch(error => {
    document.getElementById("empty-title").textContent = "The viewer could not start";
    document.getElementById("empty-text").textContent = String(error);
    throw error;
  });

// Registers the service worker, with which the page opens without its server: two seconds after the
// start, because opening the page comes first. Not in a frame: a notebook shows each page at
// another address, and the service worker would store the files of all.
if (isSecureContext && navigator.serviceWorker && self === top) {
  const register = () => navigator.serviceWorker.register("./sw.js").catch(() => {});
  window.vramscope.ready.then(() => setTimeout(register, 2000), () => {});
}
