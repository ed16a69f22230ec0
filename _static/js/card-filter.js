// Shows only the cards that carry every chosen tag. The choice lives in the page's address
// (?tag=Gloo&tag=P2P), so it can be linked to. Nothing is loaded, so it works from file:// too.
"use strict";

(() => {
  const filters = [...document.querySelectorAll(".fr-filter")].map((box) => ({
    buttons: [...box.querySelectorAll("button")],
    status: box.querySelector("[role=status]"),
    box,
    cards: [...box.nextElementSibling.children].map((card) => ({
      card,
      tags: new Set([...card.querySelectorAll(".fr-card-tag")].map((tag) => tag.textContent)),
    })),
  }));
  if (!filters.length) return;

  // A tag that no card carries any more must not leave an old link with an empty page.
  const known = new Set(filters.flatMap(({ cards }) => cards.flatMap(({ tags }) => [...tags])));
  let chosen = new Set();

  function readAddress() {
    const tags = new URLSearchParams(location.search).getAll("tag");
    chosen = new Set(tags.filter((tag) => known.has(tag)));
  }

  function writeAddress() {
    const address = new URL(location.href);
    address.searchParams.delete("tag");
    for (const tag of chosen) address.searchParams.append("tag", tag);
    history.replaceState(history.state, "", address);
  }

  function show() {
    for (const { buttons, status, cards } of filters) {
      for (const button of buttons) {
        const { tag } = button.dataset;
        button.setAttribute("aria-pressed", tag ? chosen.has(tag) : !chosen.size);
      }
      let visible = 0;
      for (const { card, tags } of cards) {
        card.hidden = ![...chosen].every((tag) => tags.has(tag));
        visible += !card.hidden;
      }
      status.textContent = chosen.size
        ? `Showing ${visible} of ${cards.length}: ${[...chosen].join(" and ")}`
        : `Showing all ${cards.length}`;
    }
  }

  function choose(tag) {
    if (!tag) chosen.clear();
    else if (!chosen.delete(tag)) chosen.add(tag);
    show();
    writeAddress();
  }

  for (const { buttons, box } of filters) {
    for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.tag));
    box.hidden = false;
  }
  readAddress();
  show();
})();
