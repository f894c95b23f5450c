// The gallery: recordings that come with the page, each with a question. `start.js` loads this file
// when the start page shows the gallery, or when one of its recordings is open.
import { byId, element } from "./dom.js";

const FOLDER = "examples/";

// A promise that resolves once the gallery's style sheet applies.
const styled = new Promise(resolve => {
  const link = element("link", { rel: "stylesheet", href: "./gallery.css", onload: resolve, onerror: resolve });
  document.head.append(link);
});

// A promise of the gallery's entries; empty if this page's server has no gallery.
let entries;
const load = () => entries ??= fetch(`${FOLDER}gallery.json`)
  .then(response => response.ok ? response.json() : {})
  .then(({ recordings = [] }) => recordings)
  .catch(() => {
    entries = undefined;
    return [];
  });

// Returns the page's address for the recordings of an entry: two are compared.
const address = ({ files }) => {
  const [first, second] = files.map(file => encodeURIComponent(`${FOLDER}${file}.vram`));
  return `?trace=${first}${second ? `&compare=${second}` : ""}`;
};

// Returns an entry of the gallery as an item of a list.
const card = entry => element("li", {}, element("a", { className: "card", href: address(entry) },
  element("b", {}, entry.title),
  element("span", { className: "note" }, entry.summary),
  element("span", {}, entry.question)));

// Fills the gallery of the start page.
export const showGallery = async () => {
  const [all] = await Promise.all([load(), styled]);
  byId("gallery").hidden = all.length === 0;
  const groups = [...new Set(all.map(({ group }) => group))];
  byId("gallery-list").replaceChildren(...groups.flatMap(name => [
    element("h4", {}, name),
    element("ul", {}, ...all.filter(({ group }) => group === name).map(card)),
  ]));
};

// Opens an entry by its name.
export const openEntry = async name => {
  const entry = (await load()).find(one => one.name === name);
  if (!entry) return `this page's server has no recording ${name} in its gallery`;
  location.assign(address(entry));
};

// The name of the entry that the guide shows. A guide that the user has closed stays closed for its
// entry.
let guided;

// Shows the guide if the recording at a URL is the first one of an entry, or else hides it.
export const showGuide = async url => {
  const path = file => new URL(file, location).pathname;
  const entry = url && (await load()).find(({ files }) => path(`${FOLDER}${files[0]}.vram`) === path(url));
  await styled;
  if (entry?.name === guided) return;
  guided = entry?.name;
  const guide = byId("guide");
  guide.hidden = !entry;
  if (!entry) return;
  const text = element("p", { id: "guide-answer", hidden: true }, entry.answer);
  const answer = element("button", { type: "button", ariaExpanded: "false" }, "Answer");
  answer.setAttribute("aria-controls", text.id);
  answer.onclick = () => {
    text.hidden = !text.hidden;
    answer.ariaExpanded = String(!text.hidden);
  };
  const close = element("button", { type: "button", ariaLabel: "Close the guide", title: "Close the guide" }, "×");
  close.onclick = () => { guide.hidden = true; };
  guide.replaceChildren(
    element("h2", {}, entry.title, close),
    element("p", {}, entry.summary),
    element("p", { className: "question" }, entry.question),
    element("p", {}, element("a", { href: `${address(entry)}#${entry.fragment}` }, "Where to look"), ` ${entry.look}`),
    answer,
    text,
  );
};
