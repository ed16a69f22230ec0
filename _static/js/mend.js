// Mends of the theme that a style sheet cannot make.
"use strict";

// Results of a search show a piece of each page that they name, which is fetched: a browser refuses
// that to a page that was opened as a file.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Paper is white in the dark theme, too.
{
  const root = document.documentElement;
  const paper = matchMedia("print");
  let theme;
  paper.addEventListener("change", () => {
    if (paper.matches) theme = root.dataset.theme;
    root.dataset.theme = paper.matches ? "light" : theme;
  });
}

// For the keyboard and for screen readers.
document.addEventListener("DOMContentLoaded", () => {
  // A table wider than the screen scrolls in its box: the box must be reachable without a mouse.
  for (const box of document.querySelectorAll(".pst-scrollable-table-container")) {
    box.tabIndex = 0;
  }
  // So must code, which the theme looks after when the window is resized, not when it is unfolded.
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => window.dispatchEvent(new Event("resize")));
  }
  // The bar's links stand in a landmark without a name, beside that of the page's contents.
  for (const list of document.querySelectorAll(".bd-navbar-elements")) {
    list.closest("nav").setAttribute("aria-label", "Site");
  }
  // The page of results has a second search field, with the name of the first.
  document.querySelector(".bd-search-container #search-input")?.removeAttribute("id");
  // Sphinx breaks long signatures into a list of definitions that defines nothing.
  for (const parameters of document.querySelectorAll("dt.sig > dl")) {
    parameters.role = "list";
    for (const parameter of parameters.children) parameter.role = "listitem";
  }
  // Nobody wants to step through the numbers of some hundred lines.
  for (const number of document.querySelectorAll("pre a:has(> .linenos)")) number.tabIndex = -1;
});
