// Elements of the page, for the start page and the gallery.

export const byId = id => document.getElementById(id);

// Creates an element with attributes and children.
export const element = (tag, attributes, ...children) => {
  const created = Object.assign(document.createElement(tag), attributes);
  created.append(...children);
  return created;
};
