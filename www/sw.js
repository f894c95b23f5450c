// Keeps the files of the page, so that the page opens without its server. The server's files are
// used while it answers; recordings and everything else are left to the browser.

// The version of the page: the build replaces it by a checksum of the page's files.
const VERSION = "development";
const PREFIX = "vramscope-";
const FILES = [
  "icon.svg",
  "importer.js",
  "index.html",
  "main.js",
  "manifest.webmanifest",
  "pkg/vramscope_importer.js",
  "pkg/vramscope_importer_bg.wasm",
  "pkg/vramscope_viewer.js",
  "pkg/vramscope_viewer_bg.wasm",
  "start.js",
  "style.css",
  "worker.js",
];
// Files that a server may lack.
const EXAMPLES = ["examples/mlp_train.vram", "examples/oom_frag.vram", "examples/resnet50_train.vram"];
// The folder of the page on the server.
const folder = new URL("./", self.location).href;

self.addEventListener("install", event => {
  self.skipWaiting();
  // All files of this version or none.
  event.waitUntil(caches.open(PREFIX + VERSION).then(cache =>
    cache.addAll(FILES).then(() => Promise.allSettled(EXAMPLES.map(file => cache.add(file))))));
});

self.addEventListener("activate", event => {
  const isOld = name => name.startsWith(PREFIX) && name !== PREFIX + VERSION;
  event.waitUntil(caches.keys()
    .then(names => Promise.all(names.filter(isOld).map(name => caches.delete(name))))
    .then(() => self.clients.claim()));
});

self.addEventListener("fetch", event => {
  const { request } = event;
  // Without parameters, which may contain a token or the name of a recording.
  const url = request.url.split(/[?#]/)[0];
  const name = url.startsWith(folder) ? url.slice(folder.length) : undefined;
  const file = name === "" && request.mode === "navigate" ? "index.html" : name;
  if (request.method !== "GET" || ![...FILES, ...EXAMPLES].includes(file)) return;
  event.respondWith(fetch(request).catch(async error => {
    const kept = await caches.match(folder + file, { cacheName: PREFIX + VERSION, ignoreVary: true });
    if (!kept) throw error;
    return kept;
  }));
});
