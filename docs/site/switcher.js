// The choice of a version in the sidebar: the same page of another version, or its first page where it has no such page.
for (const label of document.querySelectorAll(".sidebar-versions")) {
  const { version, page } = label.dataset;
  if (VERSIONS.length < 2 || !VERSIONS.includes(version)) continue;
  const choice = label.querySelector("select");
  choice.append(...VERSIONS.map((name) => new Option(name, name, false, name === version)));
  choice.addEventListener("change", async () => {
    const other = new URL(`${document.documentElement.dataset.content_root}../${choice.value}/`, location);
    // A page that was opened as a file, or is read without a network, cannot ask whether another one exists.
    const asked = await fetch(new URL(page, other), { method: "HEAD" }).catch(() => ({ ok: false }));
    location = new URL(asked.ok ? page : "index.html", other);
  });
  label.hidden = false;
}
