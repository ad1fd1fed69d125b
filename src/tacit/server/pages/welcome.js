// The front page: what is sensitive while somebody types, and which of the models is shown.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const field = document.getElementById("look-text"), out = document.getElementById("look-out");
  const said = document.getElementById("look-said");
  let timer = 0, turn = 0;

  const hue = (kind) => [...kind].reduce((sum, c) => (sum * 31 + c.codePointAt(0)) % 360, 7);
  const show = (parts) => {
    const kinds = new Map();
    out.replaceChildren(...parts.map(([text, kind]) => {
      if (!kind) return document.createTextNode(text);
      kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
      const mark = document.createElement("mark");
      mark.textContent = text;
      mark.title = kind;
      mark.style.setProperty("--h", hue(kind));
      return mark;
    }));
    const words = [...kinds].map(([kind, count]) => `${count} × ${kind}`);
    said.textContent = words.length ? `Found: ${words.join(", ")}.`
      : field.value.trim() ? "Nothing was found. No detector finds everything." : "";
  };
  const look = async () => {
    const mine = ++turn;
    try {
      const answer = await fetch("/welcome/look", {
        method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ text: field.value.slice(0, field.maxLength) }),
      });
      const found = await answer.json();
      if (mine !== turn) return;
      if (answer.ok) show(found);
      else said.textContent = found.message ?? "That was not accepted.";
    } catch { if (mine === turn) said.textContent = "The server does not answer."; }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(look, 350); };
  const fill = (text) => { field.value = text.slice(0, field.maxLength); look(); };
  const read = (file) => file?.slice(0, 4 * field.maxLength).text().then(fill);

  field.addEventListener("input", soon);
  for (const button of all("[data-sample]"))
    button.addEventListener("click", () => fill(button.dataset.sample));
  document.getElementById("look-file").addEventListener("change", (e) => read(e.target.files[0]));
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
  show([...out.childNodes].map((n) => [n.textContent, n.title ?? ""]));

  const slider = document.getElementById("epsilon");
  const choose = (name, value) => {
    for (const part of all(`[data-${name}]`)) part.hidden = part.dataset[name] !== String(value);
  };
  slider?.addEventListener("input", () => {
    choose("model", slider.value);
    slider.setAttribute("aria-valuetext", document.querySelector(`[data-model="${slider.value}"] b`).textContent);
  });
  for (const button of all("[data-begin]"))
    button.addEventListener("click", () => {
      for (const other of all("[data-begin]")) other.setAttribute("aria-pressed", other === button);
      choose("said", button.dataset.begin);
    });
})();
