// Shows the page in the output of a notebook's cell. `id` names the output's elements, `place` says
// where the page is: port and query for the proxy of the notebook's server, and url for a browser
// on the kernel's machine.
async (id, { name, port, query, url, height }) => {
  // Returns the path of the notebook's server; undefined in other programs that show notebooks.
  const basePath = () => {
    try {
      return JSON.parse(document.getElementById("jupyter-config-data").textContent).baseUrl;
    } catch {
      return document.body.dataset.baseUrl;
    }
  };
  const element = (tag, attributes, ...children) => {
    const created = Object.assign(document.createElement(tag), attributes);
    created.append(...children);
    return created;
  };
  const link = (href, text) => element("a", { href, target: "_blank", rel: "noopener noreferrer" }, text);
  // A page without a port for the proxy is one at an address of the network.
  const direct = () =>
    [link(url, "open the page"), port === null ? "." : " in a browser on the kernel's machine."];
  const code = text => element("code", {}, text);

  const base = port === null ? undefined : basePath();
  const page = base && `${base.replace(/\/?$/, "/")}proxy/${port}/`;
  // Answered without the token, so it shows who answers.
  const health = page && await fetch(`${page}healthz`).then(
    async response => ({ status: response.status, text: await response.text() }), () => ({ status: 0, text: "" }));
  const isPage = health?.status === 200 && health.text.trim() === "ok";

  const content = () => {
    if (isPage) {
      const frame = element("iframe", { src: page + query, title: `vramscope: ${name}`, allow: "fullscreen" });
      frame.style.cssText = `display: block; box-sizing: border-box; width: 100%; height: ${height}px;
        border: 1px solid var(--jp-border-color2, #bbb); border-radius: 3px`;
      const below = element("div", {}, `${name} · `, link(page + query, "open in a new tab"));
      below.style.cssText = "font-size: 12px; padding: 4px 1px; color: var(--jp-ui-font-color2, #666)";
      return [frame, below];
    }
    const title = element("b", {}, "vramscope");
    if (!page) return [title, `: ${name}: `, ...direct()];
    if (health.status === 403) {
      return [title, `: the program that serves ${name} does not accept the host name `, code(location.hostname),
        ": start it with ", code(`VRAMSCOPE_ALLOW_HOST=${location.hostname}`), " (PyTorch) or ",
        code(`--allow-host ${location.hostname}`), " (commands)."];
    }
    if (health.status === 404) {
      return [title, ": to show the page here, install the proxy where the Jupyter server runs (",
        code("pip install jupyter-server-proxy"), "), restart that server, and run the cell again. Or ",
        ...direct()];
    }
    return [title, `: ${name} is no longer served, or by a machine other than the Jupyter server's. `,
      "Run the cell again to show it."];
  };
  // More than one if the user has opened a second view of the output.
  for (const output of document.querySelectorAll(`[data-vramscope="${id}"]`)) {
    if (!output.querySelector("iframe")) output.replaceChildren(...content());
  }
}
