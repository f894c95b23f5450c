// Loads and starts the fleet page. `window.vramscopeFleet.ready` exists first, so that
// scripts can wait for the rest.
import init, { start, state } from "../pkg/vramscope_fleet_page.js";

// The color scheme that the user chose on the main page.
try {
  const theme = localStorage.getItem("vramscope.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the system's color scheme is used.
}

// The main page has a button that leads back here, with the choices that the address has.
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
