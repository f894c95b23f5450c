// Loads the viewer and starts it. `window.vramscope.ready` is there before anything else, so that a script can wait for the rest.
import init, { start } from "./pkg/vramscope_viewer.js";

window.vramscope = {};
window.vramscope.ready = init().then(() => start()).catch(error => {
  document.getElementById("empty-title").textContent = "The viewer could not start";
  document.getElementById("empty-text").textContent = String(error);
  throw error;
});
