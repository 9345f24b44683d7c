// Makes pages live: one event stream a page, a visible sign of it, polling where streams do not pass; keys; copying.
(() => {
  "use strict";
  const body = document.body;
  const chip = document.getElementById("live");

  // ---- The stream
  const live = { url: body.dataset.live, poll: body.dataset.poll, after: Number(body.dataset.after || 0) };
  const STALE_MS = 25000, POLL_MS = 5000, PAUSE_MS = 700;
  let source = null, failures = 0, lastWord = 0, poller = 0, pending = 0, news = 0, over = false;


  function show(tone, words) {
    if (!chip) return;
    chip.hidden = false;
    chip.className = "chip " + tone;
    const label = chip.querySelector("span");
    if (label.textContent !== words) label.textContent = words;
    chip.dataset.state = words.split(" ")[0];
  }
  function heard(message) {
    lastWord = Date.now();
    if (message.sequence) live.after = Math.max(live.after, message.sequence);
    const mode = source ? "live" : "polling";
    if (message.coordinator === false) show("warn", mode + ", coordinator away");
    else show(source ? "live" : "wait", mode);
    if (heard.coordinator !== undefined && heard.coordinator !== message.coordinator) changed();
    heard.coordinator = message.coordinator;
  }
  function changed() {
    news += 1;
    // The first change starts the clock, later ones wait for it: a busy federation must not put the page off for ever.
    if (!pending) pending = window.setTimeout(() => { pending = 0; apply(); }, PAUSE_MS);
  }
  // Rows under the pointer do not jump: pages with a list say that there is more, and wait.
  function apply() {
    if (document.querySelector("[data-fresh]")) return offer();
    if (window.htmx && document.querySelector("[hx-trigger*='hanse:change']")) window.htmx.trigger(body, "hanse:change");
    else offer();
  }
  function offer() {
    let pill = document.getElementById("news");
    if (!pill) {
      pill = document.createElement("button");
      pill.id = "news";
      pill.className = "pill";
      pill.addEventListener("click", () => window.location.reload());
      body.append(pill);
    }
    pill.textContent = news === 1 ? "Something is new: show it" : news + " changes: show them";
  }
  function open() {
    if (!live.url || source || over) return;
    window.clearInterval(poller);
    source = new EventSource(live.url + (live.url.includes("?") ? "&" : "?") + "after=" + live.after);
    source.addEventListener("open", () => { failures = 0; lastWord = Date.now(); show("live", "live"); });
    source.addEventListener("change", (event) => { heard(JSON.parse(event.data)); changed(); });
    source.addEventListener("beat", (event) => heard(JSON.parse(event.data)));
    source.addEventListener("expired", expired);
    source.addEventListener("error", () => {
      failures += 1;
      show("warn", "reconnecting");
      if (failures >= 3 || source.readyState === EventSource.CLOSED) { close(); ask(); poller = window.setInterval(ask, POLL_MS); }
    });
  }
  function close() { if (source) source.close(); source = null; }
  function expired() {
    over = true;
    close();
    window.clearInterval(poller);
    show("bad", "session ended");
    const link = document.createElement("a");
    link.className = "button";
    link.href = body.dataset.login + "?next=" + encodeURIComponent(window.location.pathname + window.location.search);
    link.textContent = "Log in again";
    if (chip) chip.after(link);
  }
  async function ask() {
    if (over) return;
    try {
      const answer = await fetch(live.poll + (live.poll.includes("?") ? "&" : "?") + "after=" + live.after);
      if (answer.status === 401) return expired();
      if (!answer.ok) throw new Error(answer.status);
      const message = await answer.json();
      failures = 0;
      heard(message);
      if (message.changed) changed();
      if (++ask.good % 6 === 0) open();  // streams may pass again
    } catch { show("bad", "stale since " + new Date(lastWord || Date.now()).toISOString().slice(11, 16) + " UTC"); }
  }
  ask.good = 0;
  if (live.url) {
    show("idle", "connecting");
    open();
    window.setInterval(() => {
      if (source && lastWord && Date.now() - lastWord > STALE_MS) {
        show("bad", "stale since " + new Date(lastWord).toISOString().slice(11, 16) + " UTC");
        close();
        open();
      }
    }, 5000);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { close(); show("idle", "paused"); } else open();
    });
    window.addEventListener("pagehide", close);
  }

  // ---- What a person has opened or focused stays so when a region is replaced
  let kept = null;
  body.addEventListener("htmx:beforeSwap", () => {
    kept = { open: [...document.querySelectorAll("details[open][id]")].map((d) => d.id), focus: document.activeElement && document.activeElement.id,
      href: document.activeElement && document.activeElement.getAttribute("href"),
      values: [...document.querySelectorAll("details[open] input[id]")].map((i) => [i.id, i.value]) };
  });
  body.addEventListener("htmx:afterSettle", () => {
    if (kept) {
      kept.open.forEach((id) => { const d = document.getElementById(id); if (d) d.open = true; });
      kept.values.forEach(([id, value]) => { const i = document.getElementById(id); if (i && !i.value) i.value = value; });
      if (kept.href && document.activeElement === body) {
        const again = [...document.querySelectorAll("main a[href]")].find((a) => a.getAttribute("href") === kept.href);
        if (again) again.focus({ preventScroll: true });
      }
      if (kept.focus) { const f = document.getElementById(kept.focus); if (f && f !== document.activeElement) f.focus({ preventScroll: true }); }
      kept = null;
    }
    copyButtons();
    document.dispatchEvent(new Event("hanse:drawn"));
  });

  // ---- Times pass
  function ago(then) {
    const distance = (Date.now() - then) / 1000, size = Math.abs(distance);
    if (size < 5) return "now";
    const [length, unit] = size < 60 ? [1, "s"] : size < 3600 ? [60, "min"] : size < 86400 ? [3600, "h"] : [86400, "d"];
    const text = Math.floor(size / length) + " " + unit;
    return distance > 0 ? text + " ago" : "in " + text;
  }
  window.setInterval(() => {
    document.querySelectorAll("time[datetime]:not(.stamp)").forEach((t) => {
      const words = ago(Date.parse(t.dateTime));
      if (t.textContent !== words) t.textContent = words;
    });
  }, 10000);

  // ---- Copying
  function copyButtons() {
    if (!navigator.clipboard) return;
    document.querySelectorAll("[data-copy]:not([data-ready])").forEach((box) => {
      box.dataset.ready = "";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(box.textContent);
        button.textContent = "Copied";
        window.setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
      box.after(button);
    });
  }
  copyButtons();

  // ---- Keys
  let went = 0;
  const places = { o: "Overview", j: "Jobs", n: "Nodes", l: "Ledger", m: "Models", s: "System" };
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "Escape") { document.querySelectorAll("details.act[open]").forEach((d) => { d.open = false; }); if (typing) event.target.blur(); }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (went && Date.now() - went < 1200 && places[event.key]) {
      const link = [...document.querySelectorAll("nav[aria-label='Pages'] a")].find((a) => a.textContent.trim() === places[event.key]);
      if (link) window.location.assign(link.href);
      return;
    }
    if (event.key === "g") { went = Date.now(); return; }
    if (event.key === "/") { const box = document.querySelector("[data-search]"); if (box) { event.preventDefault(); box.focus(); box.select(); } }
    if (event.key === "?") { const help = [...document.querySelectorAll(".foot a")][0]; if (help) window.location.assign(help.href); }
    if (event.key === "j" || event.key === "k") {
      const links = [...document.querySelectorAll("[data-rows] tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
      if (!links.length) return;
      const at = links.indexOf(document.activeElement);
      links[Math.min(links.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))].focus();
    }
  });
})();
