// Loads and starts the viewer. `window.vramscope.ready` exists first, so that scripts can wait for
// the rest.
import init, { start } from "./pkg/vramscope_viewer.js";

window.vramscope = {};
window.vramscope.ready = init().then(() => start()).catch(error => {
  document.getElementById("empty-title").textContent = "The viewer could not start";
  document.getElementById("empty-text").textContent = String(error);
  throw error;
});
