// Ages that tick, keys, the filter of the overview, and light or dark. Everything else comes from the server.
(() => {
  "use strict";
  const root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("ckpt-theme"); } catch { return null; } })();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;

  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const tellQuasar = () => window.Quasar?.Dark.set(isDark());
  const switchTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("ckpt-theme", root.dataset.theme); } catch { /* only for this page, then */ }
    tellQuasar();
  };

  const short = (seconds) => {
    seconds = Math.max(0, seconds);
    if (seconds >= 172800) return `${Math.round(seconds / 86400)} d`;
    if (seconds >= 3600) return `${Math.round(seconds / 3600)} h`;
    if (seconds >= 60) return `${Math.round(seconds / 60)} min`;
    return `${Math.round(seconds)} s`;
  };
  const tick = () => {
    const now = Date.now() / 1000;
    for (const element of document.querySelectorAll("time[data-at]")) {
      const at = Number(element.dataset.at);
      const text = element.dataset.kind === "until" ? short(at - now)
        : element.dataset.kind === "for" ? short(now - at) : `${short(now - at)} ago`;
      if (element.textContent !== text) element.textContent = text;
    }
  };

  let wanted = "", level = "", chosen = "";
  const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => !row.hidden);
  const target = (row) => row?.querySelector("a.go")?.getAttribute("href") ?? "";
  const filter = () => {
    for (const row of document.querySelectorAll("[data-row][data-find]")) {
      row.hidden = !(row.dataset.find.includes(wanted) && (!level || row.dataset.level === level));
    }
    for (const button of document.querySelectorAll("[data-filter]")) {
      button.setAttribute("aria-pressed", String(button.dataset.filter === level));
    }
    const field = document.querySelector("[data-search]");
    if (field && field.value !== wanted && document.activeElement !== field) field.value = wanted;
    for (const row of document.querySelectorAll("[data-row]")) {
      row.classList.toggle("chosen", chosen !== "" && target(row) === chosen);
    }
  };
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => target(row) === chosen);
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))];
    chosen = target(next);
    filter();
    next.scrollIntoView({ block: "nearest" });
  };

  const KEYS = [["/", "find"], ["j  k", "next, previous"], ["Enter", "open"], ["n  p", "next, previous page of a table"], ["g o", "overview"],
    ["g t", "timeline"], ["d", "light or dark"], ["Esc", "close, clear"], ["?", "these keys"]];
  let help = null;
  const showHelp = (show) => {
    if (!help) {
      help = document.createElement("div");
      help.className = "keys";
      help.setAttribute("role", "dialog");
      help.setAttribute("aria-label", "Keys");
      const box = help.appendChild(document.createElement("div"));
      box.appendChild(document.createElement("h2")).textContent = "Keys";
      const list = box.appendChild(document.createElement("dl"));
      for (const [key, what] of KEYS) {
        list.appendChild(document.createElement("dt")).appendChild(document.createElement("kbd")).textContent = key;
        list.appendChild(document.createElement("dd")).textContent = what;
      }
      help.addEventListener("click", () => showHelp(false));
      document.body.appendChild(help);
    }
    help.hidden = !show;
  };

  // The pages of the table in which a row is chosen, else of the first one that has pages.
  const turn = (way) => {
    const panels = [...document.querySelectorAll(".table-panel")];
    const panel = panels.find((each) => each.querySelector(".chosen")) ?? panels.find((each) => each.querySelector("[data-page]"));
    panel?.querySelector(`[data-page="${way}"]`)?.click();
  };

  let afterG = 0;
  const timeline = () => {
    const way = location.pathname.split("/");
    if (["p", "v", "r"].includes(way[1]) && way[2]) return `/p/${way[2]}/timeline`;
    const row = target(rows()[0]);
    return chosen ? `${chosen}/timeline` : row ? `${row}/timeline` : "";
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target;
    const isTyping = field instanceof HTMLElement && (field.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(field.tagName));
    if (event.key === "Escape") {
      if (help && !help.hidden) { showHelp(false); return; }
      if (isTyping && field.matches("[data-search]")) { wanted = ""; field.value = ""; field.blur(); filter(); }
      return;
    }
    if (isTyping) {
      if (event.key === "Enter" && field.matches("[data-search], [data-find-in-table]")) { field.blur(); chosen = ""; move(1); }
      return;
    }
    if (document.querySelector(".q-dialog")) return;
    const isAfterG = Date.now() - afterG < 1200;
    afterG = 0;
    if (isAfterG && event.key === "o") location.assign("/");
    else if (isAfterG && event.key === "t") { const to = timeline(); if (to) location.assign(to); }
    else if (event.key === "g") afterG = Date.now();
    else if (event.key === "/") { event.preventDefault(); document.querySelector("[data-search], [data-find-in-table]")?.focus(); }
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "n" || event.key === "p") turn(event.key === "n" ? "next" : "previous");
    else if (event.key === "Enter" && chosen && !/^(A|BUTTON|SUMMARY)$/.test(field.tagName)) {
      rows().find((row) => target(row) === chosen)?.querySelector("a.go").click();
    }
    else if (event.key === "d") switchTheme();
    else if (event.key === "?") showHelp(!help || help.hidden);
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches?.("[data-search]")) { wanted = event.target.value.trim().toLowerCase(); filter(); }
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button");
    if (!button) return;
    if (button.dataset.filter !== undefined) { level = level === button.dataset.filter ? "" : button.dataset.filter; filter(); }
    else if (button.dataset.themeSwitch !== undefined) switchTheme();
    else if (button.dataset.help !== undefined) showHelp(true);
  });

  addEventListener("load", () => {
    tellQuasar();
    let isDue = false;
    new MutationObserver(() => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => { isDue = false; filter(); tick(); });
    }).observe(document.body, { childList: true, subtree: true });
    filter();
    tick();
    setInterval(tick, 1000);
  });
})();
