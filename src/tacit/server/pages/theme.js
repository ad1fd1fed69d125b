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
  window.tacitTheme = { apply };
  apply();
})();
