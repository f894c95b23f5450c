// Loads and starts the fleet page. `window.vramscopeFleet.ready` is set first, so that scripts can
// wait for the rest.
import init, { start, state } from "../pkg/vramscope_fleet_page.js";

// Applies the color scheme that the user chose on the main page.
try {
  const theme = localStorage.getItem("vramscope.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the system's color scheme is used.
}

// Stores this page's address, with the user's settings, for the main page's button to the fleet
// page.
addEventListener("pagehide", () => {
  try {
    sessionStorage.setItem("vramscope.fleet", `./fleet/${location.hash}`);
  } catch {
    // Without storage, the browser's own button leads back.
  }
});

window.vramscopeFleet = {};
window.vramscopeFleet.ready = init()
  .then(() => start())
  .then(() => { window.vramscopeFleet.state = () => JSON.parse(state()); })
  .catch(error => {
    document.getElementById("empty").textContent = `The page could not start: ${error}`;
    throw error;
  });
