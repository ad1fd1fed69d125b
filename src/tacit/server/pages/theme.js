// Light or dark: as the system has it, unless somebody chose. Kept in this browser only.
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try { return localStorage.getItem("tacit-theme"); } catch { return null; }
  };
  const apply = () => {
    const dark = (chosen() ?? (system.matches ? "dark" : "light")) === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    if (window.Quasar) Quasar.Dark.set(dark);
    for (const button of document.querySelectorAll("[data-theme-switch]"))
      button.textContent = dark ? "Light" : "Dark";
  };
  const turn = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    const same = (next === "dark") === system.matches;
    try {
      if (same) localStorage.removeItem("tacit-theme");
      else localStorage.setItem("tacit-theme", next);
    } catch {}
    apply();
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-theme-switch]")) turn();
    const copy = event.target.closest?.("[data-copy]");
    if (copy) {
      const shown = document.getElementById(copy.dataset.copy);
      if (navigator.clipboard) navigator.clipboard.writeText(shown?.textContent ?? "");
      else if (shown) { getSelection().selectAllChildren(shown); document.execCommand("copy"); }
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    }
  });
  document.addEventListener("change", (event) => {
    const most = Number(event.target.dataset?.most);
    if (!most) return;
    const size = [...event.target.files].reduce((sum, file) => sum + file.size, 0);
    event.target.setCustomValidity(size > most ? `Too large: at most ${most >> 20} MiB.` : "");
  });
  // Files: dropped anywhere on their field, seen before they are sent, and sent with a bar.
  const zone = (event) => event.target.closest?.(".drop");
  for (const name of ["dragover", "dragleave", "drop"])
    document.addEventListener(name, (event) => {
      const on = zone(event);
      if (!on) return;
      event.preventDefault();
      on.classList.toggle("over", name === "dragover");
      if (name !== "drop" || !event.dataTransfer.files.length) return;
      const input = on.querySelector("input");
      input.files = event.dataTransfer.files;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    });
  document.addEventListener("change", async (event) => {
    const seen = event.target.closest?.("form.upload")?.querySelector(".seen");
    const file = event.target.files?.[0];
    if (seen) seen.hidden = true;
    if (!seen || !file || /\.(gz|parquet)$/.test(file.name)) return;
    const lines = (await file.slice(0, 600).text()).split("\n").slice(0, 3);
    seen.querySelector("pre").textContent = lines.join("\n");
    seen.hidden = false;
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest?.("form.upload");
    if (!form) return;
    event.preventDefault();
    const bar = form.querySelector("progress"), said = form.querySelector('[role="status"]');
    const button = form.querySelector("button.act"), request = new XMLHttpRequest();
    const failed = (sentence) => { said.textContent = sentence; bar.hidden = true; button.disabled = false; };
    request.open("POST", form.action);
    request.setRequestHeader("X-Tacit-Script", "1");
    request.setRequestHeader("Accept", "application/json");
    request.upload.onprogress = (at) => {
      bar.value = at.loaded / at.total;
      said.textContent = at.loaded < at.total ? `${Math.floor(100 * bar.value)}% sent` : "Sent; it is being read …";
    };
    request.onload = () => {
      if (request.status === 204) return location.reload();
      let sentence = "It was not accepted; open the page again.";
      try { sentence = JSON.parse(request.responseText).message ?? sentence; } catch {}
      failed(sentence);
    };
    request.onerror = () => failed("The server does not answer; try again.");
    bar.hidden = false;
    button.disabled = true;
    request.send(new FormData(form));
  });
  window.tacitTheme = { apply };
  apply();
})();
