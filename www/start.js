// The start page (recordings that the server offers, recent files, the gallery) and the
// installation of the page. The page runs the commands below by `shell(command, value)`; a text
// that one returns is shown to the user.
import { byId, element } from "./dom.js";

// Maximum number of entries in the list of recent files.
const MOST_RECENT = 8;
// Folder of the gallery's recordings; only their URLs contain it.
const GALLERY_FOLDER = "examples/";

const app = byId("app");

// For each file, a promise of the handle by which the browser can open it again later.
const handles = new WeakMap();
// The event by which the browser offers to install the page.
let installPrompt;
addEventListener("beforeinstallprompt", event => { installPrompt = event; });

// Runs a request on the stored list of recent files and returns its result. Fails in private
// windows of some browsers.
const withRecent = async (mode, run) => {
  const database = await new Promise((resolve, reject) => {
    const request = indexedDB.open("vramscope", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("recent", { keyPath: "key" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction("recent", mode);
      const request = run(transaction.objectStore("recent"));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
};

// Returns the recent files, the newest first; none if the browser stores nothing.
const recentFiles = () => withRecent("readonly", store => store.getAll())
  .then(files => files.sort((a, b) => b.opened - a.opened), () => []);

// Adds a recording to the recent files, except a file that the page cannot open again, and a URL
// that contains a token.
const remember = async ({ url, file }) => {
  const handle = await handles.get(file);
  if (!url && !handle || /[?&]token=/.test(url)) return;
  const name = file ? file.name : decodeURIComponent(url.split(/[?#]/)[0].split("/").pop());
  const key = url || `${name} ${file.size} ${file.lastModified}`;
  await withRecent("readwrite", store => store.put(
    { key, name, url, handle, bytes: file?.size, opened: Date.now() }));
  for (const old of (await recentFiles()).slice(MOST_RECENT)) {
    await withRecent("readwrite", store => store.delete(old.key));
  }
};

// Opens a recent file: by its URL, or by its handle once the user permits that.
const reopen = async ({ key, url, handle }) => {
  try {
    if (url) return await vramscope.open(url);
    if (await handle.requestPermission({ mode: "read" }) !== "granted") return;
    const file = await handle.getFile();
    handles.set(file, Promise.resolve(handle));
    await vramscope.open(file);
  } catch (error) {
    // The recording is gone. For a URL, `open` has shown the error.
    await withRecent("readwrite", store => store.delete(key));
    await show();
    if (!url) return `cannot open the file again: ${error?.message ?? error}. Choose it with Open…`;
  }
};

// Formats a number of bytes or events: "1.5 MB", "1,200 events".
const bytesText = bytes => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
const eventsText = events => `${events.toLocaleString("en")} event${events === 1 ? "" : "s"}`;

// Returns the description of a recording in a list.
const description = parts => element("span", { className: "note" }, parts.filter(Boolean).join(" · "));

// Fills the list of recordings that the server offers.
const showServed = async () => {
  const { files = [] } = await fetch("./files").then(response => response.ok ? response.json() : {}, () => ({}));
  byId("served").hidden = files.length === 0;
  byId("compare-served").hidden = files.length < 2;
  byId("served-list").replaceChildren(...files.map(({ name, url, bytes, events }) => element("li", {},
    element("input", {
      type: "checkbox", value: url, checked: files.length === 2, hidden: files.length < 2,
      ariaLabel: `Compare ${name}`, onchange: updateCompare,
    }),
    element("a", { href: `?trace=${encodeURIComponent(url)}` }, name),
    description([bytesText(bytes), events !== null && eventsText(events)]))));
  updateCompare();
};

// Returns the URLs of the served recordings that are chosen for a comparison.
const chosen = () => [...document.querySelectorAll("#served-list input:checked")].map(field => field.value);
const updateCompare = () => { byId("compare-served").disabled = chosen().length !== 2; };

// Fills the list of recent files.
const showRecent = async () => {
  const files = await recentFiles();
  byId("recent").hidden = files.length === 0;
  byId("recent-list").replaceChildren(...files.map(({ name, bytes, opened }, index) => {
    const button = element("button", { type: "button", className: "link" }, name);
    button.dataset.command = `recent ${index}`;
    const when = new Date(opened).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    return element("li", {}, button, description([bytes && bytesText(bytes), when]));
  }));
};

// Loads the gallery's script, which the page needs only for the gallery.
const gallery = () => import("./gallery.js");
app.toggleAttribute("data-gallery", new URLSearchParams(location.search).has("gallery"));

// Fills the lists of the start page and the gallery.
const show = () => Promise.all([showServed(), showRecent(), gallery().then(({ showGallery }) => showGallery())])
  .then(() => {}, () => {});

// Saves the page with a recording in it as one HTML file. The server has the page as a template
// (`www/standalone.rs`), in which the recording and its names are empty.
const saveHtml = async ({ blob, url, name }) => {
  const template = await fetch("./viewer.html");
  if (!template.ok) return "this server cannot make HTML files: save the recording and run `vramscope export`";
  const answer = blob ? null : await fetch(url);
  if (answer && !answer.ok) return `cannot read ${name}: the server answered ${answer.status} ${answer.statusText}`;
  const recording = blob ?? await answer.blob();
  const text = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(recording);
  });
  const escaped = name.replace(/[&<>"']/g, letter => `&#${letter.charCodeAt(0)};`);
  const [head, tail] = (await template.text()).split('data-name=""></script>');
  const page = new Blob([head.replace("<title> ·", () => `<title>${escaped} ·`), `data-name="${escaped}">`,
    text.slice(text.indexOf(",") + 1), "</script>", tail], { type: "text/html" });
  const link = element("a", { href: URL.createObjectURL(page), download: name.replace(/\.vram$/, ".html") });
  link.click();
  // The user may have to choose a folder first.
  setTimeout(() => URL.revokeObjectURL(link.href), 600_000);
};

const commands = {
  show,
  "save-html": saveHtml,
  // Shows the start page over the recording, or hides it again.
  start: () => {
    if (app.dataset.stage !== "shown") return;
    app.toggleAttribute("data-start");
    return show();
  },
  // Hides the start page if it is over a recording; returns true if it was.
  close: () => {
    const wasShown = app.hasAttribute("data-start");
    app.removeAttribute("data-start");
    return wasShown;
  },
  // Called when a recording is on the page, `{ url, file }`; the URL is empty for a file.
  opened: recording => {
    app.removeAttribute("data-start");
    remember(recording).catch(() => {});
    if (!byId("guide").hidden || recording.url.includes(GALLERY_FOLDER)) {
      gallery().then(({ showGuide }) => showGuide(recording.url)).catch(() => {});
    }
  },
  // Lets the user choose a file, which can be opened again later; undefined if the browser cannot.
  choose: () => window.showOpenFilePicker?.().then(async ([handle]) => {
    const file = await handle.getFile();
    handles.set(file, Promise.resolve(handle));
    return file;
  }, () => null),
  // Returns the file that was dropped on the page.
  dropped: transfer => {
    const [file] = transfer.files;
    const [item] = transfer.items;
    if (file && item?.getAsFileSystemHandle) handles.set(file, item.getAsFileSystemHandle().catch(() => {}));
    return file;
  },
  recent: async index => {
    const file = (await recentFiles())[Number(index)];
    return file ? reopen(file) : "there are no recent files that this browser can open again";
  },
  forget: () => withRecent("readwrite", store => store.clear()).then(showRecent, () => {}),
  example: name => gallery().then(({ openEntry }) => openEntry(name)),
  "compare-served": () => {
    const [first, second] = chosen().map(encodeURIComponent);
    if (!second) return "choose two recordings in the list of recordings on this server";
    location.assign(`?trace=${first}&compare=${second}`);
  },
  install: async () => {
    if (!navigator.serviceWorker?.controller) {
      return "this page can be installed when it is opened by https or from this machine, and loaded again";
    }
    if (!installPrompt) return "this page works without its server; install it with the browser's menu";
    await installPrompt.prompt();
  },
};

export const shell = (command, value) => commands[command](value);

// Files that the operating system opens with the installed page.
window.launchQueue?.setConsumer(async ({ files: [handle] }) => {
  if (!handle) return;
  await vramscope.ready;
  const file = await handle.getFile();
  handles.set(file, Promise.resolve(handle));
  await vramscope.open(file).catch(() => {});
});
